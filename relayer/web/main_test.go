package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

const (
	testChain = 11155111
	testHead  = 7_654_321
)

func init() { queryTimeout = 3 * time.Minute } // the machine may be busy

func TestMain(m *testing.M) {
	// It starts when the package is loaded, which the Cloud SQL connector imports.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// instanceStub is a Source whose instance a test changes.
type instanceStub struct {
	mu    sync.Mutex
	i     fleet.Self
	asked int
}

func (s *instanceStub) Instance() fleet.Self {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++

	return s.i
}

func (s *instanceStub) set(change func(*fleet.Self)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.i)
}

// pool is what the tests read from.
type pool interface {
	DB
	fleet.DB
}

// reads is a Fleet that is read at each look.
type reads struct {
	db  fleet.DB
	now func() time.Time // nil: time.Now

	mu   sync.Mutex
	last fleet.Reading
}

func (r *reads) Last() fleet.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *reads) Look() fleet.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Err = database.Within(context.Background(), time.Minute, func(ctx context.Context) error {
		f, err := fleet.Read(ctx, r.db, testChain)
		if err == nil {
			r.last.Fleet, r.last.At = f, time.Now()
			if r.now != nil {
				r.last.At = r.now()
			}
		}

		return err
	})

	return r.last
}

// world is a fleet that a test has written, and the server of its first instance.
type world struct {
	*testfleet.Fleet
	t      testing.TB
	source *instanceStub
	cfg    Config
	front  FrontConfig
	then   func() // what happens once the fleet was seen; nil: nothing
}

func setup(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, Fleet: testfleet.New(t, testChain)}
	now := time.Now()
	w.source = &instanceStub{i: fleet.Self{
		ID: "relayer-0",
		Build: fleet.Build{
			Version: "v1.4.2", Commit: "5f0c1de2ab34f0c1de2ab34f0c1de2ab34f0c1de", Date: "2026-11-20T08:15:30Z",
		},
		Started: now.Add(-4*time.Hour - 12*time.Minute), Leader: true,
		Partition: partition.Partition{Number: 0, Total: 3, Strategy: partition.Modulo},
		Head:      testHead, Target: testHead - 2, Final: testHead - 64, HeadTime: now, Cursor: testHead - 1,
		CursorTime: now.Add(-24 * time.Second), FactoryCursor: testHead - 1,
		Escrows: 412, Slots: 840, InFlight: 3,
		Endpoints: []fleet.Endpoint{
			{Name: "https://***.alchemy.com", Up: true, Head: testHead, Latency: fleet.Age(41 * time.Millisecond)},
			{Name: "wss://***.infura.io", Up: true, Head: testHead - 9, Latency: fleet.Age(230 * time.Millisecond),
				LastError: "429 Too Many Requests: https://…", LastErrorAt: now.Add(-3 * time.Minute)},
		},
	}}
	w.cfg = Config{Source: w.source, Fleet: &reads{db: w.DB}, DB: w.DB, ChainID: testChain,
		ExplorerURL: "https://sepolia.etherscan.io"}

	return w
}

func (w *world) server() *Server {
	w.t.Helper()
	s := serverOf(w.t, w.front, w.cfg)
	s.draws = 0 // what a test has changed is seen at once

	return s
}

// fleet makes a whole fleet of n instances, relayer-0 leading.
func (w *world) fleet(n int) (sessions []*testfleet.Session) {
	w.t.Helper()
	w.Leads(testfleet.Leader{ID: "relayer-0", Since: 4*time.Hour + 11*time.Minute, Beat: 2 * time.Second,
		Next: testHead - 1, Start: 6_000_000, Verified: testHead - 130,
		Factory: "0xfac7000000000000000000000000000000000001"})
	w.FreeSlots(6_000_000, 0)
	for p := range n {
		sessions = append(sessions, w.instance(fmt.Sprintf("relayer-%d", p), p, n))
	}

	sessions[0].Lead()
	w.source.set(func(i *fleet.Self) { i.Partition.Total = n; i.Slots = 2520 / n })

	return sessions
}

// instance makes a live instance that owns what it prefers.
func (w *world) instance(id string, number, total int) *testfleet.Session {
	w.t.Helper()

	return w.Starts(testfleet.Instance{ID: id, Number: number, Total: total, Head: testHead,
		Next: int64(testHead - 1 - number%2), Behind: 24 * time.Second, Escrows: 412, Version: "v1.4.2",
		Started: 4 * time.Hour, Beat: time.Duration(number*7%29) * time.Second})
}

// kill ends an instance's session, as a crash does; ago is how long the others have known.
func (w *world) kill(id string, session *testfleet.Session, ago time.Duration) {
	w.t.Helper()
	session.End()
	w.Died(id, ago)
	w.Beat(id, ago+9*time.Second)
}

// addressOf is the address of the nth escrow.
func addressOf(n int) string {
	sum := sha256.Sum256([]byte{byte(n >> 8), byte(n)})
	return fmt.Sprintf("0x%x", sum[:20])
}

func slotOf(t testing.TB, address string) int16 {
	b, err := hex.DecodeString(address[2:])
	require.NoError(t, err)
	return partition.Slot([20]byte(b))
}

// escrows stores n escrows with two or three events each: deployed and approved, and every third is released.
func (w *world) escrows(n int) {
	w.t.Helper()
	var addresses []string
	var slots []int16
	for i := 1; i <= n; i++ {
		addresses = append(addresses, addressOf(i))
		slots = append(slots, slotOf(w.t, addressOf(i)))
	}

	w.Exec(`insert into escrow_registry (chain_id, address, slot, status, discovered_block_number, event_id,
			announced, caught_up, last_monitored_block, ended_block, payer, payee, amount)
		select $1, address, slot, case when s % 3 = 0 then 'released' else 'active' end, b,
			'0x' || encode(sha256(('1' || address)::bytea), 'hex') || ':1', true, true, b - 1,
		       case when s % 3 = 0 then b + 7 end, '0x' || substr(md5(s::text) || md5('p' || s), 1, 40),
		       '0x' || substr(md5('x' || s) || md5('y' || s), 1, 40), (s * 125)::text || '0000000000000000'
		from (select address, slot, s, $2::bigint - 20 * ($3::integer - s) as b
			from unnest($4::text[], $5::smallint[]) with ordinality t(address, slot, s)) x`,
		testChain, testHead-10, n, addresses, slots)
	w.Exec(`insert into processed_events (chain_id, event_id, event_type, contract_address, escrow, slot, block_number,
			log_index, block_hash, block_timestamp, args, processed_by_instance)
		select r.chain_id, '0x' || encode(sha256((k || address)::bytea), 'hex') || ':' || k,
			(array['EscrowDeployed', 'Approved', 'EscrowReleased'])[k], r.address, r.address, r.slot,
		       r.discovered_block_number + (array[0, 3, 7])[k], k,
		       '0x' || encode(sha256(r.discovered_block_number::text::bytea), 'hex'),
		       extract(epoch from now())::bigint - 12 * ($2 - r.discovered_block_number - (array[0, 3, 7])[k]),
		       case k when 1 then json_build_object('escrow', r.address, 'payer', r.payer, 'payee', r.payee, 'amount',
		                                        r.amount, 'releaseDelay', '86400', 'approvalsRequired', '2')
		              when 2 then json_build_object('approver', r.payer)
		              else json_build_object('payee', r.payee, 'amount', r.amount, 'timestamp', '1795240000') end,
		       'relayer-' || r.slot % 3
		from escrow_registry r cross join generate_series(1, 3) k where r.chain_id = $1
			and (k < 3 or r.status = 'released')`, testChain, testHead)
	w.Exec(`insert into escrow_records (chain_id, escrow, slot, status, payer, payee, arbiter, amount,
			release_delay, approvals_required, approvals, approvers, settled_amount, settled_at, deployed_block,
			last_event_id, last_event_type, last_event_block)
		select chain_id, address, slot, case when status = 'released' then 'released' else 'approved' end, payer, payee,
			'0x' || repeat('c', 40), amount::numeric, 86400, 2, 1, array[payer],
		       case when status = 'released' then amount::numeric end, case when status = 'released' then 1795240000 end,
		       discovered_block_number, event_id, 'Approved', discovered_block_number + 3
		from escrow_registry where chain_id = $1`, testChain)
}

// backfill gives a server an hour of samples, with a stall of its node and an outage of Pub/Sub in it.
func backfill(s *Server, now time.Time) {
	for at := now.Add(-55 * time.Minute); at.Before(now); at = at.Add(2 * time.Second) {
		ago := now.Sub(at)
		head := int64(testHead) - int64(ago/(12*time.Second))
		x := sample{at: at, head: head, target: head - 2, cursor: head - 1}
		if m := ago.Minutes(); m > 20 && m < 26 {
			x.cursor -= int64((26 - m) * 5)
		}

		x.lag = x.target - x.cursor + 1
		x.outbox = int64(3 + 3*math.Sin(ago.Minutes()))
		if m := ago.Minutes(); m > 33 && m < 38 {
			x.outbox, x.oldest = int64(40*(38-m)), time.Duration((38-m)*float64(time.Minute))
		}

		s.history.add(x)
	}
}

// get answers a request without a network.
func get(t testing.TB, h http.Handler, path string) *http.Response {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))

	return rec.Result()
}

// read decodes an answer that must be 200.
func read[T any](t *testing.T, h http.Handler, path string) (v T) {
	t.Helper()
	r := get(t, h, path)
	text := body(t, r)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", path, text)
	require.NoError(t, json.Unmarshal([]byte(text), &v))

	return v
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())

	return strings.TrimSpace(string(b))
}
