package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// messages are what waits for Pub/Sub: event id, type, escrow, kind.
func (w *world) messages() []string {
	return w.Column(`select right(event_id, -64) || ' ' || event_type || ' of ' || right(escrow, 1) || ' ' || kind
		from outbox_messages ` + inOrder)
}

// reorganise goes back to block 1, with everything published.
func (w *world) reorganise() {
	w.Publish()
	_, err := w.led.Rollback(w.t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(w.t, err)
	w.reload()
}

// One transaction, an approval that releases at once, is mined again one log index later: the
// second event gets the first one's index.
func TestLogsShiftIntoEachOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, approved(1, 2, 5, 77), released(1, 2, 6, 77))
	w.reorganise()
	w.discover(1)
	r := w.process(1, at(approved(1, 2, 6, 77), 1), at(released(1, 2, 7, 77), 1))
	require.Equal(t, []int{2, 0, 2}, []int{r.New, r.Revived, r.Retracted})
	require.Equal(t, []string{
		"4d:6:1 Approved of 1 event", "4d:7 EscrowReleased of 1 event",
		"4d:5 Approved of 1 retraction", "4d:6 EscrowReleased of 1 retraction",
	}, w.messages())
	require.Equal(t, []string{"Approved", "EscrowReleased"},
		w.Column(`select event_type from processed_events where state = 'canonical' and block_number = 2
					order by log_index`))
	status, approvals := w.record(1)
	require.Equal(t, "released", status)
	require.Equal(t, 1, approvals)
	require.Equal(t, []string{"4d:7"}, w.Column(`select right(last_event_id, -64) from escrow_records`))
}

// A transaction that deploys two escrows is mined again in another place: the second one's
// deployment has the id that the first one's had, or they swap.
func TestDeploymentsShiftIntoEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second uint
		want          []string
	}{
		"shifted": {6, 7, []string{"4d:6:1 EscrowDeployed of 1 event", "4d:7 EscrowDeployed of 2 event",
			"4d:5 EscrowDeployed of 1 retraction", "4d:6 EscrowDeployed of 2 retraction"}},
		"swapped": {6, 5, []string{"4d:5:1 EscrowDeployed of 2 event", "4d:6:1 EscrowDeployed of 1 event",
			"4d:5 EscrowDeployed of 1 retraction", "4d:6 EscrowDeployed of 2 retraction"}},
		"the same": {5, 6, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.discover(0)
			w.process(0)
			w.discover(0, deployed(1, 2, 5, 77), deployed(2, 2, 6, 77))
			w.process(0)
			w.reorganise()
			again := []contract.Event{at(deployed(1, 2, c.first, 77), 1), at(deployed(2, 2, c.second, 77), 1)}
			if c.first > c.second {
				again[0], again[1] = again[1], again[0]
			}

			w.discover(1, again...)
			w.process(1)
			w.discover(1)
			w.process(1)
			require.ElementsMatch(t, c.want, w.messages())
			require.Equal(t, []string{"active true", "active true"},
				w.Column(`select status || ' ' || caught_up from escrow_registry`))
			require.Equal(t, []string{again[0].Escrow.Hex()[41:], again[1].Escrow.Hex()[41:]},
				w.Column(`select right(escrow, 1) from processed_events where state = 'canonical' and block_number = 2
					order by log_index`))
			require.Len(t, w.Column(`select r.event_id from escrow_registry r
				join processed_events p using (chain_id, event_id) where p.state = 'canonical' and p.escrow = r.address`), 2)
			require.Len(t, w.Column(`select r.last_event_id from escrow_records r
				join processed_events p on p.event_id = r.last_event_id and p.escrow = r.escrow where p.state = 'canonical'`), 2)
		})
	}
}

// The most ordinary transaction, createEscrow: EscrowCreated takes the index that EscrowDeployed
// had, or the other way round.
func TestCreationShiftsIntoItself(t *testing.T) {
	t.Parallel()
	for name, shift := range map[string]int{"later": +1, "earlier": -1} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.discover(0)
			w.process(0)
			created := func(index uint) contract.Event { return event("EscrowCreated", 1, 2, index, 77, `{"releaseTime":"5"}`) }
			w.discover(0, deployed(1, 2, 6, 77))
			w.process(0, created(5))
			w.reorganise()
			w.discover(1, at(deployed(1, 2, uint(6+shift), 77), 1))
			w.process(1, at(created(uint(5+shift)), 1))
			w.discover(1)
			w.process(1)
			want := map[int]string{+1: "4d:7 EscrowDeployed of 1 event", -1: "4d:5 EscrowDeployed of 1 event"}[shift]
			require.ElementsMatch(t, []string{want, "4d:6 EscrowDeployed of 1 retraction"}, w.messages())
			require.Equal(t, []string{"EscrowCreated", "EscrowDeployed"},
				w.Column(`select event_type from processed_events where state = 'canonical' and block_number = 2 order by log_index`))
		})
	}
}

// A chain that goes from A to B, back to A, and to B again: what was retracted never comes back
// under an id that consumers have forgotten.
func TestAnIDIsNeverPublishedAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	seen := map[string]bool{}
	for round, branch := range []byte{0, 1, 0, 1} {
		w.discover(branch)
		r := w.process(branch, at(approved(1, 2, uint(branch), 77), branch))
		require.NotEmpty(t, r.Log)
		id := r.Log[0].Event.ID()
		require.False(t, seen[id], "%s in round %d", id, round)
		seen[id] = true
		w.Publish()
		_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
		require.NoError(t, err)
		w.reload()
	}

	require.Len(t, seen, 4)
}

// A retraction that is queued and not sent yet is sent, and what reappears then is another event to consumers.
func TestWhatReappearsAfterItsRetractionWasQueued(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, approved(1, 2, 5, 77))
	w.reorganise()
	w.discover(1)
	require.Equal(t, 1, w.process(1).Retracted)
	w.discover(1)
	again := approved(1, 3, 5, 77)
	w.process(1, at(again, 1))
	require.Equal(t, []string{"4d:5 Approved of 1 retraction", "4d:5:1 Approved of 1 event"}, w.messages())
}

// What a consumer keeps is in the order of the chain: an event that comes back behind a new one is
// published again behind it.
func TestWhatComesBackBehindSomethingNewIsPublishedAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, approved(1, 2, 5, 77), approved(1, 2, 6, 78))
	w.reorganise()
	w.discover(1)
	w.process(1, at(approved(1, 2, 4, 79), 1), at(approved(1, 2, 5, 77), 1), at(approved(1, 2, 6, 78), 1))
	require.Equal(t, []string{
		"4f:4 Approved of 1 event", "4d:5:1 Approved of 1 event", "4e:6:1 Approved of 1 event",
		"4d:5 Approved of 1 retraction", "4e:6 Approved of 1 retraction",
	}, w.messages())
}
