package publish

import (
	"context"
	"slices"
	"time"
)

// applyOrder quiesces or resumes slots.
func (l *loop) applyOrder(ctx context.Context, o order) {
	if o.done == nil {
		for _, s := range o.slots {
			if l.quiet[s]--; l.quiet[s] <= 0 {
				delete(l.quiet, s)
			}
		}

		l.epoch = max(l.epoch, o.epoch)
		l.quiescing = slices.DeleteFunc(l.quiescing, func(q order) bool { // whoever waited has given up
			return slices.ContainsFunc(q.slots, func(s int16) bool { return l.quiet[s] == 0 })
		})
		l.rewind(0)

		return
	}

	for _, s := range o.slots {
		l.quiet[s]++
	}

	for _, n := range l.lanes {
		if l.quiet[n.id.Slot] > 0 {
			l.drop(n)
			if n.flight == nil { // else when its request returns
				l.remove(ctx, n)
			}
		}
	}

	o.giveUp = time.Now().Add(o.patience)
	l.quiescing = append(l.quiescing, o)
	l.notifyDrained()
}

// notifyDrained answers each order to quiesce whose slots have no request in flight and no row left to delete.
func (l *loop) notifyDrained() {
	rest := l.quiescing[:0]
	for _, o := range l.quiescing {
		if l.rests(o.slots) {
			close(o.done)
		} else {
			rest = append(rest, o)
		}
	}

	l.quiescing = rest
}

func (l *loop) rests(slots []int16) bool {
	for _, s := range slots {
		if l.busy[s] > 0 || l.del.doubtfulSlot(s) {
			return false
		}
	}

	return true
}

// lateAt is when the next order loses its patience; zero: none does.
func (l *loop) lateAt() (at time.Time) {
	for _, o := range l.quiescing {
		if !o.giveUp.IsZero() && (at.IsZero() || o.giveUp.Before(at)) {
			at = o.giveUp
		}
	}

	return at
}

// endLate gives up the requests of slots for whose rest somebody has waited long enough. They are in doubt then.
func (l *loop) endLate(now time.Time) {
	for i := range l.quiescing {
		o := &l.quiescing[i]
		if o.giveUp.IsZero() || o.giveUp.After(now) {
			continue
		}

		o.giveUp = time.Time{}
		for _, n := range l.lanes {
			if n.flight != nil && slices.Contains(o.slots, n.id.Slot) {
				n.flight.cancel()
			}
		}
	}
}
