package publish

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Limits of deletions. A database that is slow gets smaller ones and more time; one that is fast gets larger ones.
const (
	// deleteLimit bounds one deletion, and maxDeleteLimit one of a single row where even that took too long.
	deleteLimit    = 8 * time.Second
	maxDeleteLimit = 2 * time.Minute
	// maxDeletePause bounds the pause after a deletion that failed.
	maxDeletePause = 5 * time.Second
)

// deleter takes rows out of the outbox that need not be sent any more.
//
// A row is in waiting or in batch, and in one of them only, from add until a deletion that named it has succeeded. At most one deletion is
// under way, of the rows of batch; size and limit are for the next one. It belongs to the goroutine of the loop.
type deleter struct {
	run     func(rows []outbox.Sent, limit time.Duration) // deletes in a goroutine of its own, and reports to the loop
	linger  time.Duration                                 // of rows before a deletion that is not full
	full    int                                           // rows that are worth a deletion at once
	maxSize int

	waiting []outbox.Sent
	since   time.Time // when the first of waiting came
	batch   []outbox.Sent
	begun   time.Time // of the deletion under way
	size    int       // rows
	limit   time.Duration
	fails   int // in a row
	pause   time.Time
}

// deletion is the outcome of one.
type deletion struct {
	retractions int64
	err         error
}

func (d *deleter) add(now time.Time, s outbox.Sent) {
	if len(d.waiting) == 0 {
		d.since = now
	}
	d.waiting = append(d.waiting, s)
}

// due is when the next deletion is to begin; zero while there is nothing to delete, or while one is under way.
func (d *deleter) due(hurry bool) time.Time {
	switch {
	case len(d.waiting) == 0 || len(d.batch) > 0:
		return time.Time{}
	case len(d.waiting) >= min(d.full, d.size) || hurry:
		return d.pause.Add(1) // past, and not zero
	case d.pause.After(d.since.Add(d.linger)):
		return d.pause
	}
	return d.since.Add(d.linger)
}

// begin begins a deletion: of the oldest rows, since neighbours in the table and its indexes cost less together.
func (d *deleter) begin(now time.Time) {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return int(a.Seq - b.Seq) })
	n := min(len(d.waiting), d.size)
	d.batch, d.begun = slices.Clone(d.waiting[:n]), now
	d.waiting, d.since = append(d.waiting[:0], d.waiting[n:]...), now
	d.run(d.batch, d.limit)
}

// end takes the outcome of the deletion under way and returns the rows that are gone. Rows that could not be deleted wait again.
func (d *deleter) end(now time.Time, err error, jitter float64) (gone []outbox.Sent) {
	rows, took := d.batch, now.Sub(d.begun)
	d.batch = nil
	if err != nil {
		d.waiting = append(d.waiting, rows...)
		if d.size == 1 {
			d.limit = min(2*d.limit, maxDeleteLimit)
		}
		d.size = max(1, min(d.size, len(rows))/2)
		d.fails++
		delay := min(maxDeletePause, 100*time.Millisecond<<min(d.fails, 6))
		d.pause = now.Add(time.Duration((0.5 + jitter/2) * float64(delay)))
		return nil
	}

	d.fails, d.pause = 0, time.Time{}
	if took <= d.limit/4 && len(rows) == d.size {
		d.size = min(2*d.size, d.maxSize)
	}
	if took <= deleteLimit/4 {
		d.limit = deleteLimit
	}
	return rows
}

// done notes that a row need not be sent any more.
func (l *loop) done(s outbox.Sent) {
	l.known[s.Seq] = true
	l.busy[s.Slot]++
	l.del.add(time.Now(), s)
}

func (l *loop) unbusy(slot int16) {
	if l.busy[slot]--; l.busy[slot] == 0 {
		delete(l.busy, slot)
	}
}

// delete begins a deletion that is due. It is not held up by the loop, and does not hold it up.
func (l *loop) delete(now time.Time) {
	if at := l.del.due(len(l.quiescing) > 0); !at.IsZero() && !at.After(now) {
		l.del.begin(now)
	}
}

func (l *loop) deleteRows(ctx context.Context, rows []outbox.Sent, limit time.Duration) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.endDeletion = cancel
	l.wait.Go(func() {
		defer cancel()
		var d deletion
		d.retractions, d.err = l.box.Delete(ctx, rows, limit)
		l.deleted <- d
	})
}

// forget takes the outcome of a deletion. Rows that could not be deleted stay known, and are deleted with the next ones.
func (l *loop) forget(ctx context.Context, d deletion) {
	attempted := len(l.del.batch)
	gone := l.del.end(time.Now(), d.err, l.cfg.Jitter())
	if d.err != nil {
		l.cfg.Log.WarnContext(ctx, "acknowledged messages not deleted from the outbox, trying again",
			slog.Int("messages", attempted), slog.Int("undeleted", len(l.del.waiting)), slog.Any("err", d.err))
		return
	}
	for _, s := range gone {
		l.unbusy(s.Slot)
		if l.reading {
			l.deletedDuringRead = append(l.deletedDuringRead, s.Seq)
		} else {
			delete(l.known, s.Seq)
		}
	}
	if d.retractions > 0 {
		l.cfg.Log.InfoContext(ctx, "events retracted that were on their way when a reorganisation removed them", slog.Int64("events", d.retractions))
		l.rewind(0)
	}
	l.notifyDrained()
}

// deleteRest deletes what was acknowledged, until all is deleted, a deletion fails, or deleteAtEnd is over.
func (l *loop) deleteRest(ctx context.Context) {
	timer := time.NewTimer(deleteAtEnd)
	defer timer.Stop()
	for over := false; ; {
		if len(l.del.batch) == 0 {
			if over || len(l.del.waiting) == 0 || l.del.fails > 0 {
				return
			}
			l.del.begin(time.Now())
		}
		select {
		case d := <-l.deleted:
			l.forget(ctx, d)
		case <-timer.C:
			over = true
			l.endDeletion()
		}
	}
}

// drain waits for what is under way, up to drainTimeout, deletes what was acknowledged, and ends every goroutine. cancel ends requests.
func (l *loop) drain(ctx context.Context, cancel context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	abandoned := 0
	for l.flying > 0 {
		select {
		case f := <-l.flown:
			l.settle(ctx, f)
		case d := <-l.deleted:
			l.forget(ctx, d)
		case <-timer.C:
			abandoned = int(l.inFlight.Load())
			cancel() // makes them come back
		}
	}

	l.deleteRest(ctx)
	l.wait.Wait()
	l.cfg.Carry.acked = l.del.waiting
	l.undeleted.Store(int64(len(l.del.waiting)))
	if n := len(l.del.waiting); n > 0 {
		l.cfg.Log.WarnContext(ctx, "stopped with acknowledged messages in the outbox: another process would publish them again", slog.Int("messages", n))
	}
	if abandoned > 0 {
		l.cfg.Log.WarnContext(ctx, "stopped with messages under way: they may be published again", slog.Int("messages", abandoned))
	}
	l.cfg.Metrics.blocked.Set(0)
	l.cfg.Metrics.inFlight.Set(0)
}
