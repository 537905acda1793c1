package watch_test

import (
	"context"
	"iter"
	"math/big"
	"strconv"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// createOf has another factory deploy escrows.
func (w *world) createOf(d testchain.Deployment, n int) {
	var calls []testchain.Call
	for range n {
		data := factory.PackCreateEscrow(w.sim.Accounts()[1].Address, new(big.Int), 2, w.sim.Accounts()[2].Address)
		calls = append(calls, testchain.Call{To: &d.Factory, Data: data, Value: big.NewInt(1000)})
	}

	w.send(0, calls...)
}

// expectOf is expect for another factory, which each of its events names.
func (w *world) expectOf(d testchain.Deployment, to uint64) *testchain.Truth {
	first := w.d
	w.d = d
	truth := w.expect(to)
	w.d = first
	for _, a := range truth.Escrows {
		require.Equal(w.t, []common.Address{d.Factory}, w.out.factoriesOf(a))
	}

	return truth
}

// follow adds a factory, as `escrow-relayer factory add` does.
func (w *world) follow(d testchain.Deployment) {
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.DB, func(tx pgx.Tx) error {
		return registry.AddFactories(w.t.Context(), tx, chainID,
			[]registry.Factory{{Address: d.Factory, Start: int64(d.Block)}})
	}))
}

// A factory is added with its past while the fleet runs: its escrows come in order, complete, and with its name; the
// others' go on.
func TestFactoryIsAddedWithItsPast(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses, watch.FilterAuto} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			second, err := testchain.Deploy(t.Context(), w.sim)
			require.NoError(t, err)
			w.createOf(second, 4)
			w.mine(1)
			past, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), second.Factory)
			require.NoError(t, err)
			w.approve(1, past.Escrows...)
			w.approve(2, past.Escrows[0]) // releases
			w.create(2)
			w.mine(30)
			w.run(mode, true)
			w.expectOf(w.d, w.head()-confirmations)
			require.Empty(t, w.out.of(past.Escrows[0]))

			w.follow(second)
			w.createOf(second, 2)
			w.create(2)
			w.mine(1)
			w.approve(2, past.Escrows[1])
			w.mine(confirmations + 1)
			truth := w.expectOf(second, w.head()-confirmations)
			require.Len(t, truth.Escrows, 6)
			require.Equal(t, 2, truth.Count("EscrowReleased"))
			require.Len(t, w.expectOf(w.d, w.head()-confirmations).Escrows, 4)
			require.Eventually(t, func() bool {
				return w.Column(`select coalesce(past_block::text, 'read') from factories where id = 2`)[0] == "read"
			}, patience, 5*time.Millisecond)
			require.Empty(t, w.Column(`select kind from findings`))
			require.LessOrEqual(t, w.verified(), int64(second.Block)-1, "the second reading has yet to see its past")
		})
	}
}

// A factory is retired at the newest head that the fleet has seen: what was deployed before is followed, though nobody
// has read it yet; what is deployed later is not, until the factory is followed again. Its escrows are followed to
// their end.
func TestFactoryIsRetired(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.create(1)
	w.mine(confirmations + 1)
	w.run(watch.FilterTopics, true)
	before := w.expect(w.head() - confirmations)
	w.create(1)
	w.mine(1)
	w.Exec(`insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status,
		lock_key, head_block) values ($1, 'heartbeats', 0, 1, 'modulo', 'active', 0, $2)`, int64(chainID), int64(w.head()))
	cursor := strconv.FormatUint(w.head()-confirmations+1, 10) // once the last block is processed
	require.Eventually(t, func() bool { return w.Column(`select next_block::text from leadership`)[0] == cursor },
		patience, 5*time.Millisecond)
	change := func(do func(tx pgx.Tx) error) { require.NoError(t, pgx.BeginFunc(t.Context(), w.DB, do)) }
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), w.DB, func(tx pgx.Tx) error {
		_, err := registry.RetireFactory(t.Context(), tx, chainID, w.d.Factory, 1)
		return err
	}), "before block "+cursor+" are followed already")
	change(func(tx pgx.Tx) error {
		require.ErrorIs(t, registry.FollowFactory(t.Context(), tx, chainID, w.d.Factory), registry.ErrUnknownFactory)
		retired, err := registry.RetireFactory(t.Context(), tx, chainID, w.d.Factory, 0)
		require.EqualValues(t, w.head()+1, retired)

		return err
	})
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations) // both
	w.create(1)
	w.approve(1, before.Escrows[0])
	w.approve(2, before.Escrows[0])
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return len(w.out.of(before.Escrows[0])) == 4 }, patience, 5*time.Millisecond)
	require.Equal(t, []string{"2"}, w.Column(`select count(*)::text from escrows`))

	change(func(tx pgx.Tx) error { return registry.FollowFactory(t.Context(), tx, chainID, w.d.Factory) })
	w.create(1)
	w.mine(confirmations + 1)
	require.Len(t, w.expect(w.head()-confirmations).Escrows, 4)
}

// unread is a chain that gives nothing of one contract's past, as where every node has pruned it.
type unread struct {
	watch.Source

	past common.Address
}

func (u unread) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	if len(f.Addresses) == 1 && f.Addresses[0] == u.past {
		return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, chain.ErrNoHistory) }
	}

	return u.Source.Read(ctx, from, to, f)
}

// The past of a factory that no node can read holds up no other factory's.
func TestAPastThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	second, err := testchain.Deploy(t.Context(), w.sim)
	require.NoError(t, err)
	third, err := testchain.Deploy(t.Context(), w.sim)
	require.NoError(t, err)
	w.createOf(third, 2)
	w.create(1)
	w.mine(confirmations + 1)
	w.leads = unread{w.src, second.Factory}
	w.run(watch.FilterTopics, true)
	w.passed()
	require.Eventually(t, func() bool {
		return w.Column(`select next_block::text from leadership`)[0] ==
			strconv.FormatUint(w.head()-confirmations+1, 10)
	}, patience, 5*time.Millisecond)
	w.follow(second)
	w.follow(third)
	w.mine(1)
	w.expectOf(third, w.head()-confirmations)
}
