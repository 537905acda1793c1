package testchain_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// denseChain has ten blocks with several events in a transaction.
func denseChain(t *testing.T) (*testchain.Sim, testchain.Deployment, *testchain.Traffic) {
	ctx := within(t)
	n := startSim(t, testchain.Options{GasLimit: 200_000_000})
	d, err := testchain.Deploy(ctx, n)
	require.NoError(t, err)
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: n.HTTP(), Deployment: d, Accounts: n.Accounts()[:9], Seed: 1, Mix: testchain.DenseMix(),
	})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 10 {
		require.NoError(t, traffic.Step(ctx, 10))
		require.NoError(t, n.Mine(ctx, 1))
	}

	require.NoError(t, traffic.Settle(ctx))
	require.Equal(t, 100, succeeded(t, n, d))

	return n, d, traffic
}

// contents are the events of the escrows by id.
func contents(truth *testchain.Truth) map[string]string {
	m := map[string]string{}
	for _, escrow := range truth.Escrows {
		for _, e := range truth.Events[escrow] {
			m[e.ID] = e.Name + " of " + escrow.Hex()
		}
	}

	return m
}

// A shift by one gives ids to other events, in the same blocks; a shift by nothing gives them back.
func TestRebuildMovesLogIndexes(t *testing.T) {
	t.Parallel()
	n, d, _ := denseChain(t)
	before := readTruth(t, n, d)
	require.NoError(t, n.Rebuild(within(t), testchain.Rebuild{Depth: 6, Shift: 1}))
	after := readTruth(t, n, d)

	require.Equal(t, before.Escrows, after.Escrows, "in the same order")
	same, other := 0, 0
	old := contents(before)
	for id, what := range contents(after) {
		switch old[id] {
		case "":
		case what:
			same++
		default:
			other++
		}
	}

	t.Logf("%d events, %d ids as before, %d ids of other events", after.Count(), same, other)
	require.Positive(t, same)
	require.Greater(t, other, 20)
	for _, escrow := range before.Escrows {
		require.Equal(t, names(before.Events[escrow]), names(after.Events[escrow]))
		for i, e := range before.Events[escrow] {
			moved := after.Events[escrow][i].Log
			require.Equal(t, e.Log.BlockNumber, moved.BlockNumber)
			if e.Log.BlockHash != moved.BlockHash {
				require.Equal(t, e.Log.Index+1, moved.Index)
			}
		}
	}

	require.NoError(t, n.Rebuild(within(t), testchain.Rebuild{Depth: 8}))
	require.Equal(t, old, contents(readTruth(t, n, d)))
}

// What chance decides leaves a chain on which traffic goes on.
func TestRebuildAtRandom(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n, d, traffic := denseChain(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 6 {
		require.NoError(t, n.Rebuild(ctx, testchain.Rebuild{Depth: 3 + i, Shift: 3, Random: random}))
		require.NoError(t, traffic.Step(ctx, 10))
		require.NoError(t, n.Mine(ctx, 1))
	}

	require.NoError(t, traffic.Settle(ctx))
	require.Equal(t, 6, traffic.Stats().Resyncs)
	truth := readTruth(t, n, d)
	require.Equal(t, traffic.Stats().Open, len(truth.Escrows)-truth.Count("EscrowReleased", "EscrowRefunded"))
}

// The chain refuses a fork, and a change of its time, while a transaction waits. Both wait for the pool
// to be empty, however many others send meanwhile.
func TestReorgWhileOthersSend(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{Accounts: 4})
	require.NoError(t, n.Mine(ctx, 3))
	sending, stop := context.WithCancel(ctx)
	var senders sync.WaitGroup
	for i := range n.Accounts() {
		senders.Go(func() {
			w, err := testchain.OpenWallet(ctx, n.Client(), n.Accounts()[i])
			if err != nil {
				t.Error(err)
				return
			}

			for sending.Err() == nil {
				// A reorganisation takes back what was sent: the nonces are read again.
				_ = w.Sync(sending)
				_, _ = w.Send(sending, 0, testchain.Call{To: &n.Accounts()[i].Address, Gas: 21_000})
			}
		})
	}

	for range 15 {
		require.NoError(t, n.Reorg(ctx, 1, testchain.Drop))
		require.NoError(t, n.AdvanceTime(ctx, time.Minute))
	}

	stop()
	senders.Wait()
}
