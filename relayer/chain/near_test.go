package chain

import (
	"slices"
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
	require.InDelta(t, near, n.count(rpc.GetByHash), 20, "transactions")
	n.mu.Lock()
	defer n.mu.Unlock()
	proofs := 0
	for _, methods := range n.batches {
		if slices.Contains(methods, rpc.GetReceipts) || slices.Contains(methods, rpc.GetByHash) {
			proofs++
		}
	}

	require.Less(t, proofs, near/2, "HTTP requests, of which three per block were made one by one")
}
