package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
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

// all reads every page of a list and returns what pick finds on each.
func all[P, T any](t *testing.T, h http.Handler, path string, pick func(P) ([]T, *string)) (rows []T, pages int) {
	t.Helper()
	cursor := ""
	for {
		got, next := pick(read[P](t, h, path+cursor))
		rows = append(rows, got...)
		pages++
		if next == nil {
			return rows, pages
		}

		cursor = "&cursor=" + url.QueryEscape(*next)
	}
}

func escrowsOf(p escrowPage) ([]escrow, *string) { return p.Escrows, p.Next }
func eventsOf(p eventPage) ([]event, *string)    { return p.Events, p.Next }

func TestEscrows(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(30)
	// The same address on another chain must not show.
	w.Of(1).Finds(testfleet.Escrow{Address: addressOf(900), Block: 1, Late: true})
	h := w.server().Handler()

	found, pages := all(t, h, "/escrows?limit=7", escrowsOf)
	require.Len(t, found, 30)
	require.Equal(t, 5, pages)
	require.True(t, slices.IsSortedFunc(found, func(a, b escrow) int { return strings.Compare(a.Address, b.Address) }))
	found, pages = all(t, h, "/escrows?limit=30", escrowsOf)
	require.Len(t, found, 30)
	require.Equal(t, 1, pages, "a full last page is the last page")

	released, _ := all(t, h, "/escrows?status=released&limit=3", escrowsOf)
	require.Len(t, released, 10)
	for _, e := range released {
		require.Equal(t, "released", e.Status)
		require.Equal(t, "released", e.Record.Status)
		require.Equal(t, *e.Amount, *e.Record.SettledAmount)
	}

	require.Empty(t, read[escrowPage](t, h, "/escrows?status=orphaned").Escrows)
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
	for _, e := range d.Events.Events {
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
	require.Empty(t, d.Events.Events)

	require.Equal(t, "address", refused(t, h, "/escrows/"+addressOf(501), http.StatusNotFound).Parameter)
	require.Equal(t, "address", refused(t, h, "/escrows/0x12", http.StatusBadRequest).Parameter)
}

func TestEvents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.escrows(30)
	h := w.server().Handler()

	events, pages := all(t, h, "/events?limit=7", eventsOf)
	require.Len(t, events, 70)
	require.Equal(t, 10, pages)
	require.True(t, slices.IsSortedFunc(events, func(a, b event) int {
		return int((a.BlockNumber-b.BlockNumber)*1000) + int(a.LogIndex-b.LogIndex)
	}))
	seen := map[string]bool{}
	for _, e := range events {
		require.False(t, seen[e.EventID], "twice")
		seen[e.EventID] = true
	}

	from, to := events[10].BlockNumber, events[40].BlockNumber
	some, _ := all(t, h, "/events?limit=5&from="+strconv.FormatInt(from, 10)+"&to="+strconv.FormatInt(to, 10), eventsOf)
	require.Equal(t, from, some[0].BlockNumber)
	require.Equal(t, to, some[len(some)-1].BlockNumber)

	of, _ := all(t, h, "/events?limit=1&escrow="+addressOf(3), eventsOf)
	require.Len(t, of, 3)
	require.Empty(t, read[eventPage](t, h, "/events?escrow="+addressOf(800)).Events)
	require.JSONEq(t, `{"events":[],"next":null}`, body(t, get(t, h, "/events?escrow="+addressOf(800))))
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
	h := w.server().Handler()
	for _, filter := range []string{"", "&escrow=" + addressOf(1)} {
		canonical, _ := all(t, h, "/events?limit=1"+filter, eventsOf)
		require.Len(t, canonical, 1)
		require.Equal(t, "canonical", canonical[0].State)
		require.True(t, canonical[0].Queued)
		every, pages := all(t, h, "/events?state=all&limit=1"+filter, eventsOf)
		require.Len(t, every, 4)
		require.Equal(t, 4, pages)
	}
}

func TestWhatCannotBeUnderstoodIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, untouchable{t})
	h := s.Handler()
	eventCursor, escrowCursor := *encodeCursor("v", "1", "2", "x"), *encodeCursor("e", "0x")
	for path, parameter := range map[string]string{
		"/escrows?limit=0": "limit", "/escrows?limit=1001": "limit", "/escrows?limit=ten": "limit",
		"/escrows?limit=-1":    "limit",
		"/escrows?status=done": "status",
		"/escrows?cursor=%20":  "cursor", "/escrows?cursor=" + eventCursor: "cursor",
		"/escrows?statsu=active": "statsu", "/escrows?limit=1&limit=2": "limit",
		"/escrows/" + addressOf(1) + "?x=1": "x",
		"/events?from=-1":                   "from", "/events?from=0x10": "from", "/events?to=99999999999999999999": "to",
		"/events?from=5&to=4": "to",
		"/events?escrow=0x12": "escrow", "/events?escrow=" + strings.Repeat("z", 500): "escrow",
		"/events?state=orphaned":         "state",
		"/events?cursor=" + escrowCursor: "cursor", "/events?cursor=" + *encodeCursor("v", "x", "2", "y"): "cursor",
		"/events?cursor=" + *encodeCursor("v", "1", "99999999999", "y"): "cursor",
	} {
		p := refused(t, h, path, http.StatusBadRequest)
		require.Equal(t, parameter, p.Parameter, path)
		require.Less(t, len(p.Detail), 400, "a long value is not repeated in full")
	}

	refused(t, h, "/events?from=%zz", http.StatusBadRequest)
}

func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, broken(t))
	h := s.Handler()
	for _, path := range []string{"/escrows", "/escrows/" + addressOf(1), "/events"} {
		p := refused(t, h, path, http.StatusServiceUnavailable)
		require.Contains(t, p.Detail, "try again")
		require.Equal(t, retryAfter, get(t, h, path).Header.Get("Retry-After"))
	}
}

func FuzzParameters(f *testing.F) {
	f.Add("0x"+strings.Repeat("a", 40), *encodeCursor("v", "1", "2", "x"))
	f.Fuzz(func(t *testing.T, address, cursor string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"/?"+url.Values{"escrow": {address}, "cursor": {cursor}}.Encode(), nil)
		require.NoError(t, err)
		p := parse(r, "escrow", "cursor")
		got := p.address("escrow")
		q := eventQuery{}
		q.after(p)
		if p.err == nil && address != "" {
			require.Len(t, got, 42)
		}
	})
}
