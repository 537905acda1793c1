package publish_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

func TestMain(m *testing.M) {
	// started by an init of the client's
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const (
	project, settlement, extra, undone = "test-project", "settlement.events.v1", "other.events.v1", "retractions.v1"
	chainID                            = 7
	me                                 = "r0"
	patience                           = 10 * time.Minute // only what hangs waits so long, or a busy machine
)

// tick is how often a condition is looked at that sends no signal.
const tick = 2 * time.Millisecond

// world is a database whose slots all belong to one instance, and a Pub/Sub server.
type world struct {
	*testfleet.Fleet
	t        testing.TB
	server   *testpubsub.Server
	sender   *pubsub.Client
	tap      *testpubsub.Recorder
	handover publish.Handover
	reg      *prometheus.Registry
	metrics  *publish.Metrics
	logs     *logs
	commits  int64 // numbers events
	epoch    int64
	cursor   int64 // next block, as far as the log goes
}

func setup(t testing.TB, o testpubsub.Options) *world {
	ctx := t.Context()
	server := testpubsub.New(t, o, project, settlement, extra, undone)
	tap := server.Tap()
	t.Cleanup(func() { require.NoError(t, tap.Stop()) })
	reg := prometheus.NewRegistry()
	w := &world{Fleet: testfleet.New(t, chainID), t: t, server: server, tap: tap, reg: reg,
		metrics: publish.NewMetrics(reg), logs: &logs{t: t}, epoch: 1}
	w.Join(me, 0)
	w.OwnAll(me, 0)
	var err error
	w.sender, err = pubsub.New(ctx, pubsub.Config{Project: project, Options: testpubsub.ClientOptions(w.server.Addr()),
		Log: slog.New(w.logs), Timeout: 30 * time.Second}) // what a busy machine answers later is sent again
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.sender.Close()) })

	return w
}

func (w *world) config() publish.Config {
	return publish.Config{
		DB: w.DB, ChainID: chainID, Owner: me, Sender: w.sender,
		Topics: pubsub.Topics{Default: settlement, Other: extra, Retractions: undone},
		Log:    slog.New(w.logs), Metrics: w.metrics, Handover: &w.handover,
		Jitter: func() float64 { return 0.5 },
	}
}

// everySlot is what one instance holds that is alone.
func everySlot() []int16 {
	slots := make([]int16, 2520)
	for i := range slots {
		slots[i] = int16(i)
	}

	return slots
}

// running is a publisher at work.
type running struct {
	*publish.Publisher
	t    testing.TB
	end  func()       // tells Run to end
	stop func() error // and returns what it returned
}

func (w *world) start(cfg publish.Config, o publish.Tuning) *running {
	if o.Delay == 0 {
		o.Delay = 5 * time.Millisecond
	}

	p, err := publish.New(cfg)
	require.NoError(w.t, err)
	p.Tune(o)
	p.ReloadSlots(everySlot())
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	r := &running{Publisher: p, t: w.t, end: cancel}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	w.t.Cleanup(func() { _ = r.stop() })

	return r
}

func escrow(n int) common.Address {
	a := common.Address{0: 0xe5, 1: 0xc0}
	a[17], a[18], a[19] = byte(n>>16), byte(n>>8), byte(n)
	return a
}

// commit stores events with their outbox rows, one for each escrow named, each in a block of its own, and returns the
// rows.
func (w *world) commit(name string, kind message.Kind, escrows ...int) []outbox.Pending {
	n := len(escrows)
	keys, txs, args := make([][]byte, n), make([][]byte, n), make([]string, n)
	var written []outbox.ID
	slots := make([]int16, n)
	rows := make([]outbox.Pending, n)
	for i, e := range escrows {
		w.commits++
		address := escrow(e)
		ev := contract.Event{
			Name: name, Escrow: address, Emitter: address, BlockNumber: uint64(w.commits), BlockTime: uint64(time.Now().Unix()),
			LogIndex: uint(i),
			TxHash:   common.BigToHash(common.Big1), BlockHash: common.Hash{1},
			Args: json.RawMessage(fmt.Sprintf(`{"escrow":"%s","n":"%d"}`, address.Hex(), w.commits)),
		}
		ev.TxHash[0], ev.TxHash[1], ev.TxHash[2], ev.TxHash[3] = byte(w.commits>>24), byte(w.commits>>16),
			byte(w.commits>>8), byte(w.commits)
		rows[i] = outbox.Pending{Slot: int16(e % 2520), Kind: int16(kind), Event: ev}
		keys[i], args[i], txs[i], slots[i] = address.Bytes(), string(ev.Args), ev.TxHash.Bytes(), rows[i].Slot
	}

	err := pgx.BeginFunc(context.WithoutCancel(w.t.Context()), w.DB, func(tx pgx.Tx) error {
		found, err := tx.Query(w.t.Context(), `
			with input as (select * from unnest($2::bytea[], $3::bytea[], $4::smallint[], $5::text[]) with ordinality as t(tx, escrow, slot, args, ord)),
			stored as (
				insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, apart, block_hash, tx_hash, escrow, args)
				select $1, $7 + ord, extract(epoch from now())::bigint, ord - 1, 1, coalesce((select id from event_types
					where name = $6), 3), slot, true, true,
				       decode(rpad('01', 64, '0'), 'hex'), tx, escrow, args from input),
			moved as (update cursors set next_block = $7 + 1 + (select count(*) from input))
			insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type, kind)
			select $1, $7 + ord, ord - 1, slot, escrow, $6, $8 from input order by ord returning seq, token`,
			chainID, txs, keys, slots, args, name, w.commits-int64(n), kind)
		if err != nil {
			return err
		}

		written, err = pgx.CollectRows(found, pgx.RowToStructByPos[outbox.ID])

		return err
	})
	require.NoError(w.t, err)
	for i := range rows {
		rows[i].ID = written[i]
	}

	return rows
}

// approve commits approvals, one for each escrow named, and offers them.
func (w *world) approve(p *running, escrows ...int) []outbox.Pending {
	rows := w.commit("Approved", message.Original, escrows...)
	if p != nil {
		p.OfferRows(w.epoch, rows)
	}

	return rows
}

func (w *world) within() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

// wait returns once n messages were stored, and the outbox is empty.
func (w *world) wait(n int) []testpubsub.Message {
	w.t.Helper()
	require.NoError(w.t, w.tap.Wait(w.within(), n))
	w.emptied()

	return w.tap.Messages()
}

func (w *world) emptied() {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.outbox() == 0 }, patience, tick, "rows are left in the outbox")
}

func (w *world) outbox() (n int) {
	require.NoError(w.t, w.DB.QueryRow(context.WithoutCancel(w.t.Context()), `select count(*) from outbox`).Scan(&n))
	return n
}

// numbers returns the numbers of the messages under each key, in the order of storage, after
// decoding and so verifying every one.
func (w *world) numbers(messages []testpubsub.Message) map[string][]string {
	w.t.Helper()
	got := map[string][]string{}
	for _, m := range messages {
		decoded, err := message.Decode(m.Data, m.Attributes)
		require.NoError(w.t, err)
		n, err := decoded.Text("n")
		require.NoError(w.t, err)
		got[m.Key] = append(got[m.Key], n)
	}

	return got
}

// require that messages are what was committed: each row once, under its key, in order.
func (w *world) same(rows []outbox.Pending, messages []testpubsub.Message) {
	w.t.Helper()
	want := map[string][]string{}
	for i := range rows {
		key := fmt.Sprintf("%d:%s", chainID, strings.ToLower(rows[i].Event.Escrow.Hex()))
		want[key] = append(want[key], numbersOf(w.t, rows[i:i+1])...)
	}

	got := w.numbers(messages)
	for key := range want {
		for i, n := range got[key] {
			if i >= len(want[key]) || n != want[key][i] {
				require.Fail(w.t, "not what was committed", "under %s, of %d messages, %d were committed: at %d came %s", key,
					len(got[key]), len(want[key]), i, got[key][i:min(i+10, len(got[key]))])
			}
		}

		require.Len(w.t, got[key], len(want[key]), key)
	}

	require.Len(w.t, got, len(want))
}

func numbersOf(t testing.TB, rows []outbox.Pending) (numbers []string) {
	for i := range rows {
		var args struct{ N string }
		require.NoError(t, json.Unmarshal(rows[i].Event.Args, &args))
		numbers = append(numbers, args.N)
	}

	return numbers
}

func decimal(slot int16) string { return strconv.Itoa(int(slot)) }

func (w *world) metric(name string) float64 {
	families, err := w.reg.Gather()
	require.NoError(w.t, err)
	total := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}

		for _, m := range f.Metric {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}

	return total
}

// logs writes to the test's log and remembers.
type logs struct {
	t     testing.TB
	mu    sync.Mutex
	lines []string
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logs) WithGroup(string) slog.Handler            { return l }

func (l *logs) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s", a)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b.String())
	fmt.Fprintln(l.t.Output(), b.String())

	return nil
}

func (l *logs) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}

	return n
}
