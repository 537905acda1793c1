package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// loop connects the parts: it passes them events, one after the other, and carries out their
// decisions. Network calls run in other goroutines, which report through answered, read, deleted and
// the channels of noting; each channel has room for all that can be in flight. Everything else
// belongs to the goroutine of Run.
type loop struct {
	*shared

	log     *places // hides the box of shared
	window  window
	lanes   lanes
	reader  reader
	del     deleter
	noting  noting
	rest    rest
	right   outbox.Right    // of the last reload: offers under another are void
	slots   []int16         // held, by the last reload
	unsure  map[int16]int64 // as of Handover
	success time.Time       // of the last request

	answered chan *request
	read     chan readResult
	deleted  chan error         // the outcome of a deletion
	endTask  context.CancelFunc // ends the deletion in flight
	wait     sync.WaitGroup     // for all of those goroutines
}

// newLoop returns the loop of a publisher, with the handover of the tenure before it.
func newLoop(s *shared) *loop {
	l := &loop{
		shared: s, log: &places{slots: map[int16]*slotPlaces{}, caughtUp: s.log == nil, unowned: s.log != nil},
		noting: newNoting(time.Now()), rest: newRest(), reader: newReader(&s.limits, s.cfg.Jitter, time.Now()),
		answered: make(chan *request, outbox.Topics*s.limits.requests),
		read:     make(chan readResult, 1),
		deleted:  make(chan error, 1),
		del:      deleter{size: deleteMost},
	}
	l.log.restore(s.cfg.Handover.entries)
	l.window = newWindow(&s.limits, l.log)
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

// add passes a message to its lane, unless it is in the window or its slot must be quiet.
func (l *loop) add(r row) {
	if l.rest.isQuiet(r.Slot) {
		if r.logged() {
			l.log.leave(r.Slot, &r.Event)
		}

		return
	}

	id := l.store.LaneOf(&r.Pending)
	if r.logged() {
		if !l.log.enter(r.Slot, &r.Event) {
			return
		}
	} else if l.window.has(r.ID) {
		return
	}

	if l.lanes.topics[id.Topic].name == "" {
		if r.logged() {
			l.log.acknowledge(r.Slot, &r.Event)
			return
		}

		l.done(r.Sent()) // its topic is unconfigured: it leaves the outbox as if sent
		return
	}

	l.lanes.add(id, r)
}

// done marks a row as finished: it is deleted next.
func (l *loop) done(s outbox.Sent) {
	l.window.enter(s.ID)
	l.rest.begin(s.Slot)
	l.del.add(s)
}

// readOn begins the next reading, if there are rows to read and room for them.
func (l *loop) readOn(ctx context.Context, now time.Time) {
	if l.reader.refresh(now, l.lanes.saturated()) && l.log.caughtUp && l.shared.log != nil {
		l.log.disown()
	}

	room := l.window.room()
	l.log.crowded = room < l.reader.rows
	l.readSkipped()
	what := l.reader.next(now, room, l.log)
	if what == thePlaces && l.noting.busy || what <= theLog && l.noting.moves {
		return
	}

	switch what {
	case aPage:
		l.readPage(ctx)
	case thePlaces:
		l.begin(ctx, l.reader.begin(what), func(ctx context.Context, r *readResult) (err error) {
			r.sent, err = l.shared.log.Sent(ctx, r.right)
			return err
		})
	case theLog:
		l.log.missed = false
		sent, last := l.log.floors(), l.log.last
		l.begin(ctx, l.reader.begin(what), func(ctx context.Context, r *readResult) (err error) {
			r.from = last
			r.log, err = l.shared.log.Log(ctx, r.right, sent, last, r.limit)
			return err
		})
	}
}

// readSkipped has the outbox read again from what was skipped, once there is no reading that this would void.
func (l *loop) readSkipped() {
	if l.reader.busy {
		return
	}

	if seq := l.lanes.takeSkipped(); seq > 0 {
		l.reader.rewind(seq - 1)
	}
}

func (l *loop) readPage(ctx context.Context) {
	mine, last, without := l.slots, l.reader.last, l.lanes.without(outbox.DefaultTopic, l.reader.last)
	l.begin(ctx, l.reader.begin(aPage), func(ctx context.Context, r *readResult) (err error) {
		r.page, r.next, err = l.store.Page(ctx, r.right, mine, last, r.limit, without)
		return err
	})
}

// begin runs a reading, for readTimeout at most.
func (l *loop) begin(ctx context.Context, r readResult, read func(context.Context, *readResult) error) {
	l.window.beginReading()
	r.right = l.right
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		r.err = read(ctx, &r)
		l.read <- r
	})
}

// take handles the result of a reading. What is of the outbox counts only if the log is taken to its end, and that is
// no earlier than the reading: of each key, the log comes first.
func (l *loop) take(ctx context.Context, r readResult) {
	l.open()
	switch useful := l.reader.end(&r, time.Now()); {
	case !useful:
		if r.err != nil && ctx.Err() == nil && !errors.Is(r.err, outbox.ErrMoved) { // the watch says when it may go on
			l.cfg.Log.WarnContext(ctx, "reading what is to be published failed, retrying", slog.Any("err", r.err))
		}
	case r.what == aPage && (!l.log.caughtUp || r.next > l.log.end):
		l.log.miss() // what of the log came in between, and is not offered yet, is read first
	case r.what == thePlaces:
		l.log.owned(r.sent)
	case r.what == theLog:
		if !l.log.read(r.from, &r.log) {
			break
		}

		for i := range r.log.Events {
			f := &r.log.Events[i]
			l.add(row{f.Pending, f.Doubtful})
		}
	default:
		for i := range r.page {
			if f := &r.page[i]; l.sendable(f) {
				l.add(row{f.Pending, f.Doubtful})
			}
		}

		l.reader.page(&r)
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
	if at := l.del.due(); !at.IsZero() && !at.After(now) {
		l.del.begin()
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
}
