package watch_test

import (
	"context"
	"errors"
	"iter"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

func (w *world) hash(n int64) common.Hash {
	c := w.sim.Client()
	h, err := c.HeaderByNumber(w.t.Context(), big.NewInt(n))
	require.NoError(w.t, err)

	return h.Hash()
}

// lead commits the factory's blocks up to a block, which may be above what this instance may
// process: the leader's node is ahead.
func (w *world) lead(to int64) {
	at, err := w.led.FactoryPosition(w.t.Context(), 1)
	require.NoError(w.t, err)
	truth, err := testchain.ReadTruth(w.t.Context(), w.sim.Client(), 0, uint64(to), w.d.Factory)
	require.NoError(w.t, err)
	c := ledger.FactoryCommit{Epoch: 1, From: at, To: at.To(to+1, w.hash(to))}
	for _, a := range truth.Escrows {
		for _, e := range truth.Events[a] {
			if e.Name != contract.Deployed || int64(e.Log.BlockNumber) < at.Next {
				continue
			}

			ev, err := w.abi.Decode(e.Log)
			require.NoError(w.t, err)
			c.Events = append(c.Events, ev)
		}
	}

	_, err = w.led.CommitFactory(w.t.Context(), c)
	// The slot watch may have processed a block of the range, and another one since.
	for met := new(ledger.BranchError); errors.As(err, &met); {
		require.Equal(w.t, w.hash(met.Block.Number), met.Block.Hash)
		c.Checked = met.Block
		_, err = w.led.CommitFactory(w.t.Context(), c)
	}

	require.NoError(w.t, err)
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

// A reorganisation above the cursor of the owner takes a deployment to another block while nobody leads: it is
// published once, where it is now, and what the escrow emits behind it.
func TestRollbackAboveTheCursorVoidsTheBook(t *testing.T) {
	w := setup(t)
	w.mine(2)
	w.create(1)
	w.mine(1)
	created := int64(w.head())
	w.run(watch.FilterTopics, false)
	w.lead(created)
	truth, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, uint64(created), w.d.Factory)
	require.NoError(t, err)
	escrow := truth.Escrows[0]
	stale, err := w.led.FactoryPosition(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, w.sim.Reorg(t.Context(), 1, testchain.Keep))
	r, err := w.led.Rollback(t.Context(), stale, ledger.Position{Next: created, Hash: w.hash(created - 1)})
	require.NoError(t, err)
	require.True(t, r.Done)
	w.approve(1, escrow)
	w.mine(1 + confirmations)
	outbox := func() []string {
		return w.Column(`select event_type || ' ' || state from outbox_messages order by block_number, log_index`)
	}
	require.Eventually(t, func() bool { return len(outbox()) == 2 }, patience, 5*time.Millisecond)
	require.Equal(t, []string{"EscrowDeployed canonical", "Approved canonical"}, outbox())
}

// A block that a dead instance had processed turns out to be of a branch that is gone, though no
// cursor stands behind it: the owner rolls back, and goes on.
func TestRememberedBlockOfAnotherBranch(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.mine(1)
	ahead := int64(w.head()) + 2
	_, err := w.DB.Exec(t.Context(), `insert into chain_blocks values ($1, $2, $3)`, chainID, ahead,
		common.HexToHash("0xdead").Hex())
	require.NoError(t, err)
	w.run(watch.FilterTopics, true)
	w.mine(3 + confirmations)
	require.Eventually(t, func() bool {
		at, err := w.led.SlotPosition(t.Context(), 1)
		require.NoError(t, err)
		return at.Next > ahead+1 && at.Generation > 0
	}, patience, 5*time.Millisecond)
	var hash string
	require.NoError(t, w.DB.QueryRow(t.Context(), `select hash from chain_blocks where number = $1`, ahead).Scan(&hash))
	require.Equal(t, w.hash(ahead).Hex(), hash)
}

// counted is a chain that counts the batches that it gave.
type counted struct {
	outage
	given atomic.Int64
}

func (c *counted) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		for b, err := range c.outage.Read(ctx, from, to, f) {
			if err == nil {
				c.given.Add(1)
			}

			if !yield(b, err) {
				return
			}
		}
	}
}

// While a commit is under way, the blocks behind it are prepared. The cursor turns out to have
// moved: all of it is thrown away and done again, and nothing is lost or offered twice.
func TestCursorMovesUnderPreparedBlocks(t *testing.T) {
	w := setup(t)
	chain := &counted{outage: outage{Source: w.src}}
	w.chain = chain
	w.run(watch.FilterTopics, true)
	w.create(2)
	w.mine(confirmations + 1)
	w.expect(w.head() - confirmations)

	chain.on.Store(true)
	for range 8 {
		w.create(1)
		w.mine(1)
	}

	w.mine(confirmations)
	require.Eventually(t, func() bool { // nothing is under way that was read before
		at, err := w.led.FactoryPosition(t.Context(), 1)
		require.NoError(t, err)
		return at.Next > int64(w.head())-confirmations
	}, patience, 5*time.Millisecond)
	tx, err := w.DB.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `update cursors set generation = generation + 1`)
	require.NoError(t, err)
	given := chain.given.Load()
	chain.on.Store(false)
	require.Eventually(t, func() bool { return chain.given.Load() >= given+4 }, patience, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	w.expect(w.head() - confirmations)
}

// A commit of this instance is still under way, its answer was lost: what the watch and its publisher begin with is
// read after its end.
func TestALoadWaitsForACommitThatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.create(1)
	w.mine(1 + confirmations)
	commit, err := w.DB.Begin(t.Context())
	require.NoError(t, err)
	_, err = commit.Exec(t.Context(), `select from cursors for update`)
	require.NoError(t, err)
	w.run(watch.FilterTopics, true)
	require.Eventually(t, func() bool {
		return len(w.Column(`select '' from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`)) > 0
	}, patience, 5*time.Millisecond)
	reloads := w.out.reloads()
	require.NoError(t, commit.Rollback(t.Context()))
	require.Zero(t, reloads)
	w.expect(w.head() - confirmations)
}
