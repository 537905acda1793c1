package watch_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// apart is a chain behind a gateway: the first range of a catching up is of a machine on another branch,
// and the next range of the cursor's, so that the source ends the reading after the first.
type apart struct {
	watch.Source
	late atomic.Bool // what is named now is read to be caught up
	lied atomic.Int32
	n    uint64 // last block of the first range
	goes bool   // the source goes on after the first range, as where a node tells no parent
}

func (c *apart) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	if !c.late.Load() || len(f.Addresses) == 0 || from > c.n || to <= c.n || c.lied.Add(1) > 1 {
		return c.Source.Read(ctx, from, to, f)
	}

	return func(yield func(chain.Batch, error) bool) {
		for b, err := range c.Source.Read(ctx, from, c.n, f) {
			if err != nil {
				yield(b, err)
				return
			}

			for i := range b.Logs { // the other branch: the same block numbers, other hashes, other transactions
				b.Logs[i].BlockHash[0] ^= 0xff
				b.Logs[i].TxHash[0] ^= 0xff
			}

			b.Last.Hash[0] ^= 0xff
			if c.goes { // it has not got what the chain has
				b.Logs = nil
			}

			if !yield(b, nil) {
				return
			}
		}

		if !c.goes {
			yield(chain.Batch{}, chain.ErrDisagree)
			return
		}

		for b, err := range c.Source.Read(ctx, c.n+1, to, f) {
			if !yield(b, err) {
				return
			}
		}
	}
}

// What an escrow that was registered late is caught up with is of the cursor's branch before any of it
// is committed, and before the progress passes what it left out.
func TestCatchingUpStaysOnTheBranchOfTheCursor(t *testing.T) {
	t.Parallel()
	for name, goes := range map[string]bool{"other logs": false, "no logs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(1)
			w.mine(1)
			early, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), w.d.Factory)
			require.NoError(t, err)
			w.approve(1, early.Escrows[0])
			w.mine(1)
			gateway := &apart{Source: w.src, n: w.head(), goes: goes}
			w.mine(40)
			w.chain, w.leads = overlooking{w.src, w.d.Factory}, w.src
			stop := w.run(watch.FilterTopics, false)
			require.Eventually(t, func() bool {
				at, err := w.led.SlotPosition(t.Context(), 1)
				require.NoError(t, err)
				return at.Next > int64(w.head()-confirmations)
			}, patience, 10*time.Millisecond)
			stop()

			w.chain = gateway
			gateway.late.Store(true)
			w.run(watch.FilterTopics, true)
			w.expect(w.head() - confirmations)
			require.Positive(t, gateway.lied.Load())
			require.Equal(t, []string{"2"}, w.Column(`select count(*)::text from processed_events
				where event_type in ('EscrowDeployed', 'Approved') and state = 'canonical'`))
		})
	}
}
