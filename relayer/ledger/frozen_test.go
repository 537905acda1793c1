package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// frozenCommit is a commit of another instance up to block 1 that stands still in the middle: its
// process is frozen. end ends it.
func (w *world) frozenCommit() (end func()) {
	ctx := w.t.Context()
	tx, err := w.DB.Begin(ctx)
	require.NoError(w.t, err)
	led := ledger.New(ledger.Config{DB: w.DB, ChainID: chain, InstanceID: "r1", EventNames: names, Publishes: publishes})
	require.NoError(w.t, ledger.Remember(ctx, led, tx, ledger.Position{Next: 1},
		ledger.Position{Next: 2, Hash: blockHash(0, 1)}))

	return func() { require.NoError(w.t, tx.Rollback(context.WithoutCancel(ctx))) }
}

// A process that is frozen in the middle of a commit holds up nobody who commits at the same
// height, or on another branch.
func TestFrozenCommitHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	end := w.frozenCommit()
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // it would wait for ever
	defer cancel()
	for n := int64(1); n < 4; n++ {
		to := w.slots.To(n+1, blockHash(0, n))
		_, err := w.led.CommitSlots(ctx, ledger.SlotCommit{Epoch: 1, From: w.slots, To: to})
		require.NoError(t, err)
		w.slots = to
	}

	require.Equal(t, []string{"2", "3"}, w.Column(`select number::text from chain_blocks order by number`),
		"the frozen one has block 1")
}

// Two commits of one height on two branches may miss each other; the next one of either finds out.
func TestBranchesThatMissEachOtherMeetOneBlockLater(t *testing.T) {
	t.Parallel()
	w := setup(t)
	end := w.frozenCommit()
	_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots,
		To: w.slots.To(2, blockHash(1, 1))})
	require.NoError(t, err)
	w.slots = w.slots.To(2, blockHash(1, 1))
	end()
	// the other one goes on after all
	_, err = w.DB.Exec(t.Context(), `insert into chain_blocks values ($1, 1, $2)`, chain, blockHash(0, 1).Hex())
	require.NoError(t, err)
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots.To(3, blockHash(1, 2))})
	met := new(ledger.BranchError)
	require.ErrorAs(t, err, &met)
	require.Equal(t, ledger.Block{Number: 1, Hash: blockHash(0, 1)}, met.Block)
}

// A stored event of another branch in the place of a new one is found, and taken back although
// nothing else knows of its block.
func TestEventOfAnotherBranchInTheWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, approved(1, 2, 1, 12))
	_, err := w.DB.Exec(t.Context(), `delete from chain_blocks where number > 1`)
	require.NoError(t, err)
	w.SetCursor(me, 2, blockHash(0, 1).Hex())
	w.Publish()
	w.reload()
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots.To(3, blockHash(1, 2)),
		Events: []contract.Event{at(approved(1, 2, 1, 13), 1)}})
	met := new(ledger.BranchError)
	require.ErrorAs(t, err, &met)
	require.Equal(t, ledger.Block{Number: 2, Hash: blockHash(0, 2)}, met.Block)
	r, err := w.led.Rollback(t.Context(), ledger.Position{Next: 3, Hash: blockHash(0, 2)},
		ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	require.True(t, r.Done)
	require.Equal(t, 1, r.Orphaned)
}

// A rollback holds the row that the leader's heartbeat is written to. One that takes long outlives
// the tenure that began it, or it would be begun again for ever.
func TestRollbackOutlivesItsTenure(t *testing.T) {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0, approved(1, 1, 1, 12))
	for _, sql := range []string{
		`create function slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(1), pg_notify('begun', ''); return null; end $$`,
		`create trigger slowly after insert on orphaned_events for each statement execute function slowly()`,
	} {
		_, err := w.DB.Exec(t.Context(), sql)
		require.NoError(t, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { // ends with the rollback
		r, err := w.led.Rollback(ctx, w.slots, ledger.Position{Next: 1})
		if err == nil && !r.Done {
			err = errors.New("not done")
		}

		done <- err
	}()
	require.Eventually(t, func() bool {
		return len(w.Column(`select '' from pg_stat_activity where wait_event = 'PgSleep'`)) == 1
	}, 10*time.Minute, time.Millisecond, "it is in the middle")
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, []string{"EscrowDeployed:orphaned", "Approved:orphaned"}, w.states())
	_, err := w.led.Rollback(ctx, w.slots, ledger.Position{Next: 1})
	require.ErrorIs(t, err, context.Canceled, "none is begun by a tenure that is over")
}

// The answer to a commit under an unmoved cursor is lost, and the server has not finished it. A reader of its
// position waits for its end: what it reads next, as the escrows that are caught up, is then of after it.
func TestThePositionIsOfAfterACommitThatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.process(0)
	w.discover(0, deployed(1, 1, 0, 11))
	late := w.late()
	require.Len(t, late, 1)
	release := w.holdAfter("constraint trigger hold after delete on late_escrows deferrable initially deferred")
	committed := make(chan error, 1)
	go func() {
		_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots,
			Events:   []contract.Event{deployed(1, 1, 0, 11)},
			Progress: []registry.Progress{{Address: escrow(1), Monitored: 1, CaughtUp: true}}})
		committed <- err
	}()
	w.awaitBlocked(1)
	loaded := make(chan error, 1)
	go func() {
		_, err := w.led.SettledPosition(t.Context(), 1)
		loaded <- err
	}()
	w.awaitBlocked(2)
	require.Len(t, w.late(), 1)
	release()
	require.NoError(t, <-committed)
	require.NoError(t, <-loaded)
	require.Empty(t, w.late())
}
