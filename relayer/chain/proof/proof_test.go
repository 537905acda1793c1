package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

type derivable [][]byte

func (l derivable) Len() int                           { return len(l) }
func (l derivable) EncodeIndex(i int, w *bytes.Buffer) { w.Write(l[i]) }

// The root is go-ethereum's, for any number of values and any of their sizes.
func TestRoot(t *testing.T) {
	for _, n := range []int{0, 1, 2, 15, 16, 17, 127, 128, 129, 130, 255, 256, 257, 300, 5000} {
		for _, size := range []int{1, 20, 31, 32, 33, 55, 56, 300, 70_000 / max(n, 1)} {
			values := make(derivable, n)
			for i := range values {
				values[i] = bytes.Repeat([]byte{byte(i), byte(i>>8) + 1}, size/2+1)[:max(size, 1)]
			}

			require.Equal(t, types.DeriveSha(values, trie.NewStackTrie(nil)), Root(values), "%d of %d bytes", n, size)
		}
	}
}

// What proves the blocks of a chain that go-ethereum makes is refused as soon as any of it differs.
func TestRealBlocks(t *testing.T) {
	ctx := context.Background()
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 5})
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: sim.HTTP(), Deployment: d,
		Accounts: sim.Accounts()[1:], Seed: 5})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 4 {
		require.NoError(t, traffic.Step(ctx, 8))
		require.NoError(t, sim.Mine(ctx, 1))
	}

	c, err := rpc.DialContext(ctx, sim.HTTP())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	receipts := 0
	for n := range d.Block + 4 {
		at := fmt.Sprintf("0x%x", n)
		var block, whole json.RawMessage
		require.NoError(t, c.CallContext(ctx, &block, "eth_getBlockByNumber", at, false))
		require.NoError(t, c.CallContext(ctx, &whole, "eth_getBlockByNumber", at, true))
		var stated struct {
			Hash         common.Hash
			Transactions []common.Hash
		}
		require.NoError(t, json.Unmarshal(block, &stated))
		h, ok := Header(block, stated.Hash)
		require.True(t, ok, "%s", block)
		require.Equal(t, n, h.Number.Uint64())
		differs(t, block, stated.Hash)

		var body struct{ Transactions []json.RawMessage }
		require.NoError(t, json.Unmarshal(whole, &body))
		var hashes []common.Hash
		var encoded [][]byte
		for _, raw := range body.Transactions {
			b, hash := Transaction(raw)
			require.NotNil(t, b)
			hashes, encoded = append(hashes, hash), append(encoded, b)
		}

		require.Equal(t, h.TxHash, Root(encoded))
		require.ElementsMatch(t, stated.Transactions, hashes)

		var list []*types.Receipt
		require.NoError(t, c.CallContext(ctx, &list, "eth_getBlockReceipts", at))
		receipts += len(list)
		values := make([][]byte, len(list))
		for i, r := range list {
			values[i] = geths(r)
		}

		require.Equal(t, h.ReceiptHash, Root(values))
	}

	require.Greater(t, receipts, 20)
}

// geths is Receipt.Encode of a receipt as go-ethereum has it.
func geths(r *types.Receipt) []byte {
	own := Receipt{Type: uint64(r.Type), Status: r.Status, Gas: r.CumulativeGasUsed, Bloom: r.Bloom}
	if len(r.PostState) > 0 {
		own.Root = r.PostState
	}

	for _, l := range r.Logs {
		own.Logs = append(own.Logs, Log(l))
	}

	b, _ := own.Encode()

	return b
}

// differs changes each field of a header that the hash covers.
func differs(t *testing.T, block []byte, hash common.Hash) {
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(block, &fields))
	for name, value := range fields {
		switch name {
		case "hash", "transactions", "uncles", "withdrawals", "size", "totalDifficulty":
			continue
		}

		changed := bytes.Clone(value)
		last := &changed[len(changed)-2] // a hexadecimal digit
		switch *last {
		case 'x':
			changed = []byte(`"0x01"`)
		case '0':
			*last = '1'
		default:
			*last = '0'
		}

		fields[name] = changed
		b, err := json.Marshal(fields)
		require.NoError(t, err)
		_, ok := Header(b, hash)
		require.False(t, ok, "%s: %s instead of %s", name, changed, value)
		fields[name] = value
	}
}

// Receipts of every type that go-ethereum knows are encoded as it encodes them, and so are Arbitrum's. Of a deposit on
// the OP stack nonce and version come behind from Canyon on (vector: reth, post_canyon_receipt_roundtrip); of no other
// type do they. A type that nobody knows is not encoded, nor one that a byte would cut to a known one.
func TestReceiptTypes(t *testing.T) {
	logs := []*types.Log{{Address: common.Address{1}, Topics: []common.Hash{{2}, {3}}, Data: bytes.Repeat([]byte{7}, 90)},
		{Address: common.Address{4}}}
	for kind := range uint8(5) {
		for _, r := range []*types.Receipt{
			{Type: kind}, {Type: kind, Status: 1, CumulativeGasUsed: 21_000},
			{Type: kind, Status: 1, CumulativeGasUsed: 1 << 40, Logs: logs},
			{Type: kind, PostState: bytes.Repeat([]byte{5}, 32), CumulativeGasUsed: 7, Logs: logs},
		} {
			r.Bloom = types.CreateBloom(r)
			var b bytes.Buffer
			types.Receipts{r}.EncodeIndex(0, &b)
			require.Equal(t, b.Bytes(), geths(r))
		}
	}

	zeros := make([]byte, types.BloomByteLength)
	canyon := fmt.Sprintf("7ef9010d0182b741b90100%xc0833d3bbf01", zeros)
	deposit := Receipt{Type: 0x7e, Status: 1, Gas: 46_913, Deposit: []uint64{4_012_991, 1}}
	b, _ := deposit.Encode()
	require.Equal(t, canyon, fmt.Sprintf("%x", b))
	deposit.Deposit = nil // before Canyon
	plain := fmt.Sprintf("f901080182b741b90100%xc0", zeros)
	for _, kind := range []uint64{0x7e, 0x64, 0x65, 0x66, 0x68, 0x69, 0x6a} {
		deposit.Type = kind
		b, known := deposit.Encode()
		require.Equal(t, fmt.Sprintf("%x%s", kind, plain), fmt.Sprintf("%x", b))
		require.True(t, known)
	}

	for _, kind := range []uint64{5, 0x63, 0x6b, 0x78, 0x7b, 0x7f} { // as those so far, until the root says otherwise
		b, known := (&Receipt{Type: kind, Status: 1, Gas: 46_913}).Encode()
		require.Equal(t, fmt.Sprintf("%02x%s", kind, plain), fmt.Sprintf("%x", b))
		require.False(t, known)
	}

	for _, kind := range []uint64{0x80, 0xff, 0x100, 0x17e} {
		b, known := (&Receipt{Type: kind}).Encode()
		require.Nil(t, b, "type %x", kind)
		require.False(t, known)
	}
}

// Transactions that only rollups have are encoded as the specifications list their fields, by names and order of their
// own here. One whose fields do not make the hash that the node states is unknown, and not a forgery.
func TestRollupTransactions(t *testing.T) {
	hash := common.HexToHash("0x44bae9d41b8380d781187b426c6fe43df5fb2fb57bd4466ef6a701e1f01e0156")
	a, b, c := common.HexToAddress("0xdeaddeaddeaddeaddeaddeaddeaddeaddead0001"), common.Address{0x42, 19: 0x15},
		common.Address{7}
	n := func(i int64) *big.Int { return big.NewInt(i) }
	data := []byte{0x01, 0x5d, 0x8e, 0xb9}
	h, at := `"`+hash.Hex()+`"`, func(a common.Address) string { return `"` + a.Hex() + `"` }
	for kind, of := range map[byte]struct {
		json   string
		fields any
	}{
		0x7e: {`"sourceHash":` + h + `,"from":` + at(a) + `,"to":` + at(b) + `,"mint":"0x9","value":"0x0","gas":"0x8f0d180",
			"isSystemTx":true,"input":"0x015d8eb9","nonce":"0x3d3bbf","depositReceiptVersion":"0x1","gasPrice":"0x0"`,
			struct {
				Source   common.Hash
				From, To common.Address
				Mint     *big.Int
				Value    *big.Int
				Gas      uint64
				System   bool
				Data     []byte
			}{hash, a, b, n(9), n(0), 150_000_000, true, data}},
		0x64: {`"chainId":"0xa4b1","requestId":` + h + `,"from":` + at(a) + `,"to":` + at(b) + `,"value":"0x9","input":"0x",
			"gasPrice":"0x0"`, []any{n(42161), hash, a, b, n(9)}},
		0x65: {`"chainId":"0xa4b1","from":` + at(a) + `,"nonce":"0x3","gasPrice":"0x4","gas":"0x5","to":null,"value":"0x6",
			"input":"0x015d8eb9"`, []any{n(42161), a, uint64(3), n(4), uint64(5), []byte{}, n(6), data}},
		0x66: {`"chainId":"0xa4b1","requestId":` + h + `,"from":` + at(a) + `,"gasPrice":"0x4","gas":"0x5","to":` + at(b) +
			`,"value":"0x6","input":"0x015d8eb9"`, []any{n(42161), hash, a, n(4), uint64(5), b, n(6), data}},
		0x68: {`"chainId":"0xa4b1","nonce":"0x3","from":` + at(a) + `,"gasPrice":"0x1","maxFeePerGas":"0x4","gas":"0x5",
			"to":` + at(b) + `,"value":"0x6","input":"0x015d8eb9","ticketId":` + h + `,"refundTo":` + at(c) +
			`,"maxRefund":"0x7","submissionFeeRefund":"0x8"`,
			[]any{n(42161), uint64(3), a, n(4), uint64(5), b, n(6), data, hash, c, n(7), n(8)}},
		0x69: {`"chainId":"0xa4b1","requestId":` + h + `,"from":` + at(a) + `,"l1BaseFee":"0x1","depositValue":"0x2",
			"gasPrice":"0x4","gas":"0x5","to":"0x000000000000000000000000000000000000006e","retryTo":` + at(b) + `,
			"retryValue":"0x6","beneficiary":` + at(c) + `,"maxSubmissionFee":"0x7","refundTo":` + at(a) +
			`,"retryData":"0x015d8eb9","input":"0xc9f95d32"`,
			[]any{n(42161), hash, a, n(1), n(2), n(4), uint64(5), b, n(6), c, n(7), a, data}},
		0x6a: {`"chainId":"0xa4b1","input":"0x015d8eb9","from":` + at(a) + `,"gasPrice":"0x0"`, []any{n(42161), data}},
	} {
		content, err := rlp.EncodeToBytes(of.fields)
		require.NoError(t, err)
		want := append([]byte{kind}, content...)
		is := crypto.Keccak256Hash(want)
		raw := fmt.Sprintf(`{"type":"0x%x","hash":%q,%s}`, kind, is.Hex(), of.json)
		got, stated := Transaction([]byte(raw))
		require.Equal(t, fmt.Sprintf("%x", want), fmt.Sprintf("%x", got), "type %x", kind)
		require.Equal(t, is, stated)

		got, stated = Transaction([]byte(strings.NewReplacer("0x015d8eb9", "0x015d8eba", `"0x9"`, `"0xa"`).Replace(raw)))
		require.Nil(t, got, "type %x", kind)
		require.Equal(t, is, stated)
		got, stated = Transaction([]byte(strings.Replace(raw, fmt.Sprintf(`"0x%x"`, kind), `"0x6f"`, 1)))
		require.Nil(t, got)
		require.Equal(t, is, stated)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"hash":"0x00","number":"0x1"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) { // whatever comes, no panic
		_, _ = Header(b, common.Hash{})
		_, _ = Transaction(b)
	})
}
