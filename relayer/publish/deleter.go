package publish

import (
	"context"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// deleterState is what is to be deleted. One deletion is under way at most; what is acknowledged meanwhile goes with the next.
type deleterState struct {
	toDelete     []outbox.Sent
	deleteAt     time.Time     // of the deletion that is being filled
	deleteFails  int           // in a row
	deleteNotYet time.Time     // after a failure
	deleting     []outbox.Sent // empty: no deletion is under way
	deleted      chan deletion
}

// deletion is the outcome of one.
type deletion struct {
	retractions int64
	err         error
}

// done notes that a row need not be sent any more.
func (l *loop) done(s outbox.Sent) {
	if len(l.toDelete) == 0 {
		l.deleteAt = time.Now().Add(l.limits.linger)
	}
	l.known[s.Seq] = true
	l.busy[s.Slot]++
	l.toDelete = append(l.toDelete, s)
}

func (l *loop) unbusy(slot int16) {
	if l.busy[slot]--; l.busy[slot] == 0 {
		delete(l.busy, slot)
	}
}

// deleteTime is when the next deletion is due; zero while there is nothing to delete, or while one is under way.
func (l *loop) deleteTime() time.Time {
	switch {
	case len(l.toDelete) == 0 || len(l.deleting) > 0:
		return time.Time{}
	case l.deleteNotYet.After(l.deleteAt):
		return l.deleteNotYet
	case len(l.toDelete) >= l.limits.deleteRows || len(l.quiescing) > 0:
		return l.deleteNotYet.Add(1) // past, and not zero
	}
	return l.deleteAt
}

// delete begins a deletion that is due. It is not held up by the loop, and does not hold it up.
func (l *loop) delete(ctx context.Context, now time.Time) {
	if at := l.deleteTime(); at.IsZero() || at.After(now) {
		return
	}
	l.deleting, l.toDelete = l.toDelete, nil
	rows := l.deleting
	l.wait.Go(func() {
		var d deletion
		d.retractions, d.err = l.deleteSent(ctx, rows)
		l.deleted <- d
	})
}

func (l *loop) deleteSent(ctx context.Context, rows []outbox.Sent) (retractions int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	return l.box.Delete(ctx, rows)
}

// forget takes the outcome of a deletion. Rows that could not be deleted stay known, and are deleted with the next ones.
func (l *loop) forget(ctx context.Context, d deletion) {
	rows := l.deleting
	l.deleting = nil
	if d.err != nil {
		l.deleteFails++
		l.deleteNotYet = time.Now().Add(min(5*time.Second, l.limits.firstDelay<<min(l.deleteFails, 6)))
		l.toDelete = append(rows, l.toDelete...)
		l.cfg.Log.WarnContext(ctx, "acknowledged messages not deleted from the outbox, trying again", slog.Int("messages", len(rows)), slog.Any("err", d.err))
		return
	}
	l.deleteFails = 0
	for _, s := range rows {
		l.unbusy(s.Slot)
		if l.reading {
			l.buried = append(l.buried, s.Seq)
		} else {
			delete(l.known, s.Seq)
		}
	}
	if d.retractions > 0 {
		l.cfg.Log.InfoContext(ctx, "events retracted that were on their way when a reorganisation removed them", slog.Int64("events", d.retractions))
		l.rewind(0)
	}
	l.stilled()
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
	if len(l.deleting) > 0 {
		l.forget(ctx, <-l.deleted)
	}
	l.wait.Wait()
	l.cfg.Carry.acked = nil
	if _, err := l.deleteSent(ctx, l.toDelete); err != nil {
		l.cfg.Carry.acked = l.toDelete
		l.cfg.Log.WarnContext(ctx, "stopped with acknowledged messages in the outbox: another process would publish them again", slog.Int("messages", len(l.toDelete)), slog.Any("err", err))
	}
	if abandoned > 0 {
		l.cfg.Log.WarnContext(ctx, "stopped with messages under way: they may be published again", slog.Int("messages", abandoned))
	}
	l.cfg.Metrics.blocked.Set(0)
	l.cfg.Metrics.inFlight.Set(0)
}
