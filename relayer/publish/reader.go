package publish

import (
	"context"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// outboxState is where the reading of the outbox stands. One reading is under way at most: that is
// what makes them come in order.
type outboxState struct {
	last     int64   // highest seq that this pass over the outbox has looked at
	looked   int64   // highest seq that any pass has
	caughtUp bool    // there was nothing behind last
	offered  int64   // highest seq that was offered
	turn     int     // raised when something calls for another look: readings of earlier turns are void
	wanted   []*lane // to be read by key

	pageRows          int // of the next page: fewer after a failure
	reading           bool
	deletedDuringRead []int64 // rows deleted since the reading began, which may bring them still
	heldRetractions   bool    // retractions were seen that wait for the deletion of their event's row
	byKey             bool    // the last reading was by key
	failures          int     // in a row
	notUntil          time.Time
	rereadAt          time.Time
	read              chan reading
}

// reading is what the reader brought: a page of the outbox, or the rows of some lanes.
type reading struct {
	turn int
	err  error

	page    []outbox.Found
	limit   int
	offered int64 // when it began: what was offered by then was committed by then

	wants []want // nil: it was a page
	lanes [][]outbox.Found
}

const (
	// readTimeout bounds one reading; one that takes longer is made smaller.
	readTimeout = 10 * time.Second
	// lanesAtOnce bounds the lanes of one reading by key.
	lanesAtOnce = 500
	// fewRows is what a lane that has got through is read of at least.
	fewRows = 16
)

// rewind makes the outbox be read again from behind a seq; what is known is passed over. A reading
// under way is void: what called for this may have happened after it.
func (l *loop) rewind(last int64) {
	l.last, l.caughtUp = min(l.last, last), false
	l.turn++
}

// ask has a lane read by key.
func (l *loop) ask(n *lane) {
	n.asked, n.missed = true, 0
	l.wanted = append(l.wanted, n)
}

// readAt is when the reader may go on after a failure; zero if nothing keeps it waiting.
func (l *loop) readAt(now time.Time) time.Time {
	if l.reading || !l.notUntil.After(now) {
		return time.Time{}
	}

	return l.notUntil
}

// readOn begins the next reading, if there is something to read and room for it: by key and by page in turns.
func (l *loop) readOn(ctx context.Context, now time.Time) {
	if !now.Before(l.rereadAt) {
		l.rereadAt = now.Add(l.limits.rereadEvery)
		if l.caughtUp && !l.saturated() { // else a pass is under way, or would find what is left out on purpose
			l.rewind(0)
		}
	}

	if l.reading || l.notUntil.After(now) || l.del.doubtful() { // what is read says which rows are in doubt
		return
	}

	page := !l.caughtUp && l.room(l.pageRows)
	if page && (l.byKey || len(l.wanted) == 0) {
		l.readPage(ctx)
	} else if wants := l.choose(); len(wants) > 0 {
		l.readLanes(ctx, wants)
	} else if page {
		l.readPage(ctx)
	}
}

// saturated says whether a topic has so many blocked lanes that rows are passed over.
func (l *loop) saturated() bool {
	for i := range l.topics {
		if l.topics[i].skipped > 0 {
			return true
		}
	}

	return false
}

func (l *loop) readPage(ctx context.Context) {
	r := reading{turn: l.turn, limit: l.pageRows, offered: l.offered}
	without := make([]outbox.Lane, 0, len(l.topics[outbox.DefaultTopic].blocked))
	for n := range l.topics[outbox.DefaultTopic].blocked { // they are read by key
		without = append(without, n.id)
	}

	last := l.last
	l.byKey = false
	l.begin(ctx, r, func(ctx context.Context, r *reading) (err error) {
		r.page, err = l.box.Page(ctx, last, r.limit, without)
		return err
	})
}

func (l *loop) readLanes(ctx context.Context, wants []want) {
	l.byKey = true
	l.begin(ctx, reading{turn: l.turn, wants: wants}, func(ctx context.Context, r *reading) (err error) {
		wanted := make([]outbox.Want, len(wants))
		for i, w := range wants {
			wanted[i] = outbox.Want{Lane: w.lane.id, From: w.from, Limit: w.limit}
		}

		r.lanes, err = l.box.Lanes(ctx, wanted)

		return err
	})
}

// begin lets a reading run, for readTimeout at most.
func (l *loop) begin(ctx context.Context, r reading, read func(context.Context, *reading) error) {
	l.reading = true
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		r.err = read(ctx, &r)
		l.read <- r
	})
}

// choose takes lanes that wait to be read, as far as there is room for their rows, which they
// share. Of a blocked lane the oldest row is enough to try.
func (l *loop) choose() (wants []want) {
	room := l.limits.windowRows - len(l.known)
	if l.bytes >= l.limits.windowBytes {
		room = 0
	}

	share := min(max(room/(len(l.wanted)+1), fewRows), l.limits.laneRows)
	for len(l.wanted) > 0 && len(wants) < min(lanesAtOnce, l.pageRows) && room > 0 {
		n := l.wanted[0]
		l.wanted[0] = nil
		l.wanted = l.wanted[1:]
		if n.gone {
			continue
		}

		limit := min(share, room)
		if n.failures > 0 {
			limit = 1
		}

		room -= limit
		wants = append(wants, want{lane: n, from: n.from, limit: limit})
	}

	return wants
}

// take takes what the reader brought.
func (l *loop) take(ctx context.Context, r reading) {
	l.reading = false
	switch {
	case r.err != nil:
		l.failures++
		l.pageRows = max(min(fewRows, l.limits.pageRows), l.pageRows/2)
		l.notUntil = time.Now().Add(time.Duration((0.5 +
			l.cfg.Jitter()/2) * float64(min(5*time.Second, l.limits.firstDelay<<min(l.failures, 6)))))
		if ctx.Err() == nil {
			l.cfg.Log.WarnContext(ctx, "outbox not read, trying again", slog.Any("err", r.err))
		}

		l.again(r.wants)
	case r.turn != l.turn:
		l.again(r.wants)
	case r.wants == nil:
		l.readWell()
		l.takePage(r)
	default:
		l.readWell()
		for i := range r.wants {
			l.takeLane(ctx, &r.wants[i], r.lanes[i])
		}
	}

	for _, seq := range l.deletedDuringRead {
		delete(l.known, seq)
	}

	l.deletedDuringRead = nil
}

// readWell notes that a reading succeeded.
func (l *loop) readWell() {
	l.failures = 0
	l.pageRows = min(2*l.pageRows, l.limits.pageRows)
}

// again has lanes read once more whose reading was void.
func (l *loop) again(wants []want) {
	for _, w := range wants {
		if n := w.lane; !n.gone {
			if n.missed > 0 {
				n.from = min(n.from, n.missed)
			}

			l.ask(n)
		}
	}
}

func (l *loop) takePage(r reading) {
	for i := range r.page {
		f := &r.page[i]
		l.last = f.Seq
		if l.sendable(f) {
			l.add(row{f.Pending, f.Doubtful})
		}
	}

	if len(r.page) < r.limit {
		// Everything that was offered when the reading began was there to be read, or was left out for a reason.
		l.last = max(l.last, r.offered)
		l.caughtUp = l.offered <= l.last
	}

	l.looked = max(l.looked, l.last)
}

func (l *loop) takeLane(ctx context.Context, w *want, rows []outbox.Found) {
	n := w.lane
	n.asked = false
	if n.gone {
		return
	}

	n.behind = len(rows) == w.limit
	if n.behind {
		n.from = rows[len(rows)-1].Seq + 1
	}

	if n.missed > 0 {
		n.pass(n.missed)
	}

	for i := range rows {
		if f := &rows[i]; l.sendable(f) {
			l.enqueue(n, row{f.Pending, f.Doubtful})
		}
	}

	if n.failures > 0 && len(n.queue) == 0 { // what it failed with is gone
		if n.behind {
			l.ask(n)
			return
		}

		l.remove(ctx, n)

		return
	}

	l.goOn(ctx, n)
}

// want is what to read of one lane: so many rows at most, from a seq on.
type want struct {
	lane  *lane
	from  int64
	limit int
}

// sendable says whether a row is to be sent. One that never will be leaves the outbox as if it had been.
func (l *loop) sendable(f *outbox.Found) bool {
	if f.Obsolete && !l.known[f.Seq] && l.quiet[f.Slot] == 0 {
		l.done(outbox.Sent{Seq: f.Seq, Slot: f.Slot})
	}

	l.heldRetractions = l.heldRetractions || f.Held && message.Kind(f.Kind) == message.Retraction

	return !f.Held && !f.Obsolete && !l.known[f.Seq]
}
