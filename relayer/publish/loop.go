package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// limits of a publisher. Tests make them small.
type limits struct {
	// rows in memory, waiting or under way, and those acknowledged and not deleted: what a crash can
	// repeat
	windowRows  int
	windowBytes int // of those, about; a page more may come
	// rows of one lane in memory before the rest stays in the outbox: one lane must not fill the
	// window
	laneRows   int
	pageRows   int           // rows read at once
	requests   int           // under way at once on a topic; Pub/Sub takes some 20 ms, so one key per escrow needs many
	batchRows  int           // messages in a request: the service takes 1,000
	batchBytes int           // bytes in a request, about: the service takes 10 MB, and 1 MB/s under a key
	maxBlocked int           // lanes of a topic
	firstDelay time.Duration // of a blocked lane; it doubles
	lastDelay  time.Duration //
	// of acknowledged rows before a deletion that is not full: fewer transactions, a wider crash
	// window
	linger      time.Duration
	deleteFull  int           // rows that are worth a deletion at once
	deleteMost  int           // rows of one deletion
	rereadEvery time.Duration // a reading from the start that nothing called for: the safety net under every hint
}

var defaultLimits = limits{
	windowRows: 16_384, windowBytes: 32 << 20, laneRows: 1_000, pageRows: 2_048, requests: 512, batchRows: 1_000,
	batchBytes: 1 << 20, maxBlocked: 2_000,
	firstDelay: 100 * time.Millisecond, lastDelay: 30 * time.Second, linger: 5 * time.Millisecond, deleteFull: 1_000,
	deleteMost: 4_096, rereadEvery: 30 * time.Second,
}

const (
	// deleteAtEnd bounds the deletions after that.
	deleteAtEnd = time.Second
	// drainTimeout bounds the wait for acknowledgements at the end: Cloud Run leaves 10 s after SIGTERM for everything.
	drainTimeout = 4 * time.Second
)

// store is the outbox as package outbox has it.
type store interface {
	Page(ctx context.Context, last int64, limit int, without []outbox.Lane) ([]outbox.Found, error)
	Lanes(ctx context.Context, wants []outbox.Want) ([][]outbox.Found, error)
	Delete(ctx context.Context, rows []outbox.Sent, limit time.Duration) error
	Doubt(ctx context.Context, seqs map[int16]int64) error
}

// loop connects the parts: it gives them what happens, one event after the other, and has carried
// out what they want. What waits for a network does so in goroutines of its own, which wait counts
// and which report through flown, read and deleted; each of those has room for whatever can be under
// way. Everything else belongs to the goroutine of Run.
type loop struct {
	cfg    *Config
	limits *limits
	laneOf func(*outbox.Pending) outbox.Lane
	store  store
	inbox  *inbox
	told   *told

	window window
	lanes  lanes
	reader reader
	del    deleter
	rest   rest
	epoch  int64 // offers of earlier ones are void
	report reporting

	flown   chan *flight
	read    chan readResult
	deleted chan error         // the outcome of a task of del
	endTask context.CancelFunc // ends the task under way
	wait    sync.WaitGroup     // for requests, readings, tasks
}

// newLoop returns the loop of a publisher with what the tenure before it has left.
func newLoop(p *Publisher, s store) *loop {
	l := &loop{
		cfg: &p.cfg, limits: &p.limits, laneOf: p.box.LaneOf, store: s, inbox: &p.inbox, told: &p.told,
		window: newWindow(&p.limits), rest: newRest(), reader: newReader(&p.limits, p.cfg.Jitter, time.Now()),
		flown:   make(chan *flight, outbox.Topics*p.limits.requests),
		read:    make(chan readResult, 1),
		deleted: make(chan error, 1),
		del: deleter{linger: p.limits.linger, full: p.limits.deleteFull, maxSize: p.limits.deleteMost,
			size: p.limits.deleteFull, limit: deleteLimit},
	}
	l.lanes = newLanes(&p.limits, &l.window, p.cfg.Jitter,
		[outbox.Topics]string{p.cfg.Topics.Default, p.cfg.Topics.Other, p.cfg.Topics.Retractions})
	for _, s := range p.cfg.Handover.acked {
		l.done(s)
	}

	l.del.doubts = p.cfg.Handover.doubts

	return l
}

// run works until ctx ends (nil) or the right does (ErrFenced). Requests are made under flights.
func (l *loop) run(ctx, flights context.Context) error {
	l.del.run = func(t task) { l.carryOut(ctx, t) }
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil { // also where something else was ready: nothing is sent after the end
		now := time.Now()
		l.lanes.retry(now)
		l.relieve(ctx)
		l.launch(flights, now)
		l.lanes.cancel(l.rest.late(now))
		l.readOn(ctx, now)
		l.delete(now)
		l.tell(now)
		timer.Reset(l.pause(now))
		select {
		case <-ctx.Done():
			return nil
		case <-l.inbox.wake:
			l.open()
		case f := <-l.flown:
			if err := l.settleAll(ctx, f); err != nil {
				return err
			}
		case r := <-l.read:
			l.take(ctx, r)
		case err := <-l.deleted:
			l.forget(ctx, err)
		case <-timer.C:
		}
	}

	return nil
}

// pause is how long nothing happens by itself.
func (l *loop) pause(now time.Time) time.Duration {
	at := l.reader.rereadAt
	for _, t := range []time.Time{l.lanes.retryAt(), l.reader.at(now), l.del.due(l.hurry()), l.rest.lateAt()} {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}

	return max(0, at.Sub(now))
}

// open takes what is in the inbox. Orders come before offers: what was offered before slots were
// given away is not sent after.
func (l *loop) open() {
	in := l.inbox.take()
	if in.reload {
		l.lanes.reread()
		l.reader.rewind(0)
	}

	for _, o := range in.orders {
		l.obey(o)
	}

	for _, o := range in.offers {
		l.accept(o)
	}

	l.reader.offered = max(l.reader.offered, in.offered)
	if in.full {
		l.reader.notTaken()
	}
}

// accept takes rows that were just committed, unless older ones have to be read first: then they
// are read with those. An offer that is not taken whole makes it so for those behind it.
func (l *loop) accept(o offer) {
	if o.epoch < l.epoch {
		l.reader.notTaken()
		return
	}

	now := time.Now()
	for i := range o.rows {
		if r := &o.rows[i]; l.reader.take(r.Seq, l.window.room() > 0) && !l.outOfTurn(r) {
			l.add(row{Pending: *r}, now)
		}
	}
}

// add hands a row to its lane, unless it is known, or nothing of its slot is to be sent.
func (l *loop) add(r row, now time.Time) {
	if l.window.has(r.Seq) || l.rest.isQuiet(r.Slot) {
		return
	}

	id := l.laneOf(&r.Pending)
	if l.lanes.topics[id.Topic].name == "" {
		l.done(outbox.Sent{Seq: r.Seq, Slot: r.Slot}) // nobody asked for it: it leaves the outbox as if sent
		return
	}

	l.lanes.add(id, r, now)
}

// done notes that a row need not be sent any more: it is to be deleted.
func (l *loop) done(s outbox.Sent) {
	l.window.enter(s.Seq)
	l.rest.begin(s.Slot)
	l.del.add(time.Now(), s)
}

// obey quiesces or resumes slots.
func (l *loop) obey(o order) {
	if o.done == nil {
		l.rest.resume(o.slots)
		l.epoch = max(l.epoch, o.epoch)
		l.reader.rewind(0)

		return
	}

	l.rest.quieten(o, time.Now())
	l.lanes.quieten(l.rest.isQuiet)
	l.notify()
}

func (l *loop) notify() { l.rest.notify(l.del.doubtfulSlot) }

// hurry says whether somebody waits for deletions.
func (l *loop) hurry() bool { return len(l.rest.waiting) > 0 }

// relieve has rows read that were passed over while too many lanes were blocked, and tells when a topic is well again.
func (l *loop) relieve(ctx context.Context) {
	if seq := l.lanes.relieved(); seq > 0 {
		l.reader.rewind(seq - 1)
	}

	for i := range l.lanes.topics {
		if t := &l.lanes.topics[i]; len(t.blocked) == 0 && t.code != codes.OK {
			t.code = codes.OK
			l.cfg.Log.InfoContext(ctx, "publishing goes on", slog.String("topic", t.name))
		}
	}
}

// launch hands over requests, a lane's rows each.
func (l *loop) launch(flights context.Context, now time.Time) {
	for f := l.lanes.next(now); f != nil; f = l.lanes.next(now) {
		l.rest.begin(f.lane.id.Slot)
		l.told.inFlight.Add(int64(len(f.rows)))
		ctx, cancel := context.WithCancel(flights)
		f.cancel = cancel
		topic := l.lanes.topics[f.lane.id.Topic].name
		l.wait.Go(func() {
			defer cancel()
			f.err = l.cfg.send(ctx, topic, f)
			l.flown <- f
		})
	}
}

// settleAll takes the outcome of a request, and of those that have ended meanwhile.
func (l *loop) settleAll(ctx context.Context, f *flight) error {
	for {
		l.settle(ctx, f)
		if errors.Is(f.err, ErrFenced) {
			return ErrFenced
		}

		select {
		case f = <-l.flown:
		default:
			l.notify()
			return nil
		}
	}
}

func (l *loop) settle(ctx context.Context, f *flight) {
	n := f.lane
	l.rest.end(n.id.Slot)
	l.told.inFlight.Add(-int64(len(f.rows)))
	if f.err != nil {
		l.failed(ctx, f)
	} else {
		l.acknowledged(f)
	}

	if l.rest.isQuiet(n.id.Slot) {
		l.lanes.forget(n)
		return
	}

	l.lanes.proceed(n)
}

func (l *loop) acknowledged(f *flight) {
	m, now, at := l.cfg.Metrics, time.Now(), l.cfg.Now()
	took := now.Sub(f.started).Seconds()
	for i := range f.rows {
		r := &f.rows[i]
		if message.Kind(r.Kind) == message.Original && r.Event.BlockTime > 0 {
			m.latency.Observe(max(0, at.Sub(time.Unix(int64(r.Event.BlockTime), 0)).Seconds()))
		}

		l.done(outbox.Sent{Seq: r.Seq, Slot: r.Slot})
		m.duration.Observe(took)
		if r.doubtful {
			m.republished.Inc()
		}
	}

	m.published.Add(float64(len(f.rows)))
	l.lanes.acknowledged(f, now)
}

// failed notes the failure of a request; its rows are read again. What may have been stored all the
// same is in doubt.
func (l *loop) failed(ctx context.Context, f *flight) {
	c, now := pubsub.Code(f.err), time.Now()
	changed := l.lanes.failed(f, c, now)
	if errors.Is(f.err, ErrFenced) {
		return // nothing was sent, and this is the end
	}

	l.cfg.Metrics.errors.WithLabelValues(c.String()).Inc()
	l.cfg.Metrics.last.Store(&Failure{At: now, Err: f.err})
	if !pubsub.Refused(c) {
		l.del.doubt(f.lane.id.Slot, f.rows[len(f.rows)-1].Seq)
	}

	t := &l.lanes.topics[f.lane.id.Topic]
	t.lastError, t.lastErrorAt, l.report.news = errorText(l.cfg.Mask, c, f.err), l.cfg.Now(), true
	if !changed {
		return // once a change: one lane's failures may go on for hours, and thousands fail together
	}

	level := slog.LevelWarn
	if hopeless(c) {
		level = slog.LevelError
	}

	l.cfg.Log.LogAttrs(ctx, level, "message not published, trying again", slog.String("topic", t.name),
		slog.String("escrow", registry.Text(f.rows[0].Event.Escrow)), slog.String("code", c.String()), slog.Any("err", f.err))
}

// reporting is what tell needs to know of what it has told.
type reporting struct {
	news   bool      // what the report says of errors has changed
	at     time.Time // when every lane was looked at
	oldest time.Time // what that look found
}

// tellEvery is how often every lane is looked at for the oldest message.
const tellEvery = time.Second

// tell publishes what Stats shows: the counts at once, what takes a look at every lane once per second.
func (l *loop) tell(now time.Time) {
	l.told.undeleted.Store(int64(l.del.undeleted()))
	blocked := l.lanes.blocked()
	l.cfg.Metrics.blocked.Set(float64(blocked))
	l.cfg.Metrics.inFlight.Set(float64(l.told.inFlight.Load()))

	told := l.told.report.Load()
	due := told == nil || now.Sub(l.report.at) >= tellEvery
	if !due && !l.report.news && blocked == told.blocked() {
		return
	}

	if due {
		l.report.at, l.report.oldest = now, l.lanes.oldest()
	}

	l.report.news = false
	r := &report{oldest: l.report.oldest}
	for i := range l.lanes.topics {
		if t := &l.lanes.topics[i]; t.name != "" {
			r.topics = append(r.topics, TopicStats{ID: t.name, BlockedKeys: len(t.blocked), LastError: t.lastError,
				LastErrorAt: t.lastErrorAt})
		}
	}

	l.told.report.Store(r)
}
