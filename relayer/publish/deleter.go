package publish

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
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

// deleter writes down what became of rows: those that need not be sent any more leave the outbox,
// and what may have been sent and may not raises the doubt of its slot.
//
// A row is in waiting or in batch, and in one of them only, from add until a deletion that named it
// has succeeded; likewise a doubt in doubts or in doubting. One task is under way at most, with
// batch and doubting; size and limit are for the next deletion. It belongs to the goroutine of the
// loop.
type deleter struct {
	run     func(task) // works in a goroutine of its own, and reports to the loop
	linger  time.Duration
	full    int // rows that are worth a deletion before linger is over
	maxSize int

	waiting  []outbox.Sent
	since    time.Time // when the first of waiting came
	doubts   map[int16]int64
	batch    []outbox.Sent
	doubting map[int16]int64
	busy     bool // a task is under way
	begun    time.Time
	size     int // rows
	limit    time.Duration
	fails    int // in a row
	pause    time.Time
}

// task is what the database is to be told in one go: first the doubts.
type task struct {
	doubts map[int16]int64
	rows   []outbox.Sent
	limit  time.Duration // of the deletion
}

func (d *deleter) add(now time.Time, s outbox.Sent) {
	if len(d.waiting) == 0 {
		d.since = now
	}

	d.waiting = append(d.waiting, s)
}

// doubt notes that rows of a slot up to a seq may have been sent.
func (d *deleter) doubt(slot int16, seq int64) {
	if d.doubts == nil {
		d.doubts = map[int16]int64{}
	}

	d.doubts[slot] = max(d.doubts[slot], seq)
}

// doubtful says whether there are doubts that are not written down yet.
func (d *deleter) doubtful() bool { return len(d.doubts) > 0 || len(d.doubting) > 0 }

// doubtfulSlot says the same of one slot.
func (d *deleter) doubtfulSlot(slot int16) bool { return d.doubts[slot] > 0 || d.doubting[slot] > 0 }

// undeleted is how many rows it has.
func (d *deleter) undeleted() int { return len(d.waiting) + len(d.batch) }

// due is when the next task is to begin; zero while there is nothing to do, or while one is under way.
func (d *deleter) due(hurry bool) time.Time {
	switch {
	case d.busy || len(d.waiting) == 0 && len(d.doubts) == 0:
		return time.Time{}
	case len(d.doubts) > 0 || len(d.waiting) >= min(d.full, d.size) || hurry:
		return d.pause.Add(1) // past, and not zero
	case d.pause.After(d.since.Add(d.linger)):
		return d.pause
	}

	return d.since.Add(d.linger)
}

// begin begins a task. Of the rows it deletes the oldest, since neighbours in the table and its
// indexes cost less together.
func (d *deleter) begin(now time.Time) {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return cmp.Compare(a.Seq, b.Seq) })
	n := min(len(d.waiting), d.size)
	d.batch = slices.Clone(d.waiting[:n])
	d.waiting, d.since = append(d.waiting[:0], d.waiting[n:]...), now
	d.doubting, d.doubts = d.doubts, nil
	d.busy, d.begun = true, now
	d.run(task{d.doubting, d.batch, d.limit})
}

// end takes the outcome of the task under way and returns the rows that are gone. What could not be
// written down waits again.
func (d *deleter) end(now time.Time, err error, jitter float64) (gone []outbox.Sent) {
	rows, took := d.batch, now.Sub(d.begun)
	doubting := d.doubting
	d.busy, d.batch, d.doubting = false, nil, nil
	if err != nil {
		d.waiting = append(d.waiting, rows...)
		for slot, seq := range doubting {
			d.doubt(slot, seq)
		}

		if d.size == 1 {
			d.limit = min(2*d.limit, maxDeleteLimit)
		}

		d.size = max(1, min(d.size, max(len(rows), 1))/2)
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

// carryOut tells the database, outside of the loop.
func (l *loop) carryOut(ctx context.Context, t task) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.endTask = cancel
	l.wait.Go(func() {
		defer cancel()
		var err error
		if len(t.doubts) > 0 {
			err = l.box.Doubt(ctx, t.doubts)
		}

		if err == nil && len(t.rows) > 0 {
			err = l.box.Delete(ctx, t.rows, t.limit)
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
		l.unbusy(s.Slot)
		if l.reading {
			l.deletedDuringRead = append(l.deletedDuringRead, s.Seq)
		} else {
			delete(l.known, s.Seq)
		}
	}

	if l.heldRetractions && len(gone) > 0 { // they may have waited for these
		l.heldRetractions = false
		l.rewind(0)
	}

	l.notifyDrained()
}

// settleRest deletes what was acknowledged and writes doubts down, until all is done, a task fails,
// or deleteAtEnd is over. Then it writes down that what is left may have been sent, which is one
// small statement.
func (l *loop) settleRest(ctx context.Context) {
	timer := time.NewTimer(deleteAtEnd)
	defer timer.Stop()
	for over := false; ; {
		if !l.del.busy {
			if over || l.del.fails > 0 || len(l.del.waiting) == 0 && !l.del.doubtful() {
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

	rest := maps.Clone(l.del.doubts)
	if rest == nil {
		rest = map[int16]int64{}
	}

	for _, s := range l.del.waiting {
		rest[s.Slot] = max(rest[s.Slot], s.Seq)
	}

	l.settled.Store(len(rest) == 0 || l.box.Doubt(ctx, rest) == nil)
	if l.settled.Load() {
		l.del.doubts = nil
	}
}

// drain waits for what is under way, up to drainTimeout, deletes what was acknowledged, and ends
// every goroutine. cancel ends requests.
func (l *loop) drain(ctx context.Context, cancel context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	abandoned := 0
	for l.flying > 0 {
		select {
		case f := <-l.flown:
			l.settle(ctx, f)
		case err := <-l.deleted:
			l.forget(ctx, err)
		case <-timer.C:
			abandoned = int(l.inFlight.Load())
			cancel() // makes them come back
		}
	}

	l.settleRest(ctx)
	l.wait.Wait()
	l.cfg.Handover.acked, l.cfg.Handover.doubts = l.del.waiting, l.del.doubts
	l.undeleted.Store(int64(len(l.del.waiting)))
	l.report.Store(nil)
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
