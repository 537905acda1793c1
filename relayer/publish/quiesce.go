package publish

import (
	"context"
	"slices"
)

// obey quiesces or resumes slots.
func (l *loop) obey(ctx context.Context, o order) {
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
			if n.flight == nil { // else when that has landed
				l.remove(ctx, n)
			}
		}
	}
	l.quiescing = append(l.quiescing, o)
	l.notifyDrained()
}

// notifyDrained answers those who wait for slots of which nothing is under way any more, and nothing left to delete.
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
		if l.busy[s] > 0 {
			return false
		}
	}
	return true
}
