package watch_test

import (
	"context"
	"iter"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// outage is a chain that cannot be read for a while.
type outage struct {
	watch.Source
	on        atomic.Bool
	behind    atomic.Int64 // so many more readings find that a node lacks the block
	reads     atomic.Int64
	canonical atomic.Int64 // headers asked for
	lost      error        // of headers, while on; nil: they can be had
}

func (o *outage) Canonical(ctx context.Context, n uint64, known common.Hash) (chain.Header, error) {
	o.canonical.Add(1)
	if o.on.Load() && o.lost != nil {
		return chain.Header{}, o.lost
	}

	return o.Source.Canonical(ctx, n, known)
}

func (o *outage) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	o.reads.Add(1)
	err := chain.ErrUnavailable
	if o.behind.Add(-1) >= 0 {
		err = chain.ErrBehind
	} else if !o.on.Load() {
		return o.Source.Read(ctx, from, to, f)
	}

	return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, err) }
}

// While the chain cannot be read, what is known of the escrows is not loaded again at each try, and
// reading goes on where it stood.
func TestUnreadableChainReloadsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	chain := &outage{Source: w.src}
	w.chain, w.leads = chain, chain
	w.run(watch.FilterAuto, true)
	w.create(2)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)

	chain.on.Store(true)
	reloads, reads, canonical := w.out.reloads(), chain.reads.Load(), chain.canonical.Load()
	w.create(2)
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return chain.reads.Load() > reads+10 }, patience, 5*time.Millisecond)
	require.Equal(t, reloads, w.out.reloads())
	require.Equal(t, canonical, chain.canonical.Load(), "of blocks whose place is known")
	chain.on.Store(false)
	w.expect(w.head() - confirmations)
}

// A block that one machine behind a URL lacks is on another: it is tried again soon, however often
// the wrong one has answered.
func TestBlockThatANodeLacksIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	w := setup(t)
	chain := &outage{Source: w.src}
	w.chain, w.leads = chain, chain
	w.run(watch.FilterAuto, true)
	w.create(1)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)

	chain.behind.Store(26) // 13 for each watch; pauses that grow to 5 s would be 26 s for each
	began := time.Now()
	w.create(1)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)
	require.Less(t, time.Since(began), 25*time.Second)
}

// A leader whose nodes do not let it read on, or do not give the block before, makes room for another
// one, wherever it stands.
func TestLeaderThatCannotReadResigns(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]error{"reading": nil, "the block before": chain.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			chain := &outage{Source: w.src, lost: what}
			w.chain, w.leads = chain, chain
			stop := w.run(watch.FilterAuto, true)
			w.create(1)
			w.mine(confirmations + 1)
			w.expect(w.head() - confirmations)
			stop()

			chain.on.Store(true)
			w.mine(1)
			leader := watch.NewFactoryWatch(watch.FactoryConfig{
				Config: watch.Config{
					Source: chain, Ledger: w.led, ABI: w.abi,
					Filters: watch.NewFilters(w.abi, w.followed(), watch.FilterAuto, 1000),
					Log:     slog.New(slog.NewTextHandler(t.Output(), nil)),
					Metrics: watch.NewMetrics(prometheus.NewRegistry(), w.abi.EventNames()),
				},
				BeatEvery: time.Second, ResignAfter: time.Second, Health: w.src.Health,
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := leader.Run(ctx, 1, func(context.Context) error { return nil })
			require.ErrorIs(t, err, watch.ErrNoProgress)
		})
	}
}

// What takes the right to publish away, as a rollback by another instance does, is noticed also while the chain
// cannot be read: else nothing is noted as sent, and the slots cannot be yielded to who can read.
func TestGenerationWhileUnreadable(t *testing.T) {
	t.Parallel()
	w := setup(t)
	chain := &outage{Source: w.src}
	w.chain, w.leads = chain, chain
	w.run(watch.FilterAuto, false)
	w.create(2)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)

	chain.on.Store(true)
	w.create(2)
	w.mine(confirmations + 1)
	reads := chain.reads.Load()
	require.Eventually(t, func() bool { return chain.reads.Load() > reads+3 }, patience, 5*time.Millisecond)
	reloads := w.out.reloads()
	w.Exec(`update cursors set generation = generation + 1`)
	w.hints <- struct{}{}
	require.Eventually(t, func() bool { return w.out.reloads() > reloads }, patience, 5*time.Millisecond)
	chain.on.Store(false)
	w.expect(w.head() - confirmations)
}
