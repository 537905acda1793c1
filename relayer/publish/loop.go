package publish

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// run works until ctx ends (nil) or the right does (ErrFenced). Requests run under sending.
func (l *loop) run(ctx, sending context.Context) error {
	l.del.run = func(rows []outbox.Sent, limit time.Duration) { l.runDeletion(ctx, rows, limit) }
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil { // select may choose another ready case: nothing is sent after the end
		now := time.Now()
		l.lanes.retry(now)
		l.recover(ctx)
		l.sendReady(sending, now)
		l.lanes.cancel(l.rest.overdue(now))
		l.readOn(ctx, now)
		l.delete(now)
		l.note(ctx, now)
		l.move(ctx, now)
		l.rest.notify(l.unsure, l.log.resting)
		l.showStatus()
		timer.Reset(l.pause(now))
		select {
		case <-ctx.Done():
			return nil
		case <-l.inbox.wake:
			l.open()
		case <-l.cfg.Hint:
			l.reader.again = true
		case f := <-l.answered:
			if err := l.takeAnswers(ctx, f); err != nil {
				return err
			}
		case r := <-l.read:
			l.take(ctx, r)
		case err := <-l.deleted:
			l.forget(ctx, err)
		case n := <-l.noting.noted:
			l.endNote(ctx, n)
		case m := <-l.noting.moved:
			l.endMove(ctx, m)
		case <-timer.C:
		}
	}

	return nil
}

// pause is the time until the next scheduled step.
func (l *loop) pause(now time.Time) time.Duration {
	at := l.reader.rereadAt
	next := []time.Time{l.lanes.retryAt(), l.reader.at(now), l.del.due(), l.rest.overdueAt(),
		l.noting.due(l.log, &l.limits, len(l.rest.waiting) > 0)}
	if l.lanes.blocked() > 0 && l.noting.again.After(now) {
		next = append(next, l.noting.again)
	}

	for _, t := range next {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}

	return max(0, at.Sub(now))
}

// open handles the inbox. Orders come before offers: rows offered before slots were yielded must
// stay unsent.
func (l *loop) open() {
	in := l.inbox.take()
	for _, o := range in.orders {
		l.applyOrder(o)
	}

	for _, o := range in.offers {
		l.accept(o)
	}

	if in.full {
		l.log.miss()
		l.reader.notTaken()
	}
}

// accept takes what was just committed, unless something older must be read first: then it is read with that, and so
// are later offers.
func (l *loop) accept(o outbox.Commit) {
	if o.Right != l.right || !l.log.caughtUp || o.From > l.log.end || len(o.Log) > l.window.room() {
		l.log.miss()
		l.reader.notTaken()

		return
	}

	for i := range o.Log {
		if int64(o.Log[i].Event.BlockNumber) >= l.log.end { // else it was read: as it was then, or with a row
			l.add(row{Pending: o.Log[i]})
		}
	}

	l.log.take(o.Next)
	for i := range o.Rows {
		if r := &o.Rows[i]; l.reader.take(r.Seq, l.window.room() > 0) {
			l.add(row{Pending: *r})
		}
	}
}

// applyOrder executes an order.
func (l *loop) applyOrder(o order) {
	switch o.what {
	case quiesce:
		l.rest.quiesce(o, time.Now())
		l.lanes.quiesce(l.rest.isQuiet)
		l.log.acked++ // what is acknowledged beyond is noted now
	case resume:
		l.rest.resume(o.slots)
		if o.right.Epoch > 0 { // they were released
			l.right.Epoch = max(l.right.Epoch, o.right.Epoch)
			l.slots = slices.DeleteFunc(slices.Clone(l.slots), func(s int16) bool { return slices.Contains(o.slots, s) })
		}

		l.reread()
	case reload:
		l.right, l.slots = o.right, o.slots
		l.reader.notUntil = time.Time{} // what failed under another right
		l.reread()
	}
}

// reread reads again what is to be published.
func (l *loop) reread() {
	if l.reader.rewind(0); l.shared.log != nil {
		l.log.disown()
	}
}

// recover logs when a topic has recovered.
func (l *loop) recover(ctx context.Context) {
	for i := range l.lanes.topics {
		if t := &l.lanes.topics[i]; len(t.blocked) == 0 && t.code != codes.OK {
			t.code = codes.OK
			l.cfg.Log.InfoContext(ctx, "publishing recovered", slog.String("topic", t.name))
		}
	}
}

// sendReady starts requests, each with rows of one lane.
func (l *loop) sendReady(sending context.Context, now time.Time) {
	for f := l.lanes.next(now); f != nil; f = l.lanes.next(now) {
		l.rest.begin(f.lane.id.Slot)
		l.shown.inFlight.Add(int64(len(f.rows)))
		ctx, cancel := context.WithCancel(sending)
		f.cancel = cancel
		topic := l.lanes.topics[f.lane.id.Topic].name
		l.wait.Go(func() {
			defer cancel()
			f.err = l.send(ctx, topic, f)
			l.answered <- f
		})
	}
}

// takeAnswers handles the outcome of a request, and of those that have ended meanwhile.
func (l *loop) takeAnswers(ctx context.Context, f *request) error {
	for {
		l.settle(ctx, f)
		if errors.Is(f.err, ErrFenced) {
			return ErrFenced
		}

		select {
		case f = <-l.answered:
		default:
			return nil
		}
	}
}

func (l *loop) settle(ctx context.Context, f *request) {
	n := f.lane
	l.rest.end(n.id.Slot)
	l.shown.inFlight.Add(-int64(len(f.rows)))
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

func (l *loop) acknowledged(f *request) {
	m, now := l.cfg.Metrics, time.Now()
	took := now.Sub(f.started).Seconds()
	for i := range f.rows {
		r := &f.rows[i]
		if message.Kind(r.Kind) == message.Original && r.Event.BlockTime > 0 {
			m.observeLatency(now.Sub(time.Unix(int64(r.Event.BlockTime), 0)), r.Trace)
		}

		if r.logged() {
			l.log.acknowledge(r.Slot, &r.Event)
		} else {
			l.done(r.Sent())
		}

		m.duration.Observe(took)
		if r.doubtful {
			m.republished.Inc()
		}
	}

	l.success = now
	m.published.Add(float64(len(f.rows)))
	l.lanes.acknowledged(f, now)
}

// failed handles a failed request; its rows are read again. If the messages may have been stored,
// they are in doubt.
func (l *loop) failed(ctx context.Context, f *request) {
	c, now := pubsub.Code(f.err), time.Now()
	for i := range f.rows {
		r := &f.rows[i]
		r.doubtful = r.doubtful || !pubsub.Refused(c)
		r.Trace = nil // the next attempt is no part of this one
	}

	changed := l.lanes.failed(f, c, now)
	if errors.Is(f.err, ErrFenced) {
		return // the request stayed here, and the tenure ends
	}

	l.cfg.Metrics.errors.WithLabelValues(c.String()).Inc()
	l.cfg.Metrics.last.Store(&Failure{At: now, Err: f.err})
	if !pubsub.Refused(c) {
		l.unsure[f.lane.id.Slot] = max(l.unsure[f.lane.id.Slot], f.rows[len(f.rows)-1].Seq)
	}

	if !changed {
		return // logged once per change: a lane's failures may last for hours, and thousands fail together
	}

	level := slog.LevelWarn
	if hopeless(c) {
		level = slog.LevelError
	}

	l.cfg.Log.LogAttrs(ctx, level, "publish failed, retrying",
		slog.String("topic", l.lanes.topics[f.lane.id.Topic].name),
		slog.String("key", l.store.Key(f.lane.id)), slog.String("code", c.String()), slog.Any("err", f.err))
}

// showStatus publishes what Stats and the metrics show.
func (l *loop) showStatus() {
	blocked := l.lanes.blocked()
	l.shown.undeleted.Store(int64(l.del.undeleted()))
	l.shown.blocked.Store(int64(blocked))
	l.cfg.Metrics.blocked.Set(float64(blocked))
	l.cfg.Metrics.inFlight.Set(float64(l.shown.inFlight.Load()))
}

// drain waits for what is in flight, up to drainTimeout, deletes what was acknowledged, and ends
// every goroutine. cancel ends requests.
func (l *loop) drain(ctx context.Context, cancel context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	timer := time.NewTimer(l.limits.drain)
	defer timer.Stop()
	abandoned := 0
	for l.lanes.underWay() > 0 {
		select {
		case f := <-l.answered:
			l.settle(ctx, f)
		case err := <-l.deleted:
			l.forget(ctx, err)
		case n := <-l.noting.noted:
			l.endNote(ctx, n)
		case m := <-l.noting.moved:
			l.endMove(ctx, m)
		case <-timer.C:
			abandoned = int(l.shown.inFlight.Load())
			cancel() // makes them come back
		}
	}

	l.settleRest(ctx)
	l.wait.Wait()
	l.cfg.Handover.acked, l.cfg.Handover.unsure = l.del.waiting, l.unsure
	l.cfg.Handover.entries = l.log.left()
	l.shown.undeleted.Store(int64(len(l.del.waiting) + l.log.entries))
	l.shown.blocked.Store(0)
	if n := len(l.del.waiting) + l.log.entries; n > 0 {
		l.cfg.Log.WarnContext(ctx,
			"stopped with acknowledged messages that are not noted as sent: another process would publish them again",
			slog.Int("messages", n))
	}

	if abandoned > 0 {
		l.cfg.Log.WarnContext(ctx, "stopped with messages in flight: they may be published again",
			slog.Int("messages", abandoned))
	}

	l.cfg.Metrics.blocked.Set(0)
	l.cfg.Metrics.inFlight.Set(0)
}

// settleRest notes and deletes what was acknowledged, until all is done, that fails, or deleteAtEnd is over. Then it
// records that what is left may have been sent, in one small statement.
func (l *loop) settleRest(ctx context.Context) {
	for _, n := range l.lanes.byID {
		l.lanes.drop(n)
	}

	l.rest.over = true
	timer := time.NewTimer(deleteAtEnd)
	defer timer.Stop()
	over := false
	for {
		if !over && !l.del.busy && l.del.fails == 0 && !l.del.idle() {
			l.del.begin()
		}

		if !over && !l.noting.busy && l.noting.fails == 0 && l.log.entries > 0 {
			l.beginNote(ctx, time.Now())
		}

		if !l.del.busy && !l.noting.busy && !l.noting.moves {
			break
		}

		select {
		case err := <-l.deleted:
			l.forget(ctx, err)
		case n := <-l.noting.noted:
			l.endNote(ctx, n)
		case m := <-l.noting.moved:
			l.endMove(ctx, m)
		case <-timer.C:
			if over = true; l.del.busy {
				l.endTask()
			}

			if l.noting.busy {
				l.noting.end()
			}
		}
	}

	unsure := slices.Collect(maps.Keys(l.unsure))
	for _, s := range l.del.waiting {
		unsure = append(unsure, s.Slot)
	}

	known := l.log.entries == 0 && (len(unsure) == 0 || l.store.Doubt(ctx, unsure) == nil)
	l.shown.settled.Store(known)
}
