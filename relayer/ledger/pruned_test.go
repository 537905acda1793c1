package ledger_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// pruned is a world in which the events of an escrow that ended in block 1 were published and removed.
func pruned(t *testing.T) *world {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0, approved(1, 1, 1, 12), released(1, 1, 2, 13))
	w.Publish()
	w.Exec(`update leadership set verified_block = 1`)
	require.EqualValues(t, 3, w.retain())

	return w
}

// retain has RETENTION act on what is stored, as if that were old, and says how many events it removes.
func (w *world) retain() int64 {
	w.t.Helper()
	w.Exec(`update events set processed_at = now() - interval '2 hours'`)
	r, err := retention.Once(w.t.Context(), retention.Config{DB: w.DB, ChainID: chain, Events: time.Hour,
		Log: slog.Default()})
	require.NoError(w.t, err)

	return r.Events
}

// An escrow that has ended stays whole until its owner has caught it up, as with the past of a factory, which takes
// hours: without its EscrowDeployed the second reading would take it for invented.
func TestRetentionLeavesWhatIsStillCaughtUp(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.process(0)
	w.process(0)
	w.process(0)
	w.discover(0, deployed(1, 1, 0, 11)) // the owner has passed it
	_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: w.slots, To: w.slots,
		Events:   []contract.Event{deployed(1, 1, 0, 11), released(1, 1, 1, 12)},
		Progress: []registry.Progress{{Address: escrow(1), Monitored: 2}}})
	require.NoError(t, err)
	w.Publish()
	w.Verify(1)
	w.retain()
	w.discover(0)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 2, nil, nil)
	require.NoError(t, err)
	require.Empty(t, w.findings())
	require.Equal(t, []string{"released"}, w.Column(`select status from escrow_registry`))
	require.Len(t, w.late(), 1)
}

// RETENTION has removed an escrow that ended, and the leader reads its deployment again: it stays removed,
// and its record as it ended. The verifier goes on to know why the events are not there, and an owner that meets it.
func TestARewindLeavesWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	w := pruned(t)
	w.Exec(`update leadership set start_block = 1`)
	_, err := registry.Rewind(t.Context(), w.DB, chain, 0)
	require.NoError(t, err)
	w.reload()
	w.discover(0)
	w.discover(0, deployed(1, 1, 0, 11))
	require.Empty(t, w.late())
	status, approvals := w.record(1)
	require.Equal(t, "released", status)
	require.Equal(t, 1, approvals)
	gone, err := w.led.Pruned(t.Context(), []common.Address{escrow(1)})
	require.NoError(t, err)
	require.True(t, gone[escrow(1)])
	require.Empty(t, w.findings())
	w.process(0)
	require.Empty(t, w.messages())

	w.found = nil // the watch leaves out what Known says of it
	known, err := w.led.Known(t.Context(), []contract.Event{deployed(1, 1, 0, 11)})
	require.NoError(t, err)
	require.Equal(t, ledger.Registration{At: contract.Place{Block: 1}, Pruned: true}, known[escrow(1)])

	// Another deployment at the address is no repetition.
	require.Equal(t, 1, w.process(0, deployed(1, 3, 0, 14)).New)
	require.Equal(t, []string{"announced_again 3 1"}, w.findings())
}

// What RETENTION has removed cannot be retracted: a rollback below it is refused, and says what helps.
func TestARollbackBelowWhatRetentionRemovedIsRefused(t *testing.T) {
	t.Parallel()
	w := pruned(t)
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 1})
	require.ErrorIs(t, err, ledger.ErrPruned)
	require.ErrorContains(t, err, "restore a backup")
	w.reload()
	require.EqualValues(t, 2, w.slots.Next, "nothing was rolled back")
	w.discover(0)
	w.process(0)
	r, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	require.True(t, r.Done, "above it")
}

// An event that is larger than a message has its place in the order all the same: it is published without arguments.
func TestAnEventThatIsLargerThanAMessageIsQueued(t *testing.T) {
	t.Parallel()
	w := setup(t)
	long := `"approver":"` + strings.Repeat(`\u0001`, 800_000) + `"`
	w.discover(0, with(deployed(1, 1, 0, 11), `"amount"`, long+`,"amount"`))
	r := w.process(0, approved(1, 1, 1, 12), with(approved(1, 1, 2, 13), `"approver":"`+account(0xcc)+`"`, long),
		released(1, 1, 3, 14))
	require.Equal(t, []string{"EscrowDeployed:1", "Approved:1", "Approved:1", "EscrowReleased:1"}, ids(r.Log))
	require.Empty(t, w.findings())
	require.Equal(t, []string{"4", "4"}, append(w.Column(`select count(*)::text from events`),
		w.Column(`select count(*)::text from processed_events`)...))
	require.Equal(t, []string{"4"}, w.Column(`select count(*)::text from waiting`))
}

// A failover forgets the number that this process has just given to an event's name, and another instance
// gives it to another name: the next attempt reads the numbers again.
func TestNumbersOfEventsAreReadAgainAfterAFailover(t *testing.T) {
	t.Parallel()
	w := setup(t)
	led := ledger.New(ledger.Config{DB: w.DB, ChainID: chain, InstanceID: me,
		EventNames: append([]string{"Disputed"}, names...), Publishes: func(string) bool { return true }})
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	commit := func() error {
		_, err := led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: w.slots,
			To: w.slots.To(3, blockHash(0, 2)), Events: []contract.Event{event("Disputed", 1, 2, 0, 12, `{}`)}})
		return err
	}
	forget := func() {
		w.Exec(`delete from event_types where id > 6`) // as the standby has it
		w.Exec(`delete from outbox`)
		w.Exec(`delete from events where block_number = 2`)
		w.Exec(`delete from chain_blocks where number = 2`)
		w.SetCursor(me, 2, blockHash(0, 1).Hex())
	}
	require.NoError(t, commit())
	forget()
	require.Error(t, commit())
	require.NoError(t, commit())

	forget()
	w.Exec(`insert into event_types values (7, 'Mediated')`)
	led.Renew() // as the next tenure does
	require.NoError(t, commit())
	require.Equal(t, []string{"Disputed"}, w.Column(`select event_type from processed_events where block_number = 2`))
}
