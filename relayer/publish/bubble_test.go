package publish

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// weather is how the outside behaves, in simulated time: every statement and every request takes a
// while, and some fail. Its outbox does what package outbox does, for one owner of all slots.
type weather struct {
	*outbox.Box
	mu     sync.Mutex
	random *rand.Rand
	calm   bool // nothing fails any more
	rows   map[int64]outbox.Pending
	doubts map[int16]int64
	stored []int64 // by Pub/Sub, in this order
}

var errWeather = errors.New("the database is away")

// pass waits for up to a time, and reports whether what waited fails.
func (w *weather) pass(ctx context.Context, upTo time.Duration, oneIn int) (fails bool, err error) {
	w.mu.Lock()
	timer := time.NewTimer(time.Duration(w.random.Int64N(int64(upTo))))
	fails = !w.calm && w.random.IntN(oneIn) == 0
	w.mu.Unlock()
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		return fails, nil
	}
}

// statement waits for the database, and locks it if it answers.
func (w *weather) statement(ctx context.Context) error {
	fails, err := w.pass(ctx, 20*time.Millisecond, 10)
	if err == nil && fails {
		err = errWeather
	}

	if err == nil {
		w.mu.Lock()
	}

	return err
}

// find returns rows in order, at most limit; the database is locked.
func (w *weather) find(limit int, match func(int64, outbox.Lane) bool) (found []outbox.Found) {
	seqs := make([]int64, 0, len(w.rows))
	for seq := range w.rows {
		seqs = append(seqs, seq)
	}

	slices.Sort(seqs)
	for _, seq := range seqs {
		if p := w.rows[seq]; len(found) < limit && match(seq, w.LaneOf(&p)) {
			found = append(found, outbox.Found{Pending: p, Doubtful: seq <= w.doubts[p.Slot]})
		}
	}

	return found
}

func (w *weather) Page(ctx context.Context, mine []int16, last int64, limit int,
	without []outbox.Lane) ([]outbox.Found, error) {
	if err := w.statement(ctx); err != nil {
		return nil, err
	}

	defer w.mu.Unlock()

	return w.find(limit, func(seq int64, id outbox.Lane) bool {
		return seq > last && slices.Contains(mine, id.Slot) && !slices.Contains(without, id)
	}), nil
}

func (w *weather) Lanes(ctx context.Context, mine []int16, wants []outbox.Want) ([][]outbox.Found, error) {
	if err := w.statement(ctx); err != nil {
		return nil, err
	}

	defer w.mu.Unlock()
	all := make([][]outbox.Found, len(wants))
	for i, want := range wants {
		all[i] = w.find(want.Limit, func(seq int64, id outbox.Lane) bool {
			return seq >= want.From && id == want.Lane && slices.Contains(mine, id.Slot)
		})
	}

	return all, nil
}

func (w *weather) Delete(ctx context.Context, rows []outbox.Sent, _ time.Duration) error {
	if err := w.statement(ctx); err != nil {
		return err
	}

	defer w.mu.Unlock()
	for _, r := range rows {
		if w.rows[r.Seq].Token == r.Token {
			delete(w.rows, r.Seq)
		}
	}

	return nil
}

func (w *weather) Doubt(ctx context.Context, seqs map[int16]int64) error {
	if err := w.statement(ctx); err != nil {
		return err
	}

	defer w.mu.Unlock()
	for slot, seq := range seqs {
		w.doubts[slot] = max(w.doubts[slot], seq)
	}

	return nil
}

// Publish takes up to 50 ms, and refuses some requests, loses the answers of some, and hangs on some.
func (w *weather) Publish(ctx context.Context, _, _ string, messages []pubsub.Message) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fails, err := w.pass(ctx, 50*time.Millisecond, 6)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	how := w.random.IntN(4)
	if fails && how == 0 {
		return nil, status.Error(codes.PermissionDenied, "refused")
	}

	if fails && how == 1 {
		return nil, status.Error(codes.Unavailable, "lost on the way")
	}

	for _, m := range messages {
		seq, err := strconv.ParseInt(m.Attributes["block_number"], 10, 64)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}

		w.stored = append(w.stored, seq)
	}

	switch {
	case fails && how == 2:
		return nil, status.Error(codes.Unavailable, "the answer was lost")
	case fails && how == 3:
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()

		return nil, ctx.Err()
	}

	return nil, nil
}

// commit adds rows of escrows to the outbox.
func (w *weather) commit(next *int64, escrows ...byte) (rows []outbox.Pending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, who := range escrows {
		*next++
		p := outbox.Pending{ID: outbox.ID{Seq: *next, Token: 7 * *next}, Slot: int16(who),
			Event: contract.Event{Name: "Approved",
				Escrow: common.Address{19: who}, BlockNumber: uint64(*next), Args: []byte(`{}`)}}
		w.rows[p.Seq] = p
		rows = append(rows, p)
	}

	return rows
}

// The whole publisher in simulated time: offers that are lost, an outbox and a Pub/Sub that fail in
// every way, slots that are quiesced and resumed (also when it was not waited for), tenures that
// end, and processes that die. Whatever happens: what Pub/Sub has stored is, per key and without
// what a consumer has seen, exactly what was committed, in order; each message that came twice was
// counted; and the outbox is empty at the end.
func TestBubble(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) { bubble(t, seed) })
	}
}

// allSlots are those of the escrows in a bubble.
var allSlots = []int16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

func bubble(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	w := &weather{random: rand.New(rand.NewPCG(seed, 2)), rows: map[int64]outbox.Pending{}, doubts: map[int16]int64{}}
	reg := prometheus.NewRegistry()
	cfg := Config{DB: &pgxpool.Pool{}, ChainID: 7, Owner: "r0", Sender: w, Topics: pubsub.Topics{Default: "d"},
		Metrics: NewMetrics(reg), Handover: &Handover{}, Jitter: rand.New(rand.NewPCG(seed, 3)).Float64,
		BySlot: seed%2 == 1}

	begin := func() (p *Publisher, end func()) {
		p, err := New(cfg)
		require.NoError(t, err)
		w.Box, p.store = p.store.(*outbox.Box), w
		p.limits.windowRows, p.limits.pageRows, p.limits.laneRows = 40, 8, 6
		p.limits.batchRows, p.limits.requests, p.limits.maxBlocked = 3, 4, 5
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		p.Reload(allSlots)
		go func() { ended <- p.Run(ctx) }()

		return p, func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}

	p, end := begin()
	var next int64
	var committed []outbox.Pending
	quiesce := func() {
		slots := []int16{int16(random.IntN(12)), int16(random.IntN(12))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(6*time.Second))))
		defer cancel()
		if p.Quiesce(ctx, slots) == nil {
			w.mu.Lock()
			before := len(w.stored)
			w.mu.Unlock()
			let(time.Second)
			w.mu.Lock()
			for _, seq := range w.stored[before:] {
				require.NotContains(t, slots, committed[seq-1].Slot, "published while at rest")
			}

			w.mu.Unlock()
			p.Resume(slots, 0)
		}
	}

	for range 60 {
		let(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		escrows := make([]byte, 1+random.IntN(8))
		for i := range escrows {
			escrows[i] = byte(random.IntN(12))
		}

		rows := w.commit(&next, escrows...)
		committed = append(committed, rows...)
		switch random.IntN(16) {
		case 0: // the offer is lost
			p.Reload(allSlots)
		case 1:
			p.Reload(allSlots)
			p.Offer(1, rows)
		case 2:
			p.Offer(1, rows)
			quiesce()
		case 3:
			end()
			p, end = begin()
		case 4: // a process dies: nothing is known of what it had to send, but to the database
			end()
			w.mu.Lock()
			for slot := range int16(12) {
				w.doubts[slot] = next
			}

			w.mu.Unlock()
			cfg.Handover = &Handover{}
			p, end = begin()
		default:
			p.Offer(1, rows)
		}
	}

	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	let(5 * time.Minute)
	synctest.Wait()
	require.Zero(t, p.Stats(), "seed %d", seed)
	end()
	require.Empty(t, w.rows, "seed %d", seed)
	w.check(t, seed, committed, counter(t, reg, "relayer_republished_total"))
}

// let lets simulated time pass: it moves only while every goroutine of the bubble waits, so no machine
// is waited for, and everything that is due by then has happened.
func let(pass time.Duration) { <-time.After(pass) }

// check compares what was stored with what was committed.
func (w *weather) check(t *testing.T, seed uint64, committed []outbox.Pending, counted float64) {
	seen, again := map[int64]bool{}, map[int64]bool{}
	last := map[outbox.Lane]int64{}
	for _, seq := range w.stored {
		if seen[seq] {
			again[seq] = true // and maybe once more: what is counted are messages, when they are acknowledged
			continue
		}

		seen[seq] = true
		id := w.LaneOf(&committed[seq-1])
		require.Greater(t, seq, last[id], "seed %d: out of order", seed)
		last[id] = seq
	}

	require.Len(t, seen, len(committed), "seed %d: lost", seed)
	require.LessOrEqual(t, float64(len(again)), counted, "seed %d: came twice and were not counted", seed)
}

func counter(t *testing.T, reg *prometheus.Registry, name string) float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetCounter().GetValue()
		}
	}

	require.Fail(t, "no such metric", name)

	return 0
}
