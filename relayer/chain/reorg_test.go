package chain

import (
	"context"
	"errors"
	"testing"
	"time"

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
	s := New(Config{URLs: []string{sim.HTTP()}, ChainID: sim.ChainID().Uint64(), Confirmations: 3})
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
	before, err := s.Canonical(t.Context(), 15, common.Hash{})
	require.NoError(t, err)
	require.NoError(t, sim.Reorg(t.Context(), 3, testchain.Drop)) // blocks 15 to 17
	require.NoError(t, sim.Mine(t.Context(), 1))
	s.arrived(context.WithoutCancel(t.Context()), n, head()) // block 19; 18 was never announced
	after, err := s.Canonical(t.Context(), 15, common.Hash{})
	require.NoError(t, err)
	require.NotEqual(t, before.Hash, after.Hash)
	require.Equal(t, before.Parent, after.Parent)
	require.NotEqual(t, common.Hash{}, after.Hash)
}

// While one endpoint is on a new branch and the other on the old one, the new one's head says nothing of how deep
// a block of the old one lies.
func TestDepthCountsOnTheAgreedBranch(t *testing.T) {
	chain := newChain(25, 1, 0)
	other := chain.fork(23, 1, 1)
	first, second := startNode(t, chain), startNode(t, chain)
	s := start(t, Config{URLs: []string{first.server.URL, second.server.URL}, ChainID: 1, Confirmations: 3,
		believeAfter: time.Hour})
	await(t, s, func(v View) bool { tip, _ := s.outlook.agreement.Tip(); return v.Target == 22 && tip.number == 25 })
	first.set(func() { first.chain, first.head = other, 26 })
	await(t, s, func(View) bool { return s.Endpoints()[0].Head == 26 })
	require.EqualValues(t, 22, s.View().Target, "what one endpoint has is no depth")
	for b, err := range s.Read(t.Context(), 22, 23, filterA()) {
		require.Error(t, err, "block %s at height %d is one endpoint's word, and the other has no block on it that deep",
			b.Last.Hash, b.To)
		require.True(t, errors.Is(err, ErrDisagree) || errors.Is(err, ErrBehind), err)
	}

	second.set(func() { second.chain, second.head = other, 26 })
	await(t, s, func(View) bool { tip, _ := s.outlook.agreement.Tip(); return tip.number == 26 })
	got, _ := collect(t, s, 22, 23, filterA())
	require.Equal(t, other.all(22, 23), got)
}

// Machines behind both endpoints of an instance may stay on a branch that the chain has left, and show it as the newest
// for a while. Another instance has processed a block of the chain by then: nothing takes it back that lies less deep.
func TestNothingIsTakenBackForAShallowerBlock(t *testing.T) {
	stale := newChain(25, 1, 0)
	chain, deeper := stale.fork(24, 1, 1), stale.fork(24, 1, 2)
	deeper.grow(1, 2)
	first, second := startNode(t, stale), startNode(t, stale)
	s := start(t, Config{URLs: []string{first.server.URL, second.server.URL}, ChainID: 1, Confirmations: 3,
		believeAfter: time.Hour})
	await(t, s, func(View) bool { tip, _ := s.outlook.agreement.Tip(); return tip.number == 25 })
	known := chain.headers[24].Hash
	_, err := s.Canonical(t.Context(), 24, known)
	require.ErrorIs(t, err, ErrBehind, "block 24 of the branch that was left is one deep")

	for _, n := range []*testNode{first, second} {
		n.set(func() { n.chain, n.head = deeper, 27 })
	}

	await(t, s, func(View) bool { tip, _ := s.outlook.agreement.Tip(); return tip.number == 27 })
	h, err := s.Canonical(t.Context(), 24, known)
	require.NoError(t, err)
	require.Equal(t, deeper.headers[24].Hash, h.Hash)
}
