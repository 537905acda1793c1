package publish

import (
	"slices"
	"time"
)

// rest tracks the slots that must be quiet, and the orders that wait until they are at rest.
//
// busy counts for each slot the requests in flight and the rows to be deleted, without zeros; the
// slots in quiet send nothing, and it counts the orders for each.
type rest struct {
	over    bool // nothing is sent any more
	quiet   map[int16]int
	busy    map[int16]int
	waiting []order
}

func newRest() rest { return rest{quiet: map[int16]int{}, busy: map[int16]int{}} }

func (r *rest) isQuiet(slot int16) bool { return r.over || r.quiet[slot] > 0 }

// begin and end count what is in flight of a slot.
func (r *rest) begin(slot int16) { r.busy[slot]++ }

func (r *rest) end(slot int16) {
	if r.busy[slot]--; r.busy[slot] == 0 {
		delete(r.busy, slot)
	}
}

// quiesce accepts an order, with the time until which it waits for requests.
func (r *rest) quiesce(o order, now time.Time) {
	for _, s := range o.slots {
		r.quiet[s]++
	}

	o.giveUp = now.Add(o.patience)
	r.waiting = append(r.waiting, o)
}

// resume ends one order for quiet. The waiting orders for its slots have been abandoned.
func (r *rest) resume(slots []int16) {
	for _, s := range slots {
		if r.quiet[s]--; r.quiet[s] <= 0 {
			delete(r.quiet, s)
		}
	}

	r.waiting = slices.DeleteFunc(r.waiting, func(o order) bool {
		return slices.ContainsFunc(o.slots, func(s int16) bool { return !r.isQuiet(s) })
	})
}

// notify answers the orders for slots that are at rest: nothing of them is in flight, waits for deletion, or is
// acknowledged and not noted. It passes on which of them are unsure.
func (r *rest) notify(unsure map[int16]int64, noted func(slot int16) bool) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o order) bool {
		if slices.ContainsFunc(o.slots, func(s int16) bool { return r.busy[s] > 0 || !noted(s) }) {
			return false
		}

		var of []int16
		for _, s := range o.slots {
			if _, is := unsure[s]; is {
				of = append(of, s)
			}
		}

		o.done <- of

		return true
	})
}

// overdueAt is when the next order stops waiting for requests; zero: none does.
func (r *rest) overdueAt() (at time.Time) {
	for _, o := range r.waiting {
		if !o.giveUp.IsZero() && (at.IsZero() || o.giveUp.Before(at)) {
			at = o.giveUp
		}
	}

	return at
}

// overdue returns the slots of the orders that have stopped waiting since the last call.
func (r *rest) overdue(now time.Time) (slots []int16) {
	for i := range r.waiting {
		if o := &r.waiting[i]; !o.giveUp.IsZero() && !o.giveUp.After(now) {
			o.giveUp = time.Time{}
			slots = append(slots, o.slots...)
		}
	}

	return slots
}
