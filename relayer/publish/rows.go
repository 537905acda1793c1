package publish

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
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
	epoch  int64           // offers of earlier ones are void
	slots  []int16         // that are held, as the last reload says
	unsure map[int16]int64 // as of Handover

	answered chan *request
	read     chan readResult
	deleted  chan error         // the outcome of a deletion
	endTask  context.CancelFunc // ends the deletion under way
	wait     sync.WaitGroup     // for requests, readings, deletions
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

	if l.unsure = s.cfg.Handover.unsure; l.unsure == nil {
		l.unsure = map[int16]int64{}
	}

	return l
}

// add hands a row to its lane, unless it is known, or nothing of its slot is to be sent.
func (l *loop) add(r row) {
	if l.window.has(r.ID) || l.rest.isQuiet(r.Slot) {
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
	l.window.enter(s.ID)
	l.rest.begin(s.Slot)
	l.del.add(time.Now(), s)
}

func (l *loop) notify() { l.rest.notify(l.unsure) }

// deletionsAwaited says whether somebody waits for deletions.
func (l *loop) deletionsAwaited() bool { return len(l.rest.waiting) > 0 }

// readOn begins the next reading, if there is something to read and room for it.
func (l *loop) readOn(ctx context.Context, now time.Time) {
	l.reader.refresh(now, l.lanes.saturated())
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
	mine, last, without := l.slots, l.reader.last, l.lanes.without(outbox.DefaultTopic) // which are read by key
	l.begin(ctx, l.reader.begin(nil), func(ctx context.Context, r *readResult) (err error) {
		r.page, err = l.store.Page(ctx, mine, last, r.limit, without)
		return err
	})
}

func (l *loop) readLanes(ctx context.Context, wants []want) {
	mine := l.slots
	l.begin(ctx, l.reader.begin(wants), func(ctx context.Context, r *readResult) (err error) {
		r.lanes, err = l.store.Lanes(ctx, mine, column.Of(wants, func(w *want) outbox.Want {
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

	l.window.endReading()
}

// sendable says whether a row is to be sent. One that has no event any more leaves the outbox as if it had been.
func (l *loop) sendable(f *outbox.Found) bool {
	if l.window.has(f.ID) {
		return false
	}

	if f.Gone && !l.rest.isQuiet(f.Slot) {
		l.done(f.Sent())
	}

	f.Doubtful = f.Doubtful || f.Seq <= l.unsure[f.Slot]

	return !f.Gone
}

// delete begins a deletion that is due. It is not held up by the loop, and does not hold it up.
func (l *loop) delete(now time.Time) {
	if at := l.del.due(l.deletionsAwaited()); !at.IsZero() && !at.After(now) {
		l.del.begin(now)
	}
}

// runDeletion deletes rows, outside of the loop.
func (l *loop) runDeletion(ctx context.Context, rows []outbox.Sent, limit time.Duration) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.endTask = cancel
	l.wait.Go(func() {
		defer cancel()
		l.deleted <- l.store.Delete(ctx, rows, limit)
	})
}

// forget takes the outcome of a deletion. Rows that could not be deleted stay known, and are
// deleted with the next ones.
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
		l.window.deleted(s.ID)
	}

	l.notify()
}
