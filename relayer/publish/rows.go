package publish

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// loop connects the parts: it passes them events, one after the other, and carries out their
// decisions. Network calls run in other goroutines, which wait counts and which report through
// answered, read and deleted; each channel has room for all that can be in flight. Everything else
// belongs to the goroutine of Run.
type loop struct {
	*shared

	window window
	lanes  lanes
	reader reader
	del    deleter
	rest   rest
	epoch  int64           // offers of earlier epochs are void
	slots  []int16         // held, by the last reload
	unsure map[int16]int64 // as of Handover

	answered chan *request
	read     chan readResult
	deleted  chan error         // the outcome of a deletion
	endTask  context.CancelFunc // ends the deletion in flight
	wait     sync.WaitGroup     // for requests, readings, deletions
}

// newLoop returns the loop of a publisher, with the handover of the tenure before it.
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

// add passes a row to its lane, unless it is in the window or its slot must be quiet.
func (l *loop) add(r row) {
	if l.window.has(r.ID) || l.rest.isQuiet(r.Slot) {
		return
	}

	id := l.store.LaneOf(&r.Pending)
	if l.lanes.topics[id.Topic].name == "" {
		l.done(r.Sent()) // its topic is unconfigured: it leaves the outbox as if sent
		return
	}

	l.lanes.add(id, r)
}

// done marks a row as finished: it is deleted next.
func (l *loop) done(s outbox.Sent) {
	l.window.enter(s.ID)
	l.rest.begin(s.Slot)
	l.del.add(time.Now(), s)
}

func (l *loop) notify() { l.rest.notify(l.unsure) }

// deletionsAwaited reports whether an order waits for deletions.
func (l *loop) deletionsAwaited() bool { return len(l.rest.waiting) > 0 }

// readOn begins the next reading, if there are rows to read and room for them.
func (l *loop) readOn(ctx context.Context, now time.Time) {
	l.reader.refresh(now, l.lanes.saturated())
	room := l.window.room()
	what := l.reader.next(now, room, len(l.lanes.wanted) > 0)
	if what == someLanes {
		if wants := l.lanes.choose(min(lanesAtOnce, l.reader.rows)); len(wants) > 0 {
			l.readLanes(ctx, wants)
			return
		}

		what = l.reader.next(now, room, false) // the waiting lanes are gone
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

// begin runs a reading, for readTimeout at most.
func (l *loop) begin(ctx context.Context, r readResult, read func(context.Context, *readResult) error) {
	l.window.beginReading()
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		r.err = read(ctx, &r)
		l.read <- r
	})
}

// take handles the result of a reading.
func (l *loop) take(ctx context.Context, r readResult) {
	useful := l.reader.end(&r, time.Now())
	switch {
	case !useful:
		if r.err != nil && ctx.Err() == nil {
			l.cfg.Log.WarnContext(ctx, "outbox read failed, retrying", slog.Any("err", r.err))
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

// sendable reports whether a row must be sent. One without an event, which was deleted, leaves the outbox as if
// sent.
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

// delete begins a deletion that is due, concurrently with the loop.
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

// forget handles the outcome of a deletion. Rows that remain stay known, and are deleted with the
// next ones.
func (l *loop) forget(ctx context.Context, err error) {
	attempted := len(l.del.batch)
	gone := l.del.end(time.Now(), err, l.cfg.Jitter())
	if err != nil {
		l.cfg.Log.WarnContext(ctx, "deletion of acknowledged messages from the outbox failed, retrying",
			slog.Int("messages", attempted), slog.Int("undeleted", l.del.undeleted()), slog.Any("err", err))
		return
	}

	for _, s := range gone {
		l.rest.end(s.Slot)
		l.window.deleted(s.ID)
	}

	l.notify()
}
