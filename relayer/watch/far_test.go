package watch_test

import (
	"context"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// slowPast is a chain whose blocks below one are read only once the gate is open.
type slowPast struct {
	watch.Source

	below atomic.Uint64
	asked chan struct{} // closed by the first reading there
	gate  chan struct{}
}

func (s *slowPast) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		if from < s.below.Load() {
			select {
			case s.asked <- struct{}{}:
			default:
			}

			select {
			case <-s.gate:
			case <-ctx.Done():
			}
		}

		for b, err := range s.Source.Read(ctx, from, to, f) {
			if !yield(b, err) {
				return
			}
		}
	}
}

// While the past of an added factory is read, the others' events are stored and published; then it comes whole, also
// what was created before its deployment, and what has ended in it.
func TestPastDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.near = 5
			second, err := testchain.Deploy(t.Context(), w.sim)
			require.NoError(t, err)
			w.createOf(second, 4)
			w.create(2)
			w.mine(1)
			past, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), second.Factory)
			require.NoError(t, err)
			w.approve(1, past.Escrows...)
			w.approve(2, past.Escrows[0]) // releases
			w.mine(40)
			slow := &slowPast{Source: w.src, asked: make(chan struct{}, 1), gate: make(chan struct{})}
			w.chain, w.leads = slow, w.src
			w.run(mode, true)
			mine := w.expectOf(w.d, w.head()-confirmations)
			w.passed()
			slow.below.Store(w.head() - confirmations)

			w.follow(second)
			<-slow.asked
			w.approve(1, mine.Escrows...)
			w.create(1)
			w.createOf(second, 1)
			w.mine(confirmations + 1)
			w.expectOf(w.d, w.head()-confirmations)
			require.Empty(t, w.out.of(past.Escrows[0]), "its past is not read yet")
			close(slow.gate)

			w.approve(2, past.Escrows[1])
			w.mine(confirmations + 1)
			truth := w.expectOf(second, w.head()-confirmations)
			require.Len(t, truth.Escrows, 5)
			require.Equal(t, 2, truth.Count("EscrowReleased"))
			require.Eventually(t, func() bool {
				return w.Column(`select count(*)::text from late_escrows`)[0] == "0"
			}, patience, 5*time.Millisecond)
			require.Empty(t, w.Column(`select kind from findings`))
		})
	}
}

// pruned is a chain that gives nothing of named contracts up to a block.
type pruned struct {
	watch.Source

	to uint64
}

func (p pruned) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	if len(f.Addresses) > 0 && from <= p.to {
		return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, chain.ErrNoHistory) }
	}

	return p.Source.Read(ctx, from, to, f)
}

// A far escrow whose past no node has holds up no other far one.
func TestAFarEscrowThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.near = 5
	second, err := testchain.Deploy(t.Context(), w.sim)
	require.NoError(t, err)
	w.createOf(second, 2)
	w.mine(1)
	lost := w.head()
	w.createOf(second, 1)
	w.mine(40 + confirmations)
	truth, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), second.Factory)
	require.NoError(t, err)
	w.chain, w.leads = pruned{w.src, lost}, w.src
	w.run(watch.FilterTopics, true)
	w.passed()
	w.follow(second)
	w.mine(1)
	require.Eventually(t, func() bool { return len(w.out.of(truth.Escrows[2])) > 0 }, patience, 5*time.Millisecond)
	require.Empty(t, w.out.of(truth.Escrows[0]))
}

// hiding is a chain whose node hides what factories deploy, unless contracts are named.
type hiding struct {
	watch.Source

	factory common.Address
}

func (h hiding) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		for b, err := range h.Source.Read(ctx, from, to, f) {
			if f.Addresses == nil {
				b.Logs = slices.DeleteFunc(slices.Clone(b.Logs), func(l types.Log) bool { return l.Address == h.factory })
			}

			if !yield(b, err) {
				return
			}
		}
	}
}

// An escrow that a past has registered above the cursor of its owner, whose node then hides its deployment, is late
// without anybody's hint.
func TestWhatIsRegisteredAboveTheCursorBecomesLate(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.mine(confirmations + 1)
	w.chain = hiding{w.src, w.d.Factory}
	w.run(watch.FilterTopics, false)
	w.passed()
	w.create(1)
	w.mine(1)
	truth, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), w.d.Factory)
	require.NoError(t, err)
	e := truth.Events[truth.Escrows[0]][1]
	_, err = registry.Record(t.Context(), w.DB, chainID, registry.Past, []registry.Discovery{{Address: e.Escrow,
		Factory: w.d.Factory, Slot: partition.Slot(e.Escrow), Block: int64(e.Log.BlockNumber),
		LogIndex: int32(e.Log.Index)}})
	require.NoError(t, err)
	w.mine(confirmations)
	require.Eventually(t, func() bool { w.mine(1); return len(w.out.of(truth.Escrows[0])) > 0 }, time.Minute,
		500*time.Millisecond)
}
