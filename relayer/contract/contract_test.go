package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

func builtIn(t testing.TB) *ABI {
	a, err := New("", "")
	require.NoError(t, err)
	return a
}

func topic(signature string) common.Hash { return crypto.Keccak256Hash([]byte(signature)) }

func word(n int64) []byte { return common.BigToHash(big.NewInt(n)).Bytes() }

func addressTopic(hex string) common.Hash {
	return common.BytesToHash(common.HexToAddress(hex).Bytes())
}

func data(words ...[]byte) (b []byte) {
	for _, w := range words {
		b = append(b, w...)
	}

	return b
}

const (
	escrow = "0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29"
	payer  = "0xD0275E28F9e9C3D261dB60E8e1204aa2f16f1ca2"
	payee  = "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"
)

func deployedLog(arbiter bool) *types.Log {
	signature, words := "EscrowDeployed(address,address,address,uint256,uint256,uint8)",
		[][]byte{word(1e18), word(60), word(2)}
	if arbiter {
		signature = "EscrowDeployed(address,address,address,address,uint256,uint256,uint8)"
		words = append([][]byte{addressTopic(payee).Bytes()}, words...)
	}

	return &types.Log{
		Address: common.HexToAddress("0xfac"), Topics: []common.Hash{topic(signature), addressTopic(escrow),
			addressTopic(payer), addressTopic(payee)},
		Data: data(words...), BlockNumber: 7, BlockTimestamp: 99, TxHash: common.HexToHash("0xab"), Index: 3,
	}
}

func TestDecode(t *testing.T) {
	a := builtIn(t)
	for name, c := range map[string]struct {
		log  *types.Log
		want string
	}{
		"EscrowDeployed": {deployedLog(true), `{"escrow":"` + escrow + `","payer":"` + payer +
			`","payee":"` + payee + `","arbiter":"` + payee +
			`","amount":"1000000000000000000","releaseDelay":"60","approvalsRequired":"2"}`},
		"EscrowDeployed without arbiter": {deployedLog(false), `{"escrow":"` + escrow + `","payer":"` + payer +
			`","payee":"` + payee + `","amount":"1000000000000000000","releaseDelay":"60","approvalsRequired":"2"}`},
		"Approved": {&types.Log{Topics: []common.Hash{topic("Approved(address)"),
			addressTopic(payer)}}, `{"approver":"` + payer + `"}`},
		"ArbiterChanged": {&types.Log{Topics: []common.Hash{topic("ArbiterChanged(address,address)"),
			addressTopic(payer), {}}}, `{"oldArbiter":"` + payer +
			`","newArbiter":"0x0000000000000000000000000000000000000000"}`},
		"EscrowReleased": {&types.Log{Topics: []common.Hash{topic("EscrowReleased(address,uint256,uint256)"),
			addressTopic(payee)}, Data: data(maxUint256().Bytes(), word(0))}, `{"payee":"` + payee + `","amount":"` +
			maxUint256Text + `","timestamp":"0"}`},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := a.Decode(c.log)
			require.NoError(t, err)
			require.Equal(t, c.want, string(e.Args))
			require.True(t, json.Valid(e.Args))
		})
	}

	e, err := a.Decode(deployedLog(true))
	require.NoError(t, err)
	require.Equal(t, common.HexToAddress(escrow), e.Escrow)
	require.Equal(t, common.HexToAddress("0xfac"), e.Emitter)
	require.Equal(t, "0x00000000000000000000000000000000000000000000000000000000000000ab:3", e.ID())
	require.EqualValues(t, 99, e.BlockTime)
}

func TestForeign(t *testing.T) {
	a := builtIn(t)
	approved := topic("Approved(address)")
	for name, l := range map[string]*types.Log{
		"no topics":            {},
		"unknown topic":        {Topics: []common.Hash{{1}}},
		"approver not indexed": {Topics: []common.Hash{approved}, Data: word(1)},
		"one topic too many":   {Topics: []common.Hash{approved, {}, {}}},
		"short data":           {Topics: []common.Hash{topic("EscrowReleased(address,uint256,uint256)"), {}}, Data: word(1)},
		"uint8 too large":      func() *types.Log { l := deployedLog(true); l.Data[len(l.Data)-2] = 1; return l }(),
	} {
		_, err := a.Decode(l)
		require.ErrorIs(t, err, ErrForeign, name)
	}
}

// everything has each static type, and everythingDynamic the others.
const (
	everything = `[{"type":"event","name":"Static","inputs":[
		{"name":"who","type":"address","indexed":true},{"name":"u8","type":"uint8"},{"name":"u64","type":"uint64"},{"name":"u96","type":"uint96"},
		{"name":"u256","type":"uint256"},{"name":"i8","type":"int8"},{"name":"i64","type":"int64"},{"name":"i256","type":"int256"},
		{"name":"ok","type":"bool","indexed":true},{"name":"tag","type":"bytes4"},{"name":"hash","type":"bytes32","indexed":true}]}]`
	dynamic = `[{"type":"event","name":"Dynamic","inputs":[
		{"name":"text","type":"string"},{"name":"who","type":"address"},{"name":"title","type":"string","indexed":true},{"name":"raw","type":"bytes"},
		{"name":"n","type":"int64"},{"name":"u8","type":"uint8"},{"name":"wei","type":"uint256"},{"name":"ok","type":"bool"},{"name":"tag","type":"bytes4"},
		{"name":"list","type":"uint256[]"},{"name":"pair","type":"int8[2]"},
		{"name":"leg","type":"tuple","components":[{"name":"to","type":"address"},{"name":"memo","type":"string"}]}]}]`
)

type leg struct {
	To   common.Address
	Memo string
}

func configured(t testing.TB, escrowABI string) (*ABI, *layout) {
	a, err := New("", escrowABI)
	require.NoError(t, err)
	return a, a.events[a.EscrowTopics()[0]][0]
}

func staticLog(t testing.TB, l *layout, topic0 common.Hash) *types.Log {
	packed, err := nonIndexed(l).Pack(uint8(255), uint64(math.MaxUint64), big.NewInt(1e15), maxUint256(), int8(-128),
		int64(math.MinInt64),
		new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(1), 255)), [4]byte{0xde, 0xad})
	require.NoError(t, err)

	return &types.Log{Topics: []common.Hash{topic0, addressTopic(payer), {31: 1}, {0: 0xff}}, Data: packed}
}

func dynamicLog(t testing.TB, l *layout, topic0 common.Hash) *types.Log {
	packed, err := nonIndexed(l).Pack("say \"hi\"\n\xff", common.HexToAddress(payee), []byte{1, 2}, int64(-5), uint8(7),
		maxUint256(), true, [4]byte{1, 2, 3, 4},
		[]*big.Int{big.NewInt(1), maxUint256()}, [2]int8{-1, 1}, leg{common.HexToAddress(payer), "<rent>"})
	require.NoError(t, err)

	return &types.Log{Topics: []common.Hash{topic0, {1}}, Data: packed}
}

func maxUint256() *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
}

const maxUint256Text = "115792089237316195423570985008687907853269984665640564039457584007913129639935"

func TestDecodeEveryType(t *testing.T) {
	a, l := configured(t, everything)
	e, err := a.Decode(staticLog(t, l, a.EscrowTopics()[0]))
	require.NoError(t, err)
	//nolint:testifylint // the bytes are promised, with their order, and not only what they mean
	require.Equal(t, `{"who":"`+payer+`","u8":"255","u64":"18446744073709551615","u96":"1000000000000000","u256":"`+maxUint256Text+`",`+
		`"i8":"-128","i64":"-9223372036854775808","i256":"-57896044618658097711785492504343953926634992332820282019728792003956564819968",`+
		`"ok":true,"tag":"0xdead0000","hash":"0xff00000000000000000000000000000000000000000000000000000000000000"}`,
		string(e.Args))

	a, l = configured(t, dynamic)
	e, err = a.Decode(dynamicLog(t, l, a.EscrowTopics()[0]))
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"say \"hi\"\n\ufffd","who":"`+payee+`","title":"0x0100000000000000000000000000000000000000000000000000000000000000",`+
		`"raw":"0x0102","n":"-5","u8":"7","wei":"`+maxUint256Text+`","ok":true,"tag":"0x01020304","list":["1","`+maxUint256Text+`"],"pair":["-1","1"],`+
		`"leg":{"to":"`+payer+`","memo":"<rent>"}}`, string(e.Args))
}

// nonIndexed are the arguments in the data of a log.
func nonIndexed(l *layout) (args abi.Arguments) {
	for _, f := range l.fields {
		if !f.indexed {
			args = append(args, abi.Argument{Name: f.key[1 : len(f.key)-2], Type: f.typ})
		}
	}

	return args
}

// A contract that is written by hand may leave gaps, dirt and rests: what go-ethereum reads is read.
func TestWhatGoEthereumReadsIsRead(t *testing.T) {
	a, l := configured(t, everything)
	clean, err := a.Decode(staticLog(t, l, a.EscrowTopics()[0]))
	require.NoError(t, err)
	log := staticLog(t, l, a.EscrowTopics()[0])
	log.Data[224+4]++ // beside the bytes4
	log.Topics[1][0]++
	log.Data = append(log.Data, 1, 2, 3)
	e, err := a.Decode(log)
	require.NoError(t, err)
	require.Equal(t, string(clean.Args), string(e.Args))

	for at, name := range map[int]string{30: "u8", 32 + 23: "u64", 128 + 30: "i8", 160 + 0: "i64"} {
		log := staticLog(t, l, a.EscrowTopics()[0])
		log.Data[at] ^= 1
		_, err := a.Decode(log)
		require.ErrorIs(t, err, ErrForeign, name)
	}

	log = staticLog(t, l, a.EscrowTopics()[0])
	log.Topics[2][31] = 2
	_, err = a.Decode(log)
	require.ErrorIs(t, err, ErrForeign, "bool of 2")

	a, _ = configured(t, `[{"type":"event","name":"Closed","inputs":[{"name":"n","type":"uint256"},
		{"name":"list","type":"uint256[]"}]}]`)
	e, err = a.Decode(&types.Log{Topics: a.EscrowTopics(),
		Data: data(word(7), word(0x60), word(99), word(2), word(5), word(6))})
	require.NoError(t, err)
	require.JSONEq(t, `{"n":"7","list":["5","6"]}`, string(e.Args), "a gap")
}

// Offsets that lead to the same bytes over and over unfold to no more than a log can hold otherwise.
func TestWhatUnfoldsWithoutEndIsNotRead(t *testing.T) {
	a, _ := configured(t, `[{"type":"event","name":"Many","inputs":[{"name":"list","type":"uint256[][][]"}]}]`)
	words := [][]byte{word(0x20)}
	const n = 1000
	for level := range 3 {
		words = append(words, word(n))
		for range n {
			words = append(words, word(map[bool]int64{true: n * 0x20, false: 1}[level < 2]))
		}
	}

	_, err := a.Decode(&types.Log{Topics: a.EscrowTopics(), Data: data(words...)})
	require.ErrorIs(t, err, ErrForeign, "10^9 numbers")
}

func TestDecimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	edge := new(big.Int).Exp(big.NewInt(10), big.NewInt(19), nil)
	numbers := []*big.Int{big.NewInt(0), edge, new(big.Int).Sub(edge, big.NewInt(1)),
		new(big.Int).Mul(edge, edge), maxUint256()}
	for range 2000 {
		n := new(big.Int)
		for range 1 + r.IntN(4) {
			n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(r.Uint64()))
		}

		numbers = append(numbers, n.Rsh(n, uint(r.IntN(64))))
	}

	for _, n := range numbers {
		text, ok := appendWord(nil, &abi.Type{T: abi.UintTy, Size: 256}, common.BigToHash(n).Bytes())
		require.True(t, ok)
		require.Equal(t, `"`+n.String()+`"`, string(text))
	}
}

func TestChecksum(t *testing.T) {
	for i := range int64(3 * len(checksums)) {
		a := common.BigToAddress(new(big.Int).Mul(big.NewInt(i), new(big.Int).Rsh(maxUint256(), 100)))
		require.Equal(t, a.Hex(), string(AppendChecksum(nil, a)))
	}
}

func TestNew(t *testing.T) {
	a := builtIn(t)
	require.Equal(t, []string{"EscrowDeployed", "Approved", "ArbiterChanged", "EscrowCreated", "EscrowRefunded",
		"EscrowReleased"}, a.EventNames())
	require.Len(t, a.FactoryTopics(), 2, "with and without arbiter")
	require.Len(t, a.EscrowTopics(), 5)
	require.Equal(t, append(a.FactoryTopics(), a.EscrowTopics()...), a.Topics())
	a.Topics()[0] = common.Hash{}
	require.NotZero(t, a.Topics()[0], "the caller's copy")
}

func TestConfiguredABI(t *testing.T) {
	path := filepath.Join(t.TempDir(), "abi.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"abi":`+everything+`}`), 0o600))
	for _, given := range []string{everything, path, ` {"abi":` + everything + `,"bytecode":"0x"}`} {
		a, err := New("", given)
		require.NoError(t, err)
		require.Equal(t, []string{"EscrowDeployed", "Static"}, a.EventNames())
		require.Len(t, a.EscrowTopics(), 1)
	}

	// One ABI of both contracts serves for each, and what concerns no escrow does not count.
	combined := `[{"type":"event","name":"OwnershipTransferred","inputs":[{"name":"to","type":"address","indexed":true}]},` + builtInFactory[2:]
	a, err := New(combined, "")
	require.NoError(t, err)
	require.NotContains(t, a.EventNames(), "OwnershipTransferred")
	a, err = New("", combined)
	require.NoError(t, err)
	require.Equal(t, []string{"EscrowDeployed", "OwnershipTransferred"}, a.EventNames())

	// An escrow that is not indexed is found in the data.
	a, err = New(`[{"type":"event","name":"EscrowDeployed","inputs":[{"name":"payer","type":"address"},{"name":"escrow","type":"address"}]}]`, "")
	require.NoError(t, err)
	e, err := a.Decode(&types.Log{Topics: a.FactoryTopics(),
		Data: data(addressTopic(payer).Bytes(), addressTopic(escrow).Bytes())})
	require.NoError(t, err)
	require.Equal(t, common.HexToAddress(escrow), e.Escrow)
}

// Two events whose signatures are the same, with other arguments indexed, share topic 0 and differ
// in the number of topics.
func TestIndexedElsewhere(t *testing.T) {
	a, err := New("", `[{"type":"event","name":"Approved","inputs":[{"name":"approver","type":"address","indexed":true}]},
		{"type":"event","name":"Approved","inputs":[{"name":"by","type":"address"}]}]`)
	require.NoError(t, err)
	require.Len(t, a.EscrowTopics(), 1)
	e, err := a.Decode(&types.Log{Topics: a.EscrowTopics(), Data: addressTopic(payer).Bytes()})
	require.NoError(t, err)
	require.JSONEq(t, `{"by":"`+payer+`"}`, string(e.Args))
	e, err = a.Decode(&types.Log{Topics: append(a.EscrowTopics(), addressTopic(payer))})
	require.NoError(t, err)
	require.JSONEq(t, `{"approver":"`+payer+`"}`, string(e.Args))
}

// Several files are the versions of one contract.
func TestVersionsInFiles(t *testing.T) {
	deployed := func(more string) string {
		path := filepath.Join(t.TempDir(), "abi.json")
		text := `[{"type":"event","name":"EscrowDeployed","inputs":[{"name":"escrow","type":"address","indexed":true}` + more + `]}]`
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

		return path
	}
	first := deployed("")
	second := deployed(`,{"name":"by","type":"address"}`)
	a, err := New(first+", "+second, "")
	require.NoError(t, err)
	require.Len(t, a.FactoryTopics(), 2)
	again, err := New(first+","+second+","+first, "")
	require.NoError(t, err)
	require.Equal(t, a.Definitions(), again.Definitions())

	_, err = New(second+","+deployed(`,{"name":"to","type":"address"}`), "")
	require.ErrorContains(t, err, "no log tells them apart", "two names of one argument")
	_, err = New(first+",/nowhere.json", "")
	require.ErrorContains(t, err, "readable file")
}

func TestBadABI(t *testing.T) {
	for given, want := range map[string]string{
		"/nowhere": "readable file", `{"x":1}`: `"abi"`, `{"abi":`: "not JSON", `[]`: "no event that counts",
		`[1]`: "not an ABI",
		`[{"type":"event","name":"E","inputs":[{"name":"a","type":"nonsense"}]}]`:                        "not an ABI",
		`[{"type":"event","name":"E","inputs":[{"name":"a","type":"bool"},{"name":"a","type":"bool"}]}]`: "identifier of its own",
		`[{"type":"event","name":"E","inputs":[{"name":"a\u0000","type":"bool"}]}]`:                      "identifier of its own",
		`[{"type":"event","name":"E","inputs":[{"name":"a","type":"uint512"}]}]`:                         "does not exist",
		`[{"type":"event","name":"E","inputs":[{"name":"a","type":"int7"}]}]`:                            "does not exist",
		`[{"type":"event","name":"E {}","inputs":[]}]`:                                                   "not an identifier",
		`[{"type":"event","name":"E","anonymous":true,"inputs":[{"name":"a","type":"bool"}]}]`:           "no event that counts",
	} {
		_, err := New("", given)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "ESCROW_ABI")
	}

	_, err := New(everything, "[]")
	require.ErrorContains(t, err, "FACTORY_ABI has no event that counts")
	require.ErrorContains(t, err, "ESCROW_ABI has no event", "all problems at once")
	_, err = New(`[{"type":"event","name":"EscrowDeployed","inputs":[{"name":"escrow","type":"uint256","indexed":true}]}]`, "")
	require.ErrorContains(t, err, `no address argument "escrow"`)
}

// nested has what leads to what leads further.
const nested = `[{"type":"event","name":"Nested","inputs":[{"name":"texts","type":"string[]"},{"name":"fixed","type":"bytes[2]"},
	{"name":"legs","type":"tuple[]","components":[{"name":"who","type":"address"},{"name":"of","type":"uint24[2][]"}]},
	{"name":"flat","type":"tuple[2]","components":[{"name":"a","type":"int40"},{"name":"b","type":"bool[2]"}]},{"name":"call","type":"function"}]}]`

// FuzzDecode compares with go-ethereum's decoder: what decodes there decodes here, to the same values, and the other
// way round.
func FuzzDecode(f *testing.F) {
	abis := []*ABI{builtIn(f)}
	for _, given := range []string{everything, dynamic, nested} {
		a, _ := configured(f, given)
		abis = append(abis, a)
	}

	add := func(abi uint8, l *types.Log) {
		var topics []byte
		for _, t := range l.Topics {
			topics = append(topics, t[:]...)
		}

		f.Add(abi, topics, l.Data)
	}
	add(0, deployedLog(true))
	add(0, deployedLog(false))
	add(0, &types.Log{Topics: []common.Hash{topic("Approved(address)"), addressTopic(payer)}})
	add(1, staticLog(f, abis[1].events[abis[1].escrow[0]][0], abis[1].escrow[0]))
	add(2, dynamicLog(f, abis[2].events[abis[2].escrow[0]][0], abis[2].escrow[0]))
	add(3, nestedLog(f, abis[3].events[abis[3].escrow[0]][0], abis[3].escrow[0]))
	f.Fuzz(func(t *testing.T, which uint8, topics, data []byte) {
		a := abis[int(which)%len(abis)]
		l := &types.Log{Data: data}
		for chunk := range slices.Chunk(topics, 32) {
			l.Topics = append(l.Topics, common.BytesToHash(chunk))
		}

		e, err := a.Decode(l)
		if len(l.Topics) == 0 || len(a.events[l.Topics[0]]) == 0 || a.events[l.Topics[0]][0].topics != len(l.Topics)-1 {
			require.ErrorIs(t, err, ErrForeign)
			return
		}

		known := a.events[l.Topics[0]][0]
		values := map[string]any{}
		theirs := nonIndexed(known).UnpackIntoMap(values, l.Data)
		var indexed abi.Arguments
		for _, f := range known.fields {
			if f.indexed {
				indexed = append(indexed, abi.Argument{Name: f.key[1 : len(f.key)-2], Type: f.typ, Indexed: true})
			}
		}

		theirs = errors.Join(theirs, abi.ParseTopicsIntoMap(values, indexed, l.Topics[1:]))
		if err != nil {
			// It reads a bool in a topic by its last bit, and what unfolds without end.
			strict := slices.ContainsFunc(indexed, func(a abi.Argument) bool { return a.Type.T == abi.BoolTy })
			require.True(t, theirs != nil || strict || len(fmt.Sprint(values)) > len(data), "go-ethereum reads %v", values)

			return
		}

		require.NoError(t, theirs)
		var want []byte
		for i, f := range known.fields {
			want = append(append(want, "{,"[min(i, 1)]), f.key...)
			want = appendValue(want, &f.typ, f.indexed, reflect.ValueOf(values[f.key[1:len(f.key)-2]]))
		}

		require.Equal(t, string(append(want, '}')), string(e.Args))
	})
}

func nestedLog(t testing.TB, l *layout, topic0 common.Hash) *types.Log {
	type legs struct {
		Who common.Address
		Of  [][2]*big.Int
	}
	type flat struct {
		A *big.Int
		B [2]bool
	}
	packed, err := nonIndexed(l).Pack([]string{"", "a"}, [2][]byte{{1}, {}}, []legs{{common.HexToAddress(payer),
		[][2]*big.Int{{big.NewInt(1), big.NewInt(2)}}}}, [2]flat{{big.NewInt(-3), [2]bool{true, false}}, {A: big.NewInt(4)}},
		[24]byte{9})
	require.NoError(t, err)

	return &types.Log{Topics: []common.Hash{topic0}, Data: packed}
}

// appendValue encodes what go-ethereum unpacked.
func appendValue(out []byte, t *abi.Type, indexed bool, v reflect.Value) []byte {
	hash, isHash := reflect.TypeAssert[common.Hash](v)
	switch {
	case indexed && isHash && !fitsWord(*t):
		return appendHex(out, hash[:])
	case t.T == abi.AddressTy:
		return appendAddress(out, v.Interface().(common.Address))
	case t.T == abi.BoolTy:
		return strconv.AppendBool(out, v.Bool())
	case t.T == abi.StringTy:
		text, _ := json.Marshal(strings.ToValidUTF8(v.String(), "\uFFFD"))
		return append(out, text...)
	case t.T == abi.UintTy || t.T == abi.IntTy:
		return fmt.Appendf(out, `"%d"`, v.Interface())
	case t.T == abi.BytesTy:
		return appendHex(out, v.Bytes())
	case t.T == abi.FixedBytesTy || t.T == abi.FunctionTy:
		fixed := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(fixed), v)

		return appendHex(out, fixed)
	}

	open, n, elem := "[]", 0, func(i int) (string, *abi.Type, reflect.Value) { return "", t.Elem, v.Index(i) }
	if t.T == abi.TupleTy {
		open, n = "{}", len(t.TupleElems)
		elem = func(i int) (string, *abi.Type, reflect.Value) {
			return strconv.Quote(t.TupleRawNames[i]) + ":", t.TupleElems[i], v.Field(i)
		}
	} else {
		n = v.Len()
	}

	out = append(out, open[0])
	for i := range n {
		if i > 0 {
			out = append(out, ',')
		}

		key, typ, value := elem(i)
		out = appendValue(append(out, key...), typ, false, value)
	}

	return append(out, open[1])
}

// FuzzNew: an ABI is what somebody pasted into a variable.
func FuzzNew(f *testing.F) {
	for _, given := range []string{builtInEscrow, everything, dynamic, `{"abi":[]}`} {
		f.Add(given)
	}

	f.Fuzz(func(t *testing.T, given string) {
		if !strings.HasPrefix(strings.TrimSpace(given), "[") {
			given = "[" + given // do not open files
		}

		if a, err := New("", given); err == nil {
			require.NotEmpty(t, a.EscrowTopics())
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	a := builtIn(b)
	dynamicABI, l := configured(b, dynamic)
	for _, c := range []struct {
		name string
		abi  *ABI
		log  *types.Log
	}{
		{"deployed", a, deployedLog(true)},
		{"approved", a, &types.Log{Topics: []common.Hash{topic("Approved(address)"), addressTopic(payer)}}},
		{"released", a, &types.Log{Topics: []common.Hash{topic("EscrowReleased(address,uint256,uint256)"),
			addressTopic(payer)}, Data: data(word(1e18), word(1))}},
		{"foreign", a, &types.Log{Topics: []common.Hash{topic("Approved(address)")}, Data: word(1)}},
		{"dynamic", dynamicABI, dynamicLog(b, l, dynamicABI.escrow[0])},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.abi.Decode(c.log)
			}
		})
	}

	b.Run("new parties", func(b *testing.B) { // nothing in the cache of checksums
		b.ReportAllocs()
		l := deployedLog(true)
		for n := int64(0); b.Loop(); n++ {
			for i := range l.Topics[1:] {
				l.Topics[1+i] = common.BigToHash(big.NewInt(n*3 + int64(i)))
			}

			_, _ = a.Decode(l)
		}
	})
}

func BenchmarkID(b *testing.B) {
	e := Event{TxHash: common.HexToHash("0xab"), LogIndex: 3}
	b.ReportAllocs()
	for b.Loop() {
		_ = e.ID()
	}
}
