package publish

import (
	"context"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

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
		wanted := make([]outbox.Want, len(wants))
		for i, w := range wants {
			wanted[i] = outbox.Want{Lane: w.lane.id, From: w.from, Limit: w.limit}
		}

		r.lanes, err = l.store.Lanes(ctx, wanted)

		return err
	})
}

// begin lets a reading run, for readTimeout at most.
func (l *loop) begin(ctx context.Context, r readResult, read func(context.Context, *readResult) error) {
	l.window.hold()
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		r.err = read(ctx, &r)
		l.read <- r
	})
}

// take takes what a reading brought.
func (l *loop) take(ctx context.Context, r readResult) {
	now := time.Now()
	useful := l.reader.end(&r, now)
	switch {
	case !useful:
		if r.err != nil && ctx.Err() == nil {
			l.cfg.Log.WarnContext(ctx, "outbox not read, trying again", slog.Any("err", r.err))
		}

		l.lanes.again(r.wants)
	case r.wants == nil:
		for i := range r.page {
			if f := &r.page[i]; l.sendable(f) {
				l.add(row{f.Pending, f.Doubtful}, now)
			}
		}

		l.reader.page(&r)
	default:
		for i := range r.wants {
			l.lanes.read(&r.wants[i], r.lanes[i], l.sendable)
		}
	}

	l.reader.taken()
	l.window.release()
}

// sendable says whether a row is to be sent. One that never will be leaves the outbox as if it had been.
func (l *loop) sendable(f *outbox.Found) bool {
	if l.window.has(f.Seq) {
		return false
	}

	if f.Obsolete && !l.rest.isQuiet(f.Slot) {
		l.done(outbox.Sent{Seq: f.Seq, Slot: f.Slot})
	}

	switch kind := message.Kind(f.Kind); {
	case f.Held && kind == message.Retraction:
		l.reader.held = true
	case f.Held && kind == message.Original:
		l.reader.waits(f.Event.Escrow)
	}

	return !f.Held && !f.Obsolete && !l.outOfTurn(&f.Pending)
}

// outOfTurn says whether a row is an event's whose escrow has an earlier one that waits.
func (l *loop) outOfTurn(r *outbox.Pending) bool {
	return message.Kind(r.Kind) == message.Original && l.reader.behind(r.Event.Escrow)
}

// delete begins a deletion that is due. It is not held up by the loop, and does not hold it up.
func (l *loop) delete(now time.Time) {
	if at := l.del.due(l.hurry()); !at.IsZero() && !at.After(now) {
		l.del.begin(now)
	}
}

// carryOut tells the database, outside of the loop.
func (l *loop) carryOut(ctx context.Context, t task) {
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

// drain waits for what is under way, up to drainTimeout, deletes what was acknowledged, and ends
// every goroutine. cancel ends requests.
func (l *loop) drain(ctx context.Context, cancel context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	abandoned := 0
	for l.lanes.flying() > 0 {
		select {
		case f := <-l.flown:
			l.settle(ctx, f)
		case err := <-l.deleted:
			l.forget(ctx, err)
		case <-timer.C:
			abandoned = int(l.told.inFlight.Load())
			cancel() // makes them come back
		}
	}

	l.settleRest(ctx)
	l.wait.Wait()
	l.cfg.Handover.acked, l.cfg.Handover.doubts = l.del.waiting, l.del.doubts
	l.told.undeleted.Store(int64(len(l.del.waiting)))
	l.told.report.Store(nil)
	if n := len(l.del.waiting); n > 0 {
		l.cfg.Log.WarnContext(ctx,
			"stopped with acknowledged messages in the outbox: another process would publish them again",
			slog.Int("messages", n))
	}

	if abandoned > 0 {
		l.cfg.Log.WarnContext(ctx, "stopped with messages under way: they may be published again",
			slog.Int("messages", abandoned))
	}

	l.cfg.Metrics.blocked.Set(0)
	l.cfg.Metrics.inFlight.Set(0)
}

// settleRest deletes what was acknowledged and writes doubts down, until all is done, a task fails,
// or deleteAtEnd is over. Then it writes down that what is left may have been sent, which is one
// small statement.
func (l *loop) settleRest(ctx context.Context) {
	timer := time.NewTimer(deleteAtEnd)
	defer timer.Stop()
	for over := false; ; {
		if !l.del.busy {
			if over || l.del.fails > 0 || l.del.idle() {
				break
			}

			l.del.begin(time.Now())
		}

		select {
		case err := <-l.deleted:
			l.forget(ctx, err)
		case <-timer.C:
			over = true
			l.endTask()
		}
	}

	rest := l.del.rest()
	l.told.settled.Store(len(rest) == 0 || l.store.Doubt(ctx, rest) == nil)
	if l.told.settled.Load() {
		l.del.doubts = nil
	}
}
