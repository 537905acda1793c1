package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

// read decodes an answer that must be 200.
func read[T any](t *testing.T, h http.Handler, path string) (v T) {
	t.Helper()
	r := get(t, h, path)
	text := body(t, r)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", path, text)
	require.NoError(t, json.Unmarshal([]byte(text), &v))

	return v
}

func refused(t *testing.T, h http.Handler, path string, status int) problem {
	t.Helper()
	r := get(t, h, path)
	require.Equal(t, status, r.StatusCode, path)
	require.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
	var p problem
	require.NoError(t, json.Unmarshal([]byte(body(t, r)), &p))
	require.Equal(t, status, p.Status)
	require.Equal(t, http.StatusText(status), p.Title)
	require.NotEmpty(t, p.Detail)

	return p
}

func TestEscrow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(3)
	h := w.server().Handler()
	d := read[escrowDetail](t, h, "/escrows/0x"+strings.ToUpper(addressOf(3)[2:]))
	require.Equal(t, addressOf(3), d.Address)
	require.Equal(t, "relayer-"+strconv.Itoa(int(d.Slot)%3), d.Owner.Instance)
	require.True(t, d.Owner.Served)
	require.False(t, d.Owner.Adopted)
	var types []string
	for _, e := range d.Events {
		types = append(types, e.EventType)
		require.Equal(t, e.EventID, e.TxHash+":"+strconv.Itoa(int(e.LogIndex)))
	}

	require.Equal(t, []string{"EscrowDeployed", "Approved", "EscrowReleased"}, types)
	require.EqualValues(t, 2, *d.Record.ApprovalsRequired)

	// Registered, but none of its events stored: no record.
	w.Finds(testfleet.Escrow{Address: addressOf(500), Slot: 7, Block: 5, Late: true})
	d = read[escrowDetail](t, h, "/escrows/"+addressOf(500))
	require.Nil(t, d.Record)
	require.False(t, d.CaughtUp)
	require.Empty(t, d.Events)

	require.Equal(t, "address", refused(t, h, "/escrows/"+addressOf(501), http.StatusNotFound).Parameter)
	require.Equal(t, "address", refused(t, h, "/escrows/0x12", http.StatusBadRequest).Parameter)
}

// A reorganisation can leave two events at one place: the orphan and what took it.
func TestEventsOfOnePlace(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		state := map[bool]string{true: "orphaned", false: "canonical"}[id != "b"]
		w.Stores(testfleet.Event{ID: "0x" + strings.Repeat(id, 64) + ":1", Type: "Approved", Escrow: addressOf(1), Block: 50,
			Index: 1, State: state, RetractFrom: 60})
	}

	w.Queues(testfleet.Message{Escrow: addressOf(1), EventID: "0x" + strings.Repeat("b", 64) + ":1"})
	w.Finds(testfleet.Escrow{Address: addressOf(1), Block: 50})
	d := read[escrowDetail](t, w.server().Handler(), "/escrows/"+addressOf(1))
	require.Len(t, d.Events, 4)
	require.False(t, d.More)
	for _, e := range d.Events {
		canonical := strings.HasPrefix(e.EventID, "0xbbb")
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

	d := read[escrowDetail](t, w.server().Handler(), "/escrows/"+addressOf(1))
	require.Len(t, d.Events, timelineLimit)
	require.True(t, d.More)
	require.EqualValues(t, 1, d.Events[0].BlockNumber)
}

// A long value is not repeated in full.
func TestWhatCannotBeUnderstoodIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, untouchable{t})
	p := refused(t, s.Handler(), "/escrows/"+strings.Repeat("z", 500), http.StatusBadRequest)
	require.Equal(t, "address", p.Parameter)
	require.Less(t, len(p.Detail), 400)
}

func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, broken(t))
	h := s.Handler()
	p := refused(t, h, "/escrows/"+addressOf(1), http.StatusServiceUnavailable)
	require.Contains(t, p.Detail, "try again")
	require.Equal(t, retryAfter, get(t, h, "/escrows/"+addressOf(1)).Header.Get("Retry-After"))
}
