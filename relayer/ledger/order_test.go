package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

func arbiterChanged(block, tx int64, to string) contract.Event {
	return event("ArbiterChanged", 1, block, 1, tx, `{"oldArbiter":"`+account(0)+`","newArbiter":"`+to+`"}`)
}

// What the verifier finds comes after what is stored already, and yet counts in its place.
func TestRepairFoldsInTheOrderOfTheChain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0)
	w.discover(0)
	w.process(0, arbiterChanged(3, 13, account(0xb2)))
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 3,
		[]contract.Event{arbiterChanged(2, 12, account(0xb1)), approved(1, 2, 2, 12)}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{strings.ToLower(account(0xb2))}, w.Column(`select arbiter from escrow_records`))
	require.Equal(t, []string{"ArbiterChanged"}, w.Column(`select last_event_type from escrow_records`))
	_, approvals := w.record(1)
	require.Equal(t, 1, approvals)
}

// A claim lowers a cursor, and blocks are read again, from a node that has what the first one left out.
func TestReadAgainFoldsInTheOrderOfTheChain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	at2 := w.slots
	w.process(0)
	w.discover(0)
	w.process(0, arbiterChanged(3, 13, account(0xb2)))
	w.SetCursor(me, at2.Next, at2.Hash.Hex())
	w.reload()
	require.Equal(t, 1, w.process(0, arbiterChanged(2, 12, account(0xb1))).New)
	require.Equal(t, []string{strings.ToLower(account(0xb2))}, w.Column(`select arbiter from escrow_records`))
	r := w.process(0, arbiterChanged(3, 13, account(0xb2)), approved(1, 3, 2, 13))
	require.Equal(t, []int{1, 1}, []int{r.New, r.Duplicates})
	require.Equal(t, []string{strings.ToLower(account(0xb2))}, w.Column(`select arbiter from escrow_records`))
	require.Equal(t, []string{"Approved"}, w.Column(`select last_event_type from escrow_records`))
	_, approvals := w.record(1)
	require.Equal(t, 1, approvals)
}

// After a reorganisation one commit may bring back what was known and add what is new, in any order.
func TestRevivedAndNewEventsFoldInTheOrderOfTheChain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fresh uint // log index of what is new
		last  string
	}{"new first": {0, "Approved"}, "new last": {2, "ArbiterChanged"}} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.discover(0, deployed(1, 1, 0, 11))
			w.process(0)
			w.discover(0)
			w.process(0, approved(1, 2, 1, 13))
			_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
			require.NoError(t, err)
			w.reload()
			events := []contract.Event{at(approved(1, 2, 1, 13), 1), at(arbiterChanged(2, 15, account(0xb4)), 1)}
			events[1].LogIndex = c.fresh
			if c.fresh == 0 {
				events[0], events[1] = events[1], events[0]
			}

			r := w.process(1, events...)
			require.Equal(t, []int{1, 1}, []int{r.New, r.Revived})
			require.Equal(t, []string{c.last}, w.Column(`select last_event_type from escrow_records`))
			require.Equal(t, []string{strings.ToLower(account(0xb4))}, w.Column(`select arbiter from escrow_records`))
		})
	}
}

// The registry's ending is the last ending that is stored: after a false one was removed, the escrow is
// followed again, and after a rollback an earlier one counts.
func TestEndingsAreThoseOfTheEvents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, released(1, 2, 1, 12))
	w.discover(0)
	w.process(0, event("EscrowRefunded", 1, 3, 1, 13, `{"payer":"`+account(0xaa)+`","amount":"7","timestamp":"1"}`))
	state := func() []string {
		return w.Column(`select g.status || ' ' || coalesce(g.ended_block, 0) || ' ' || r.status from escrow_registry g
			join escrow_records r on r.escrow_key = g.address_key`)
	}
	require.Equal(t, []string{"refunded 3 refunded"}, state())
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 3, Hash: blockHash(0, 2)})
	require.NoError(t, err)
	w.reload()
	require.Equal(t, []string{"released 2 released"}, state())
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 2, nil, []contract.Event{released(1, 2, 1, 12)})
	require.NoError(t, err)
	require.Equal(t, []string{"active 0 created"}, state())
}

// holdAfter has transactions wait at a trigger, for each row, until release is called.
func (w *world) holdAfter(trigger string) (release func()) {
	w.t.Helper()
	ctx := w.t.Context()
	_, err := w.DB.Exec(ctx, `
		create function hold() returns trigger language plpgsql as $$
			begin perform pg_advisory_xact_lock_shared(42); return null; end $$;
		create `+trigger+` for each row execute function hold()`)
	require.NoError(w.t, err)
	tx, err := w.DB.Begin(ctx)
	require.NoError(w.t, err)
	_, err = tx.Exec(ctx, `select pg_advisory_xact_lock(42)`)
	require.NoError(w.t, err)

	return func() { require.NoError(w.t, tx.Rollback(ctx)) }
}

// awaitBlocked returns when so many transactions wait for a lock.
func (w *world) awaitBlocked(n int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		var blocked int
		err := w.DB.QueryRow(w.t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`).Scan(&blocked)

		return err == nil && blocked == n
	}, 10*time.Minute, 5*time.Millisecond)
}
