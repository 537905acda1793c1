package publish

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// loop connects the parts: it gives them what happens, one event after the other, and has carried
// out what they want. What waits for a network does so in goroutines of its own, which wait counts
// and which report through answered, read and deleted; each of those has room for whatever can be
// under way. Everything else belongs to the goroutine of Run.
type loop struct {
	*shared

	window window
	lanes  lanes
	reader reader
	del    deleter
	rest   rest
	epoch  int64 // offers of earlier ones are void

	answered chan *request
	read     chan readResult
	deleted  chan error         // the outcome of a task of del
	endTask  context.CancelFunc // ends the task under way
	wait     sync.WaitGroup     // for requests, readings, tasks
}

// newLoop returns the loop of a publisher with what the tenure before it has left.
func newLoop(s *shared) *loop {
	l := &loop{
		shared: s, window: newWindow(&s.limits), rest: newRest(), reader: newReader(&s.limits, s.cfg.Jitter, time.Now()),
		answered: make(chan *request, outbox.Topics*s.limits.requests),
		read:     make(chan readResult, 1),
		deleted:  make(chan error, 1),
		del: deleter{linger: s.limits.linger, full: s.limits.deleteFull, maxSize: s.limits.deleteMost,
			deletionPace: deletionPace{size: s.limits.deleteFull, limit: deleteLimit}},
	}
	l.lanes = newLanes(&s.limits, &l.window, s.cfg.Jitter,
		[outbox.Topics]string{s.cfg.Topics.Default, s.cfg.Topics.Other, s.cfg.Topics.Retractions})
	for _, s := range s.cfg.Handover.acked {
		l.done(s)
	}

	l.del.doubts = s.cfg.Handover.doubts

	return l
}

// add hands a row to its lane, unless it is known, or nothing of its slot is to be sent.
func (l *loop) add(r row) {
	if l.window.has(r.Seq) || l.rest.isQuiet(r.Slot) {
		return
	}

	id := l.box.LaneOf(&r.Pending)
	if l.lanes.topics[id.Topic].name == "" {
		l.done(r.Sent()) // nobody asked for it: it leaves the outbox as if sent
		return
	}

	l.lanes.add(id, r)
}

// done notes that a row need not be sent any more: it is to be deleted.
func (l *loop) done(s outbox.Sent) {
	l.window.enter(s.Seq)
	l.rest.begin(s.Slot)
	l.del.add(time.Now(), s)
}

func (l *loop) notify() { l.rest.notify(l.del.doubtfulSlot) }

// deletionsAwaited says whether somebody waits for deletions.
func (l *loop) deletionsAwaited() bool { return len(l.rest.waiting) > 0 }

// readOn begins the next reading, if there is something to read and room for it. What is read says
// which rows are in doubt, so doubts are written down before.
func (l *loop) readOn(ctx context.Context, now time.Time) {
	l.reader.refresh(now, l.lanes.saturated())
	if l.del.doubtful() {
		return
	}

	room := l.window.room()
	what := l.reader.next(now, room, len(l.lanes.wanted) > 0)
	if what == someLanes {
		if wants := l.lanes.choose(min(lanesAtOnce, l.reader.rows)); len(wants) > 0 {
			l.readLanes(ctx, wants)
			return
		}

		what = l.reader.next(now, room, false) // those that waited are gone
	}

	if what == aPage {
		l.readPage(ctx)
	}
}

func (l *loop) readPage(ctx context.Context) {
	last, without := l.reader.last, l.lanes.without(outbox.DefaultTopic) // which are read by key
	l.begin(ctx, l.reader.begin(nil), func(ctx context.Context, r *readResult) (err error) {
		r.page, err = l.store.Page(ctx, last, r.limit, without)
		return err
	})
}

func (l *loop) readLanes(ctx context.Context, wants []want) {
	l.begin(ctx, l.reader.begin(wants), func(ctx context.Context, r *readResult) (err error) {
		r.lanes, err = l.store.Lanes(ctx, column.Of(wants, func(w *want) outbox.Want {
			return outbox.Want{Lane: w.lane.id, From: w.from, Limit: w.limit}
		}))

		return err
	})
}

// begin lets a reading run, for readTimeout at most.
func (l *loop) begin(ctx context.Context, r readResult, read func(context.Context, *readResult) error) {
	l.window.beginReading()
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		r.err = read(ctx, &r)
		l.read <- r
	})
}

// take takes what a reading brought.
func (l *loop) take(ctx context.Context, r readResult) {
	useful := l.reader.end(&r, time.Now())
	switch {
	case !useful:
		if r.err != nil && ctx.Err() == nil {
			l.cfg.Log.WarnContext(ctx, "outbox not read, trying again", slog.Any("err", r.err))
		}

		l.lanes.again(r.wants)
	case r.wants == nil:
		for i := range r.page {
			if f := &r.page[i]; l.sendable(f) {
				l.add(row{f.Pending, f.Doubtful})
			}
		}

		l.reader.page(&r)
	default:
		for i := range r.wants {
			l.lanes.read(&r.wants[i], r.lanes[i], l.sendable)
		}
	}

	l.reader.taken()
	l.window.endReading()
}

// sendable says whether a row is to be sent. One that never will be leaves the outbox as if it had been.
func (l *loop) sendable(f *outbox.Found) bool {
	if l.window.has(f.Seq) {
		return false
	}

	if f.Obsolete && !l.rest.isQuiet(f.Slot) {
		l.done(f.Sent())
	}

	switch kind := message.Kind(f.Kind); {
	case f.Held && kind == message.Retraction:
		l.reader.retractionsHeld = true
	case f.Held && kind == message.Original:
		l.reader.seen = append(l.reader.seen, f.Event.Escrow)
	}

	return !f.Held && !f.Obsolete && !l.outOfTurn(&f.Pending)
}

// outOfTurn says whether a row is an event's whose escrow has an earlier one that waits.
func (l *loop) outOfTurn(r *outbox.Pending) bool {
	return message.Kind(r.Kind) == message.Original && l.reader.waiting[r.Event.Escrow]
}

// delete begins a deletion that is due. It is not held up by the loop, and does not hold it up.
func (l *loop) delete(now time.Time) {
	if at := l.del.due(l.deletionsAwaited()); !at.IsZero() && !at.After(now) {
		l.del.begin(now)
	}
}

// runTask tells the database, outside of the loop.
func (l *loop) runTask(ctx context.Context, t task) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.endTask = cancel
	l.wait.Go(func() {
		defer cancel()
		var err error
		if len(t.doubts) > 0 {
			err = l.store.Doubt(ctx, t.doubts)
		}

		if err == nil && len(t.rows) > 0 {
			err = l.store.Delete(ctx, t.rows, t.limit)
		}

		l.deleted <- err
	})
}

// forget takes the outcome of a task. Rows that could not be deleted stay known, and are deleted with the next ones.
func (l *loop) forget(ctx context.Context, err error) {
	attempted := len(l.del.batch)
	gone := l.del.end(time.Now(), err, l.cfg.Jitter())
	if err != nil {
		l.cfg.Log.WarnContext(ctx, "acknowledged messages not deleted from the outbox, trying again",
			slog.Int("messages", attempted), slog.Int("undeleted", l.del.undeleted()), slog.Any("err", err))
		return
	}

	for _, s := range gone {
		l.rest.end(s.Slot)
		l.window.deleted(s.Seq)
	}

	if len(gone) > 0 {
		l.reader.deleted()
	}

	l.notify()
}
