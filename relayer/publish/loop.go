package publish

import (
	"container/heap"
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

// loop is the state of Run. It belongs to Run's goroutine, except for what send uses: cfg and the names of the topics.
type loop struct {
	*Publisher
	topics  [outbox.Topics]topicState
	lanes   map[outbox.Lane]*lane
	retries retries        // blocked lanes that wait for their next try
	known   map[int64]bool // the window: seqs of the rows in memory, and of those acknowledged and not deleted
	bytes   int            // of the rows in memory, about
	flying  int            // requests under way
	busy    map[int16]int  // requests under way and rows to delete, by slot
	flown   chan *flight
	wait    sync.WaitGroup // for requests, readings, deletions

	outboxState
	del     deleter
	deleted chan error         // the outcome of a task of del
	endTask context.CancelFunc // ends the task under way

	epoch     int64         // offers of earlier ones are void
	quiet     map[int16]int // how many want a slot to be quiet: whoever yields it, whoever follows a rollback
	quiescing []order

	news   bool      // what report says of errors has changed
	toldAt time.Time // when every lane was looked at
	oldest time.Time // what that look found
}

// topicState is a topic. Its name is empty where none is configured.
type topicState struct {
	name        string
	ready       []*lane // may send, in the order in which they became so
	flying      int     // requests
	blocked     map[*lane]struct{}
	skipped     int64      // lowest seq passed over because too many lanes are blocked; 0: none
	code        codes.Code // of the last failure that was logged; OK: all is well
	lastError   string
	lastErrorAt time.Time
	freed       time.Time // when blocked lanes were last let go because one of them had got through
}

func newLoop(p *Publisher) *loop {
	l := &loop{
		Publisher: p, lanes: map[outbox.Lane]*lane{}, known: map[int64]bool{}, busy: map[int16]int{}, quiet: map[int16]int{},
		flown: make(chan *flight, outbox.Topics*p.limits.requests),
		outboxState: outboxState{read: make(chan reading, 1), pageRows: p.limits.pageRows,
			rereadAt: time.Now().Add(p.limits.rereadEvery)},
		deleted: make(chan error, 1),
		del: deleter{linger: p.limits.linger, full: p.limits.deleteFull, maxSize: p.limits.deleteMost,
			size: p.limits.deleteFull, limit: deleteLimit},
	}
	for i, id := range [outbox.Topics]string{p.cfg.Topics.Default, p.cfg.Topics.Other, p.cfg.Topics.Retractions} {
		if l.topics[i].blocked = map[*lane]struct{}{}; id != "" {
			l.topics[i].name = id
		}
	}

	for _, s := range p.cfg.Handover.acked {
		l.done(s)
	}

	l.del.doubts = p.cfg.Handover.doubts

	return l
}

// run works until ctx ends (nil) or the right does (ErrNoRight). Requests are made under flights.
func (l *loop) run(ctx, flights context.Context) error {
	l.del.run = func(t task) { l.carryOut(ctx, t) }
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil { // also where something else was ready: nothing is sent after the end
		now := time.Now()
		l.retry(now)
		l.launch(flights)
		l.endLate(now)
		l.readOn(ctx, now)
		l.delete(now)
		l.tell(now)
		timer.Reset(l.pause(now))
		select {
		case <-ctx.Done():
			return nil
		case <-l.inbox.wake:
			l.open(ctx)
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
	at := l.rereadAt
	for _, t := range []time.Time{l.retryAt(), l.readAt(now), l.del.due(len(l.quiescing) > 0), l.lateAt()} {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}

	return max(0, at.Sub(now))
}

func (l *loop) retryAt() time.Time {
	if len(l.retries) == 0 {
		return time.Time{}
	}

	return l.retries[0].retryAt
}

// open takes what is in the inbox. Orders come before offers: what was offered before slots were
// given away is not sent after.
func (l *loop) open(ctx context.Context) {
	in := l.inbox.take()
	if in.reload {
		l.reread(ctx)
	}

	for _, o := range in.orders {
		l.applyOrder(ctx, o)
	}

	for _, o := range in.offers {
		l.accept(o)
	}

	l.offered = max(l.offered, in.offered)
	l.caughtUp = l.caughtUp && !in.full
}

// reread forgets the rows that were not handed over, and reads the outbox from the start.
func (l *loop) reread(ctx context.Context) {
	for _, n := range l.lanes {
		if n.failures > 0 && len(n.queue) > 0 { // the row that it was about to try
			n.behind = true
			l.ask(n)
		}

		n.from = 0 // what it has passed over because it was held may be due now
		l.drop(n)
		l.goOn(ctx, n)
	}

	l.rewind(0)
}

// accept takes rows that were just committed, unless older ones have to be read first: then they
// are read with those. An offer that is not taken whole makes it so for those behind it.
func (l *loop) accept(o offer) {
	l.caughtUp = l.caughtUp && o.epoch >= l.epoch
	if !l.caughtUp {
		return
	}

	for i := range o.rows {
		r := &o.rows[i]
		if r.Seq <= max(l.last, l.looked) {
			continue // it was read before the offer was opened
		}

		if !l.room(1) {
			l.caughtUp = false
			return
		}

		l.add(row{Pending: *r})
		l.last, l.looked = r.Seq, r.Seq
	}
}

// room says whether so many rows more fit into the window.
func (l *loop) room(rows int) bool {
	return len(l.known)+rows <= l.limits.windowRows && l.bytes < l.limits.windowBytes
}

// add puts a row into its lane, or leaves it in the outbox: because it is known, its slot is being
// yielded, or earlier rows of its lane are not in memory.
func (l *loop) add(r row) {
	if l.known[r.Seq] || l.quiet[r.Slot] > 0 {
		return
	}

	id := l.box.LaneOf(&r.Pending)
	topic := &l.topics[id.Topic]
	if topic.name == "" {
		l.done(outbox.Sent{Seq: r.Seq, Slot: r.Slot}) // nobody asked for it: it leaves the outbox as if sent
		return
	}

	n := l.lanes[id]
	if n == nil {
		// Once one row was passed over so, all are until it has been read again: the next may be of the same lane.
		if topic.skipped > 0 || len(topic.blocked) >= l.limits.maxBlocked {
			if topic.skipped == 0 || r.Seq < topic.skipped {
				topic.skipped = r.Seq
			}

			return
		}

		n = &lane{id: id, retryPos: -1, since: time.Now()}
		l.lanes[id] = n
	}

	if n.stuck() || len(n.queue) >= l.limits.laneRows {
		n.pass(r.Seq)
		return
	}

	l.enqueue(n, r)
}

func (l *loop) enqueue(n *lane, r row) {
	n.queue = append(n.queue, r)
	l.known[r.Seq] = true
	l.bytes += r.size()
	l.wake(n)
}

// wake lets a lane send when its turn comes.
func (l *loop) wake(n *lane) {
	if !n.ready && n.flight == nil && len(n.queue) > 0 {
		n.ready = true
		topic := &l.topics[n.id.Topic]
		topic.ready = append(topic.ready, n)
	}
}

// launch hands over requests, a lane's rows each.
func (l *loop) launch(flights context.Context) {
	for i := range l.topics {
		topic := &l.topics[i]
		for len(topic.ready) > 0 && topic.flying < l.limits.requests {
			n := topic.ready[0]
			topic.ready[0] = nil
			topic.ready = topic.ready[1:]
			n.ready = false
			if n.gone || n.flight != nil || len(n.queue) == 0 {
				continue
			}

			f := &flight{lane: n, rows: n.batch(l.limits.batchRows, l.limits.batchBytes), started: time.Now()}
			n.flight = f
			topic.flying++
			l.flying++
			l.busy[n.id.Slot]++
			l.inFlight.Add(int64(len(f.rows)))
			ctx, cancel := context.WithCancel(flights)
			f.cancel = cancel
			l.wait.Go(func() {
				defer cancel()
				f.err = l.send(ctx, f)
				l.flown <- f // has room for every request
			})
		}
	}
}

// settleAll takes the outcome of a request, and of those that have ended meanwhile.
func (l *loop) settleAll(ctx context.Context, f *flight) error {
	for {
		l.settle(ctx, f)
		if errors.Is(f.err, ErrNoRight) {
			return ErrNoRight
		}

		select {
		case f = <-l.flown:
		default:
			l.notifyDrained()
			return nil
		}
	}
}

func (l *loop) settle(ctx context.Context, f *flight) {
	n := f.lane
	n.flight = nil
	l.topics[n.id.Topic].flying--
	l.flying--
	l.unbusy(n.id.Slot)
	l.inFlight.Add(-int64(len(f.rows)))
	for i := range f.rows {
		l.bytes -= f.rows[i].size()
	}

	if f.err != nil {
		for i := range f.rows {
			delete(l.known, f.rows[i].Seq)
		}

		l.failed(ctx, f)
	} else {
		l.acknowledged(ctx, f)
	}

	if l.quiet[n.id.Slot] > 0 {
		l.drop(n)
		l.remove(ctx, n)
	}

	l.goOn(ctx, n)
}

func (l *loop) acknowledged(ctx context.Context, f *flight) {
	n, m := f.lane, l.cfg.Metrics
	took, now := time.Since(f.started).Seconds(), l.cfg.Now()
	for i := range f.rows {
		r := &f.rows[i]
		if message.Kind(r.Kind) == message.Original && r.Event.BlockTime > 0 {
			m.latency.Observe(max(0, now.Sub(time.Unix(int64(r.Event.BlockTime), 0)).Seconds()))
		}

		l.done(outbox.Sent{Seq: r.Seq, Slot: r.Slot})
		m.duration.Observe(took)
		if r.doubtful {
			m.republished.Inc()
		}
	}

	m.published.Add(float64(len(f.rows)))
	n.since = time.Now()
	if n.failures > 0 {
		l.recovered(ctx, n)
	}
}

// goOn decides what comes next for a lane.
func (l *loop) goOn(ctx context.Context, n *lane) {
	switch {
	case n.gone || n.flight != nil || n.asked || n.failures > 0:
	case len(n.queue) > 0:
		l.wake(n)
	case n.behind:
		l.ask(n)
	default:
		l.remove(ctx, n)
	}
}

// failed blocks a lane. None of its rows stays in memory.
func (l *loop) failed(ctx context.Context, f *flight) {
	n := f.lane
	if errors.Is(f.err, ErrNoRight) {
		return
	}

	c := pubsub.Code(f.err)
	l.cfg.Metrics.errors.WithLabelValues(c.String()).Inc()
	l.cfg.Metrics.last.Store(&Failure{At: time.Now(), Err: f.err})
	if !pubsub.Refused(c) {
		l.del.doubt(n.id.Slot, f.rows[len(f.rows)-1].Seq)
	}

	l.drop(n)
	n.pass(f.rows[0].Seq)
	topic := &l.topics[n.id.Topic]
	topic.blocked[n] = struct{}{}
	delay := l.limits.lastDelay
	if n.failures < 16 {
		delay = min(delay, l.limits.firstDelay<<n.failures)
	}

	n.failures++
	n.code = c
	n.retryAt = time.Now().Add(time.Duration((0.5 + l.cfg.Jitter()/2) * float64(delay)))
	heap.Push(&l.retries, n)
	topic.lastError, topic.lastErrorAt, l.news = errorText(l.cfg.Mask, c, f.err), l.cfg.Now(), true
	if topic.code == c {
		return // once a change: one lane's failures may go on for hours, and thousands fail together
	}

	topic.code = c
	level := slog.LevelWarn
	if hopeless(c) {
		level = slog.LevelError
	}

	l.cfg.Log.LogAttrs(ctx, level, "message not published, trying again", slog.String("topic", topic.name),
		slog.String("escrow", registry.Text(f.rows[0].Event.Escrow)), slog.String("code", c.String()), slog.Any("err", f.err))
}

// drop forgets the rows of a lane that were not handed over; they stay in the outbox. A lane that has
// later rows there too reads on from these: it may be resumed before the outbox is read from the start.
func (l *loop) drop(n *lane) {
	if n.behind && len(n.queue) > 0 {
		n.pass(n.queue[0].Seq)
	}

	for i := range n.queue {
		delete(l.known, n.queue[i].Seq)
		l.bytes -= n.queue[i].size()
	}

	n.queue = nil
}

// retry has those blocked lanes read whose time has come.
func (l *loop) retry(now time.Time) {
	for len(l.retries) > 0 && !l.retries[0].retryAt.After(now) {
		l.ask(heap.Pop(&l.retries).(*lane))
	}
}

// recovered notes that a blocked lane has got through. Others of its topic that failed for the same
// reason need not wait any longer.
func (l *loop) recovered(ctx context.Context, n *lane) {
	topic := &l.topics[n.id.Topic]
	n.failures = 0
	delete(topic.blocked, n)
	if now := time.Now(); now.Sub(topic.freed) >= l.limits.firstDelay {
		topic.freed = now
		for other := range topic.blocked {
			if other.code == n.code && other.retryPos >= 0 {
				other.retryAt = now
			}
		}

		heap.Init(&l.retries)
	}

	l.relieved(ctx, topic)
}

// relieved looks at a topic of which one lane less is blocked.
func (l *loop) relieved(ctx context.Context, topic *topicState) {
	if topic.skipped > 0 && len(topic.blocked) <= l.limits.maxBlocked/2 {
		l.rewind(topic.skipped - 1)
		topic.skipped = 0
	}

	if len(topic.blocked) == 0 && topic.code != codes.OK {
		topic.code = codes.OK
		l.cfg.Log.InfoContext(ctx, "publishing goes on", slog.String("topic", topic.name))
	}
}

// remove forgets a lane.
func (l *loop) remove(ctx context.Context, n *lane) {
	n.gone = true
	delete(l.lanes, n.id)
	l.retries.remove(n)
	if topic := &l.topics[n.id.Topic]; n.failures > 0 {
		delete(topic.blocked, n)
		l.relieved(ctx, topic)
	}
}

// tell publishes what Stats shows: the counts at once, what takes a look at every lane once per second.
func (l *loop) tell(now time.Time) {
	l.undeleted.Store(int64(l.del.undeleted()))
	blocked := 0
	for i := range l.topics {
		blocked += len(l.topics[i].blocked)
	}

	l.cfg.Metrics.blocked.Set(float64(blocked))
	l.cfg.Metrics.inFlight.Set(float64(l.inFlight.Load()))

	last := l.report.Load()
	if now.Sub(l.toldAt) < tellEvery && last != nil && !l.news && blocked == last.blocked() {
		return
	}

	r := &report{}
	if now.Sub(l.toldAt) >= tellEvery || last == nil {
		l.toldAt, l.oldest = now, l.oldestInHand()
	}

	r.oldest, l.news = l.oldest, false
	for i := range l.topics {
		if t := &l.topics[i]; t.name != "" {
			r.topics = append(r.topics, TopicStats{ID: t.name, BlockedKeys: len(t.blocked), LastError: t.lastError,
				LastErrorAt: t.lastErrorAt})
		}
	}

	l.report.Store(r)
}

// tellEvery is how often every lane is looked at for the oldest message.
const tellEvery = time.Second

func (l *loop) oldestInHand() (oldest time.Time) {
	for _, n := range l.lanes {
		if oldest.IsZero() || n.since.Before(oldest) {
			oldest = n.since
		}
	}

	return oldest
}
