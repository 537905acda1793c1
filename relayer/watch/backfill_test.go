package watch_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// Blocks without an escrow are read by addresses while there is none to name, in ranges: the watch
// goes on to the escrows behind them.
func TestBackfillBeforeTheFirstEscrow(t *testing.T) {
	w := setup(t)
	w.mine(200)
	w.create(5)
	w.mine(50)
	w.src = openSourceWith(t, chain.Config{URLs: []string{w.sim.HTTP()}, MaxRange: 20, Proof: chain.ProveNone})
	w.run(watch.FilterAddresses, true)
	w.expect(w.head() - confirmations)
}

// unconnected is a source whose ranges never follow the blocks before them, while each of those stands.
type unconnected struct {
	watch.Source

	reads atomic.Int64
}

func (u *unconnected) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	u.reads.Add(1)

	return func(yield func(chain.Batch, error) bool) {
		for b, err := range u.Source.Read(ctx, from, to, f) {
			b.Parent = common.Hash{1}
			if !yield(b, err) {
				return
			}
		}
	}
}

// A reading that does not follow a block which stands is an error of the source: both watches wait
// longer and longer between two tries, and say what is wrong.
func TestUnconnectedReadingsArePaced(t *testing.T) {
	w := setup(t)
	w.create(1)
	w.mine(30)
	stop := w.run(watch.FilterTopics, true)
	w.expect(w.head() - confirmations)
	stop()

	w.mine(30)
	slots, leader := &unconnected{Source: w.src}, &unconnected{Source: w.src}
	w.chain, w.leads = slots, leader
	began := time.Now()
	stop = w.run(watch.FilterTopics, true)
	require.Eventually(t, func() bool { return slots.reads.Load() >= 5 && leader.reads.Load() >= 5 }, time.Minute,
		5*time.Millisecond)
	require.ErrorIs(t, w.slots.Status().Unread, chain.ErrDisagree)
	stop()
	most := 5 + int64(time.Since(began)/(50*time.Millisecond)) // the first pause has 50 ms at least
	require.LessOrEqual(t, slots.reads.Load(), most)
	require.LessOrEqual(t, leader.reads.Load(), most)

	w.chain, w.leads = nil, nil
	w.run(watch.FilterTopics, true)
	w.expect(w.head() - confirmations)
}
