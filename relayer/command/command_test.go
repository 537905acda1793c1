package command_test

import (
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

func create() command.Command {
	return command.Command{
		ChainID: 11155111, Factory: common.HexToAddress("0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"), Kind: command.Create,
		Sender: common.Address{1}, Escrow: common.Address{2},
		Args: &command.CreateArgs{Payee: common.Address{3}, Amount: big.NewInt(1e18), ReleaseDelay: big.NewInt(3600),
			ApprovalsRequired: 2, Arbiter: common.Address{4}, Salt: common.Hash{5}},
		NotBefore: 1_800_000_000, ExpiresAt: 1_900_000_000, MaxFee: big.NewInt(2e15), Reference: "Rechnung 7 – ä",
		ReplyTo: "desk-1", Salt: common.Hash{6},
	}
}

// typed is the command as a wallet gets it.
func typed(c command.Command) apitypes.TypedData {
	field := func(pairs ...string) (types []apitypes.Type) {
		for i := 0; i < len(pairs); i += 2 {
			types = append(types, apitypes.Type{Name: pairs[i], Type: pairs[i+1]})
		}

		return types
	}
	args := c.Args
	if args == nil {
		args = &command.CreateArgs{Amount: new(big.Int), ReleaseDelay: new(big.Int)}
	}

	return apitypes.TypedData{
		PrimaryType: "Command",
		Types: apitypes.Types{
			"EIP712Domain": field("name", "string", "version", "string", "chainId", "uint256", "verifyingContract", "address"),
			"Create": field("payee", "address", "amount", "uint256", "releaseDelay", "uint256", "approvalsRequired",
				"uint8", "arbiter", "address", "salt", "bytes32"),
			"Command": field("kind", "string", "sender", "address", "escrow", "address", "args", "Create", "notBefore",
				"uint64", "expiresAt", "uint64",
				"maxFee", "uint256", "reference", "string", "replyTo", "string", "salt", "bytes32"),
		},
		Domain: apitypes.TypedDataDomain{
			Name: command.DomainName, Version: command.DomainVersion, ChainId: math.NewHexOrDecimal256(int64(c.ChainID)),
			VerifyingContract: c.Factory.Hex(),
		},
		Message: apitypes.TypedDataMessage{
			"kind": string(c.Kind), "sender": c.Sender.Hex(), "escrow": c.Escrow.Hex(),
			"notBefore": new(big.Int).SetUint64(c.NotBefore), "expiresAt": new(big.Int).SetUint64(c.ExpiresAt),
			"maxFee": c.MaxFee, "reference": c.Reference, "replyTo": c.ReplyTo, "salt": c.Salt.Hex(),
			"args": apitypes.TypedDataMessage{
				"payee": args.Payee.Hex(), "amount": args.Amount, "releaseDelay": args.ReleaseDelay,
				"approvalsRequired": big.NewInt(int64(args.ApprovalsRequired)),
				"arbiter":           args.Arbiter.Hex(), "salt": args.Salt.Hex(),
			},
		},
	}
}

// The id is what go-ethereum's own implementation of EIP-712, that of its wallets, computes.
func TestIDIsTheEIP712Digest(t *testing.T) {
	t.Parallel()
	approve := create()
	approve.Kind, approve.Args, approve.Reference, approve.ReplyTo, approve.NotBefore, approve.Salt = command.Approve,
		nil, "", "", 0, common.Hash{}
	for _, c := range []command.Command{create(), approve} {
		want, _, err := apitypes.TypedDataAndHash(typed(c))
		require.NoError(t, err)
		require.Equal(t, common.BytesToHash(want), c.ID())
	}
}

// Whatever is changed changes the id, so no field can be changed without another signature.
func TestSignatureCoversEveryField(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	signed, err := create().Sign(key)
	require.NoError(t, err)
	who, err := signed.Requester()
	require.NoError(t, err)
	require.Equal(t, crypto.PubkeyToAddress(key.PublicKey), who)

	for name, change := range map[string]func(*command.Command){
		"chain": func(c *command.Command) { c.ChainID++ }, "factory": func(c *command.Command) { c.Factory[0]++ },
		"kind":   func(c *command.Command) { c.Kind = command.Release },
		"sender": func(c *command.Command) { c.Sender[0]++ }, "escrow": func(c *command.Command) { c.Escrow[0]++ },
		"not before": func(c *command.Command) { c.NotBefore++ },
		"expires":    func(c *command.Command) { c.ExpiresAt++ },
		"fee":        func(c *command.Command) { c.MaxFee = big.NewInt(3) },
		"reference":  func(c *command.Command) { c.Reference += "x" },
		"reply to":   func(c *command.Command) { c.ReplyTo += "x" }, "salt": func(c *command.Command) { c.Salt[0]++ },
		"payee":         func(c *command.Command) { c.Args.Payee[0]++ },
		"amount":        func(c *command.Command) { c.Args.Amount = big.NewInt(3) },
		"delay":         func(c *command.Command) { c.Args.ReleaseDelay = big.NewInt(3) },
		"approvals":     func(c *command.Command) { c.Args.ApprovalsRequired++ },
		"arbiter":       func(c *command.Command) { c.Args.Arbiter[0]++ },
		"create's salt": func(c *command.Command) { c.Args.Salt[0]++ },
	} {
		other := command.Signed{Command: create(), Signature: signed.Signature}
		change(&other.Command)
		require.NotEqual(t, signed.ID(), other.ID(), name)
		if got, err := other.Requester(); err == nil {
			require.NotEqual(t, who, got, name)
		}
	}
}

func TestSignatureIsNotMalleable(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	signed, err := create().Sign(key)
	require.NoError(t, err)
	s := new(big.Int).SetBytes(signed.Signature[32:64])
	s.Sub(crypto.S256().Params().N, s).FillBytes(signed.Signature[32:64])
	signed.Signature[64] = 27 + (28 - signed.Signature[64])
	_, err = signed.Requester()
	require.ErrorIs(t, err, command.ErrSignature, "the same signature with s high")
	for _, v := range []byte{0, 1, 26, 29, 255} {
		signed.Signature[64] = v
		_, err = signed.Requester()
		require.ErrorIs(t, err, command.ErrSignature)
	}

	signed.Signature = [65]byte{64: 27}
	_, err = signed.Requester()
	require.ErrorIs(t, err, command.ErrSignature)
}

func encode(t *testing.T, c command.Command) map[string]any {
	t.Helper()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	signed, err := c.Sign(key)
	require.NoError(t, err)
	body, err := json.Marshal(signed)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(body, &fields))

	return fields
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(encode(t, create()))
	require.NoError(t, err)
	got, err := command.Parse(body)
	require.NoError(t, err)
	require.Equal(t, create(), got.Command)
	_, err = got.Requester()
	require.NoError(t, err)
}

// bad are values that a field must not have.
var bad = map[string][]any{
	"version":  {nil, 0, 2, -1, "1", 1.5, true, []any{}},
	"chain_id": {nil, "", "0", "-1", "0x1", "1.0", "01", " 1", "9223372036854775808", 1, true},
	"factory": {nil, "", "0x", "311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
		"0x311e63dfcEfe7f2c202715ef0DF01CDA82f58914", "0x0000000000000000000000000000000000000000", "0x" +
			strings.Repeat("g", 40), 7},
	"kind":       {nil, "", "Approve", "approve ", "changeArbiter", "transfer", 1},
	"sender":     {nil, "", "0x12", 1, map[string]any{}},
	"escrow":     {nil, "", "0x0000000000000000000000000000000000000000", []any{"0x"}},
	"args":       {nil, map[string]any{}, []any{}, "x", 3},
	"not_before": {-1, 1.5, "1", 1_900_000_000, 1_900_000_001, 1e18},
	"expires_at": {nil, 0, -1, 1.5, "1900000000", 1e18, 1_700_000_000},
	"max_fee": {nil, "", "0", "-1", "1e18", "0x1", 5,
		"115792089237316195423570985008687907853269984665640564039457584007913129639936", strings.Repeat("9", 79)},
	"reference": {strings.Repeat("x", 129), "a\nb", "a\x00b", 7},
	"reply_to":  {strings.Repeat("x", 129), "ä", "a\tb", 7},
	"salt":      {"", "0x", "0x12", strings.Repeat("0", 64), 7},
	"signature": {nil, "", "0x", "0x" + strings.Repeat("0", 128), 7},
	"surprise":  {1},
	"Kind":      {"approve"},
}

// A field's name in another case is another name: the schema says so, and a reader that knows the schema
// would not see what the relayer acts on.
func TestNamesHaveOneSpelling(t *testing.T) {
	t.Parallel()
	good := encode(t, create())
	for name := range good {
		upper := with(with(good, name, nil), strings.ToUpper(name), good[name])
		require.ErrorContains(t, parse(t, upper), "unknown field", name)
	}

	args := good["args"].(map[string]any)
	for name := range args {
		upper := with(with(args, name, nil), strings.ToUpper(name), args[name])
		require.ErrorContains(t, parse(t, with(good, "args", upper)), "unknown field", name)
	}
}

// A refusal is small whatever it refuses: answers are stored and published together.
func TestRefusalsAreSmall(t *testing.T) {
	t.Parallel()
	good := encode(t, create())
	fields := append(slices.Collect(maps.Keys(good)), "kind", "not_before", strings.Repeat("x", 200_000))
	for _, name := range fields {
		for _, value := range []any{json.Number(strings.Repeat("9", 240_000)), strings.Repeat("9", 240_000),
			json.Number("1e" + strings.Repeat("9", 240_000)), []any{strings.Repeat("x", 240_000)},
			map[string]any{strings.Repeat("x", 240_000): 1}} {
			err := parse(t, with(good, name, value))
			require.Error(t, err)
			require.Less(t, len(err.Error()), 2000, "%.20s", name)
		}
	}
}

func with(fields map[string]any, name string, value any) map[string]any {
	changed := map[string]any{}
	maps.Copy(changed, fields)

	if value == nil {
		delete(changed, name)
	} else {
		changed[name] = value
	}

	return changed
}

func parse(t *testing.T, fields map[string]any) error {
	t.Helper()
	body, err := json.Marshal(fields)
	require.NoError(t, err)
	raws, err := command.Split(body)
	if err != nil {
		return err
	}

	_, err = command.Parse(raws[0])

	return err
}

// Every field alone and every two of them: always a refusal that names a field, never a panic.
func TestBadFields(t *testing.T) {
	t.Parallel()
	good := encode(t, create())
	require.NoError(t, parse(t, good))
	for name, values := range bad {
		for _, value := range values {
			one := with(good, name, value)
			var problems command.Problems
			require.ErrorAs(t, parse(t, one), &problems, "%s = %#v", name, value)
			require.NotEmpty(t, problems[0].Field)
			for other, more := range bad {
				if other != name {
					require.ErrorAs(t, parse(t, with(one, other, more[len(more)-1])), &problems, "%s = %#v, %s", name, value, other)
				}
			}
		}
	}

	approve := with(with(good, "kind", "approve"), "args", nil)
	require.NoError(t, parse(t, approve))
	require.ErrorContains(t, parse(t, with(good, "kind", "approve")), "args belongs to create only")
	args := good["args"].(map[string]any)
	for name, values := range map[string][]any{
		"payee": {nil, "0x0000000000000000000000000000000000000000"}, "amount": {nil, "-1", 1},
		"releaseDelay":      {nil, "9999999999999999"},
		"approvalsRequired": {nil, 0, 256, "1"}, "arbiter": {nil, "x"}, "salt": {nil, "0x1"}, "value": {"1"},
	} {
		for _, value := range values {
			require.Error(t, parse(t, with(good, "args", with(args, name, value))), "args.%s = %#v", name, value)
		}
	}
}

func TestBadMessages(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(encode(t, create()))
	require.NoError(t, err)
	one := string(body)
	many := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	raws, err := command.Split([]byte("\n " + many(100) + "\r\n"))
	require.NoError(t, err)
	require.Len(t, raws, 100)

	for name, text := range map[string]string{"101 commands": many(101), "10 MB": strings.Repeat(" ", 10<<20)} {
		_, err := command.Split([]byte(text))
		require.ErrorIs(t, err, command.ErrTooLarge, name)
	}

	for name, text := range map[string]string{
		"nothing": "", "spaces": "  ", "text": "hello", "two": one + one, "cut off": one[:len(one)-1], "empty array": "[]",
		"deep": strings.Repeat("[", 100_000), "deep objects": strings.Repeat(`{"a":`, 10_000),
		"array in array":    "[[" + one + "]]x",
		"key twice":         `{"kind":"approve",` + one[1:],
		"key of args twice": strings.Replace(one, `"args":{`, `"args":{"salt":"",`, 1),
		"half a character":  strings.Replace(one, `"kind":"`, `"kind":"\ud800`, 1),
	} {
		_, err := command.Split([]byte(text))
		var problems command.Problems
		require.ErrorAs(t, err, &problems, name)
	}

	_, err = command.Split([]byte("{\"kind\":\"\xff\"}"))
	require.Equal(t, command.Problems{{Field: "body", Detail: "is not UTF-8"}}, err)

	for _, text := range []string{"null", "1", `"x"`, "[]", "{}", "true", "[" + one + "]",
		`{"KIND":"approve",` + one[1:], strings.Replace(one, `"salt"`, `"ſalt"`, 1)} {
		_, err := command.Parse([]byte(text))
		var problems command.Problems
		require.ErrorAs(t, err, &problems, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"chain_id":"1","kind":"approve","args":{"amount":"1"}}`))
	f.Add([]byte(`[{"version":1}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		raws, err := command.Split(body)
		if err != nil {
			return
		}

		for _, raw := range raws {
			s, err := command.Parse(raw)
			if err != nil {
				continue
			}

			again, err := json.Marshal(s)
			require.NoError(t, err)
			same, err := command.Parse(again)
			require.NoError(t, err)
			require.Equal(t, s.ID(), same.ID(), "what was understood is what is written")
		}
	})
}

func TestDecodeAnswer(t *testing.T) {
	t.Parallel()
	a, err := command.DecodeAnswer([]byte(`{"command_id":"0x1","revision":1,"state":"done","future":true}`))
	require.NoError(t, err)
	require.True(t, a.State.Final())
	for _, body := range []string{"", "[]", "{}", `{"state":"done"}`, `{"command_id":"0x1"}`} {
		_, err := command.DecodeAnswer([]byte(body))
		require.ErrorIs(t, err, command.ErrAnswer, body)
	}

	require.False(t, command.Reopened.Final())
}
