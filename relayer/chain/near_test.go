package chain

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// What is near is proved by its receipts and transactions, of several blocks in a batch.
func TestNearBlocksAreProvedInBatches(t *testing.T) {
	const head, final = 2000, 1900
	chain := newChain(head, 1, 0)
	chain.seal()
	n := startNode(t, chain)
	n.finalized, n.receipts = final, true
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Finalized, MaxRange: 100})
	await(t, s, func(v View) bool { return v.Target == final })
	n.set(func() { clear(n.asked); n.batches = nil })
	logs, _ := collect(t, s, 1, final, filterA())
	require.Equal(t, chain.all(1, final), logs)

	near := final - (head - nearBlocks) + 1
	require.InDelta(t, near, n.count(rpc.GetReceipts), 20)
	require.Less(t, n.total(), 2*near+200, "items: for each block its receipts, and its header with its transactions")
	n.mu.Lock()
	defer n.mu.Unlock()
	proofs := 0
	for _, methods := range n.batches {
		if slices.Contains(methods, rpc.GetReceipts) {
			proofs++
		}
	}

	require.Less(t, proofs, near/10, "HTTP requests")
}

// Where few of the near blocks have events, their headers alone are asked for, and not those of all blocks up to the
// tip: a free endpoint's rate is spent on what is read.
func TestFewNearBlocksCostFewHeaders(t *testing.T) {
	const head, final, every = 2000, 1900, 100
	chain := newChain(head, every, 0)
	chain.seal()
	n := startNode(t, chain)
	n.finalized, n.receipts = final, true
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Finalized})
	await(t, s, func(v View) bool { return v.Target == final })
	asked := 0
	n.set(func() {
		n.lie = func(method string, params []json.RawMessage) (any, error) {
			if method == rpc.GetByNumber && strings.HasPrefix(string(params[0]), `"0x`) {
				n.set(func() { asked++ })
			}

			return nil, nil
		}
	})
	logs, _ := collect(t, s, 1, final-leapBlocks, filterA())
	require.Equal(t, chain.all(1, final-leapBlocks), logs)
	n.set(func() { require.Less(t, asked, nearBlocks/8) })
}
