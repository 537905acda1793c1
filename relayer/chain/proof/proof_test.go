package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
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
			values[i] = encode(r)
		}

		require.Equal(t, h.ReceiptHash, Root(values))
	}

	require.Greater(t, receipts, 20)
}

// encode is Receipt.Encode of a receipt as go-ethereum has it.
func encode(r *types.Receipt) []byte {
	own := Receipt{Type: r.Type, Status: r.Status, Gas: r.CumulativeGasUsed, Bloom: r.Bloom}
	if len(r.PostState) > 0 {
		own.Root = r.PostState
	}

	for _, l := range r.Logs {
		own.Logs = AppendLog(own.Logs, l.Address, l.Topics, l.Data)
	}

	return own.Encode()
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

// Receipts of every type that go-ethereum knows are encoded as it encodes them; of a deposit on the OP stack
// nonce and version come behind.
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
			require.Equal(t, b.Bytes(), encode(r))
		}
	}

	deposit := Receipt{Type: 0x7e, Status: 1, Gas: 46_913, Deposit: []uint64{130_000_000, 1}}
	b := deposit.Encode()
	require.Equal(t, byte(0x7e), b[0])
	require.True(t, bytes.HasSuffix(b, []byte{0xc0, 0x84, 0x07, 0xbf, 0xa4, 0x80, 0x01}), "%x", b)
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"hash":"0x00","number":"0x1"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) { // whatever comes, no panic
		_, _ = Header(b, common.Hash{})
		_, _ = Transaction(b)
	})
}
