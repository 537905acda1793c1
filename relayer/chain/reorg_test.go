package chain

import (
	"context"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// A reorganisation whose heads were not all seen: the ring has headers of the old branch, a gap,
// and the new head. What is below the gap must not be taken for an ancestor of the head.
func TestHeadersBelowAGapAreNotTakenForAncestors(t *testing.T) {
	sim := testchain.NewSim(t, testchain.Options{})
	require.NoError(t, sim.Mine(t.Context(), 17))
	s, err := New(Config{URLs: []string{sim.HTTP()}, ChainID: sim.ChainID().Uint64(), Confirmations: 3})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	n := s.nodes[0]
	head := func() Header {
		c := rpc.ByTag("latest")
		require.NoError(t, n.Do(t.Context(), c))
		var h Header
		require.NoError(t, c.Decode(&h))

		return h
	}
	s.arrived(context.WithoutCancel(t.Context()), n, head())
	before, err := s.chain(t.Context(), 14, 15)
	require.NoError(t, err)
	require.NoError(t, sim.Reorg(t.Context(), 3, testchain.Drop)) // blocks 15 to 17
	require.NoError(t, sim.Mine(t.Context(), 1))
	s.arrived(context.WithoutCancel(t.Context()), n, head()) // block 19; 18 was never announced
	after, err := s.chain(t.Context(), 15, 15)
	require.NoError(t, err)
	require.NotEqual(t, before[1].Hash, after[0].Hash)
	require.Equal(t, before[0].Hash, after[0].Parent)
	require.NotEqual(t, common.Hash{}, after[0].Hash)
}
