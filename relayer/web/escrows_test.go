package web

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

func TestEscrow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(3)
	s := w.server()
	v, status := s.search(t.Context(), "0x"+strings.ToUpper(addressOf(3)[2:]))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, addressOf(3), v.Address)
	require.Equal(t, "released", v.Status)
	facts := map[string]string{}
	for _, f := range v.Facts {
		facts[f.Name] = f.Value
	}

	slot := slotOf(t, addressOf(3))
	require.Equal(t, "relayer-"+strconv.Itoa(int(slot)%3), facts["Served by"])
	require.Equal(t, fmt.Sprint(slot), facts["Slot"])
	require.Equal(t, "1 of 2", facts["Approvals"])
	var types []string
	for _, e := range v.Events {
		types = append(types, e.EventType)
	}

	require.Equal(t, []string{"EscrowDeployed", "Approved", "EscrowReleased"}, types)

	// Registered, but none of its events stored: no record.
	w.Finds(testfleet.Escrow{Address: addressOf(500), Slot: 7, Block: 5, Late: true})
	e, events, err := s.lookUp(t.Context(), addressOf(500))
	require.NoError(t, err)
	require.Equal(t, "active", e.Status)
	require.Nil(t, e.Approvals)
	require.False(t, e.CaughtUp)
	require.Empty(t, events)
	_, _, err = s.lookUp(t.Context(), addressOf(501))
	require.ErrorIs(t, err, errUnknown)
}

// A reorganisation can leave two events at one place: the orphan and what took it.
func TestEventsOfOnePlace(t *testing.T) {
	t.Parallel()
	w := setup(t)
	hash := func(of string) string { return "0x" + strings.Repeat(of, 64) }
	for _, id := range []string{"a", "b", "c", "d"} {
		state := map[bool]string{true: "orphaned", false: "canonical"}[id != "b"]
		w.Stores(testfleet.Event{ID: hash(id) + ":1", Type: "Approved", Escrow: addressOf(1), Block: 50,
			Index: 1, State: state, RetractFrom: 60})
	}

	w.Queues(testfleet.Message{Escrow: addressOf(1), EventID: hash("b") + ":1"})
	w.Finds(testfleet.Escrow{Address: addressOf(1), Block: 50})
	_, events, err := w.server().lookUp(t.Context(), addressOf(1))
	require.NoError(t, err)
	require.Len(t, events, 4)
	for _, e := range events {
		canonical := e.TxHash == hash("b")
		require.Equal(t, map[bool]string{true: "canonical", false: "orphaned"}[canonical], e.State)
		require.Equal(t, canonical, e.Queued)
	}
}

func TestTimelineIsBounded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.Finds(testfleet.Escrow{Address: addressOf(1), Block: 1})
	for n := range timelineLimit + 1 {
		w.Stores(testfleet.Event{ID: fmt.Sprintf("0x%064x:1", n), Type: "Approved", Escrow: addressOf(1), Block: int64(n + 1),
			Index: 1})
	}

	v, _ := w.server().search(t.Context(), addressOf(1))
	require.Len(t, v.Events, timelineLimit)
	require.True(t, v.More)
	require.EqualValues(t, 1, v.Events[0].BlockNumber)
}

func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, broken(t))
	v, status := s.search(t.Context(), addressOf(1))
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, v.Problem, "try again")
}
