package watch_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// naming is a chain whose nodes give logs of named contracts only.
type naming struct {
	watch.Source
	refused atomic.Int64
}

func (n *naming) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	if f.Addresses != nil {
		return n.Source.Read(ctx, from, to, f)
	}

	n.refused.Add(1)

	return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, chain.ErrAddressRequired) }
}

// LOG_FILTER=auto follows a chain whose nodes want addresses named, from the empty book on, whichever
// watch is told so.
func TestAutoFollowsWhereAddressesAreWanted(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(w *world, c *naming){
		"the slot watch":    func(w *world, c *naming) { w.chain = c },
		"the factory watch": func(w *world, c *naming) { w.leads = c },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			chain := &naming{Source: w.src}
			refuse(w, chain)
			w.run(watch.FilterAuto, true)
			w.create(2)
			w.mine(confirmations + 1)
			truth := w.expect(w.head() - confirmations)
			for i := range 2 {
				w.create(2)
				w.approve(1, truth.Escrows[i])
				w.mine(1)
			}

			w.mine(confirmations)
			w.expect(w.head() - confirmations)
			require.LessOrEqual(t, chain.refused.Load(), int64(20))
		})
	}
}
