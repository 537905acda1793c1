package publish

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// noting is the writing of what is sent of the log, and of the rows of keys that fail: at most one of each is in
// flight. It belongs to the goroutine of the loop.
type noting struct {
	busy  bool
	end   context.CancelFunc // of what is in flight
	at    time.Time          // when the last note began
	all   time.Time          // when the last note of every slot began
	fails int
	pause time.Time // until then after a failure
	moves bool      // a move is in flight
	again time.Time // no move begins until then
	noted chan *note
	moved chan *move
}

// note is a note of what is sent.
type note struct {
	sent   map[int16]contract.Place
	beyond []outbox.Mark
	apart  bool // beyond is
	noted  []int16
	err    error
}

// move is a transaction that gives rows to the events of lanes.
type move struct {
	lanes []*lane
	err   error
}

func newNoting(now time.Time) noting {
	return noting{at: now, all: now, noted: make(chan *note, 1), moved: make(chan *move, 1)}
}

// due is when the next note begins; zero: there is nothing to note, or one is in flight.
func (n *noting) due(p *places, l *limits, awaited bool) time.Time {
	switch {
	case n.busy || len(p.slots) == 0:
		return time.Time{}
	case p.acked > 0 && (awaited || p.entries > l.windowRows/2):
		return n.pause.Add(1) // past, and not zero
	case p.acked > 0 || p.crowded:
		return later(n.pause, n.at.Add(settleEvery))
	case !p.caughtUp:
		return time.Time{}
	}

	return later(n.pause, n.all.Add(l.rereadEvery))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

// note begins a note that is due, concurrently with the loop.
func (l *loop) note(ctx context.Context, now time.Time) {
	if at := l.noting.due(l.log, &l.limits, len(l.rest.waiting) > 0); !at.IsZero() && !at.After(now) {
		l.beginNote(ctx, now)
	}
}

// beginNote notes what is sent: of slots without events too, now and then, and always in a backlog. What is read after
// a restart, and what counts the messages that wait, begins at the lowest place.
func (l *loop) beginNote(ctx context.Context, now time.Time) {
	all := !l.log.caughtUp || now.Sub(l.noting.all) >= l.limits.rereadEvery
	n := &note{}
	if n.sent, n.beyond = l.log.note(l.rest.isQuiet, all); all && l.log.caughtUp {
		l.noting.all = now
	}

	l.noting.at = now
	l.write(ctx, n)
}

// write writes a note, concurrently with the loop.
func (l *loop) write(ctx context.Context, n *note) {
	if len(n.sent)+len(n.beyond) == 0 {
		return
	}

	l.noting.busy = true
	right := l.right
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	l.noting.end = cancel
	l.wait.Go(func() {
		defer cancel()
		n.err = l.shared.log.SetApart(ctx, n.beyond)
		if n.apart = n.err == nil; n.apart && len(n.sent) > 0 {
			n.noted, n.err = l.shared.log.Settle(ctx, right, n.sent)
		}

		l.noting.noted <- n
	})
}

// endNote handles the end of a note.
func (l *loop) endNote(ctx context.Context, n *note) {
	l.noting.busy = false
	if l.log.wereNoted(n); n.apart && len(n.beyond) > 0 {
		l.reader.void = l.reader.busy // a page that is older would bring them again
	}

	if len(n.noted) < len(n.sent) { // some slots were just changing hands, or it failed
		l.log.acked++ // it is tried again
	}

	switch {
	case errors.Is(n.err, outbox.ErrMoved): // until the watch has read its position, and says so
		l.log.disown()
	case n.err != nil:
		l.noting.fails++
		l.noting.pause = time.Now().Add(backoff(minDeletePause, maxDeletePause, l.noting.fails, l.cfg.Jitter()))
		l.log.acked++
		l.cfg.Log.WarnContext(ctx, "noting what is sent failed, retrying", slog.Int("messages", l.log.entries),
			slog.Any("err", n.err))
	default:
		l.noting.fails, l.noting.pause = 0, time.Time{}
	}
}

// move gives rows to the events of keys that fail while others succeed: they would hold up what is noted, and all that
// is behind it would be read again. One whose outcome is unknown is repeated: until then its lanes send nothing. Where
// the key is the slot, the escrows of those events have rows from then on, and others of the slot go on in the log.
func (l *loop) move(ctx context.Context, now time.Time) {
	if l.noting.moves || l.shared.log == nil || l.log.unowned || l.lanes.blocked() == 0 || l.noting.again.After(now) {
		return
	}

	l.noting.again = now.Add(settleEvery)
	m := &move{lanes: l.lanes.moving()}
	if len(m.lanes) == 0 {
		m.lanes = l.lanes.movable(l.success)
	}

	if len(m.lanes) == 0 {
		return
	}

	var of []outbox.Lane
	var behind []contract.Place
	var sent []outbox.Mark
	for _, n := range m.lanes {
		noted, beyond := l.log.acknowledged(n.id.Slot)
		sent = append(sent, beyond...)
		for escrow := range n.escrows() {
			of = append(of, outbox.Lane{Topic: n.id.Topic, Slot: n.id.Slot, Escrow: escrow})
			behind = append(behind, noted)
		}
	}

	// What is read or offered meanwhile is read afterwards, as the move has left it.
	l.noting.moves = true
	l.reader.void = l.reader.busy
	l.log.miss()
	right := l.right
	l.wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, noteTimeout)
		defer cancel()
		if m.err = l.shared.log.SetApart(ctx, sent); m.err == nil {
			m.err = l.shared.log.Move(ctx, right, of, behind)
		}

		l.noting.moved <- m
	})
}

// endMove handles the end of a move.
func (l *loop) endMove(ctx context.Context, m *move) {
	l.noting.moves = false
	if m.err != nil {
		l.noting.again = time.Now().Add(maxDeletePause)
		if ctx.Err() == nil && !errors.Is(m.err, outbox.ErrMoved) {
			l.cfg.Log.WarnContext(ctx, "giving rows to the messages of keys that fail failed, retrying", slog.Any("err", m.err))
		}

		return
	}

	for _, n := range m.lanes {
		if slices.ContainsFunc(n.queue, func(r row) bool { return r.doubtful }) {
			l.unsure[n.id.Slot] = max(l.unsure[n.id.Slot], outbox.FirstRow-1)
		}
	}

	l.lanes.moved(m.lanes)
}
