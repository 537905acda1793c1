package watch_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// outage is a chain that cannot be read for a while.
type outage struct {
	watch.Source
	on    atomic.Bool
	reads atomic.Int64
}

func (o *outage) Read(ctx context.Context, from, to uint64, f *source.Filter) iter.Seq2[source.Batch, error] {
	o.reads.Add(1)
	if !o.on.Load() {
		return o.Source.Read(ctx, from, to, f)
	}

	return func(yield func(source.Batch, error) bool) { yield(source.Batch{}, source.ErrUnavailable) }
}

// While the chain cannot be read, what is known of the escrows is not loaded again at each try, and
// reading goes on where it stood.
func TestUnreadableChainReloadsNothing(t *testing.T) {
	w := setup(t)
	chain := &outage{Source: w.src}
	w.chain = chain
	w.run(watch.FilterAuto, true)
	w.create(2)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)

	chain.on.Store(true)
	reloads, reads := w.out.reloads(), chain.reads.Load()
	w.create(2)
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return chain.reads.Load() > reads+5 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, reloads, w.out.reloads())
	chain.on.Store(false)
	w.expect(w.head() - confirmations)
}
