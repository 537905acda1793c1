package watch_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// broken is a chain of which nothing can be read: every question gets the same error.
type broken struct {
	watch.Source
	err   error
	tries atomic.Int64
}

func (b *broken) Read(context.Context, uint64, uint64, *chain.Filter) iter.Seq2[chain.Batch, error] {
	b.tries.Add(1)
	return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, b.err) }
}

func (b *broken) Canonical(context.Context, uint64, common.Hash) (chain.Header, error) {
	b.tries.Add(1)
	return chain.Header{}, b.err
}

// An instance that starts while the chain cannot be read loads its escrows once. It does not load
// them again at each try, be it that no endpoint answers or that they contradict each other.
func TestStartOnAnUnreadableChainLoadsOnce(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"unavailable": fmt.Errorf("header of block 3: %w", chain.ErrUnavailable),
		"disagree":    fmt.Errorf("header of block 3: %w", chain.ErrDisagree),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			stop := w.run(watch.FilterAuto, true)
			w.create(2)
			w.mine(confirmations + 1)
			w.expect(w.head() - confirmations)
			stop()

			w.create(2)
			w.mine(confirmations + 1)
			chain := &broken{Source: w.src, err: err}
			w.chain = chain
			reloads := w.out.reloads()
			stop = w.run(watch.FilterAuto, false)
			require.Eventually(t, func() bool { return chain.tries.Load() > 5 }, patience, 5*time.Millisecond)
			require.LessOrEqual(t, w.out.reloads()-reloads, 1)
			stop()

			w.chain = nil
			w.run(watch.FilterAuto, true)
			w.expect(w.head() - confirmations)
		})
	}
}
