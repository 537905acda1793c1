package publish

import (
	"slices"
	"time"
)

// rest is which slots are to be quiet, and who waits until they are at rest.
//
// busy counts for each slot the requests under way and the rows that are to be deleted, and has no
// zeros; nothing is sent of a slot that is in quiet, which counts how many orders want that.
type rest struct {
	quiet   map[int16]int
	busy    map[int16]int
	waiting []order
}

func newRest() rest { return rest{quiet: map[int16]int{}, busy: map[int16]int{}} }

func (r *rest) isQuiet(slot int16) bool { return r.quiet[slot] > 0 }

// begin notes that something of a slot is under way, and end that it is not any more.
func (r *rest) begin(slot int16) { r.busy[slot]++ }

func (r *rest) end(slot int16) {
	if r.busy[slot]--; r.busy[slot] == 0 {
		delete(r.busy, slot)
	}
}

// quiesce takes an order, which is patient until the time that it names.
func (r *rest) quiesce(o order, now time.Time) {
	for _, s := range o.slots {
		r.quiet[s]++
	}

	o.giveUp = now.Add(o.patience)
	r.waiting = append(r.waiting, o)
}

// resume ends one order's wish for quiet. Whoever waits for one of the slots has given up.
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

// notify answers those whose slots are at rest: nothing of them is under way or left to delete. It
// hands them what is unsure of their slots.
func (r *rest) notify(unsure map[int16]int64) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o order) bool {
		if slices.ContainsFunc(o.slots, func(s int16) bool { return r.busy[s] > 0 }) {
			return false
		}

		of := map[int16]int64{}
		for _, s := range o.slots {
			if seq, ok := unsure[s]; ok {
				of[s] = seq
			}
		}

		o.done <- of

		return true
	})
}

// overdueAt is when the next order loses its patience; zero: none does.
func (r *rest) overdueAt() (at time.Time) {
	for _, o := range r.waiting {
		if !o.giveUp.IsZero() && (at.IsZero() || o.giveUp.Before(at)) {
			at = o.giveUp
		}
	}

	return at
}

// late returns the slots of the orders that have lost their patience since it was last asked.
func (r *rest) overdue(now time.Time) (slots []int16) {
	for i := range r.waiting {
		if o := &r.waiting[i]; !o.giveUp.IsZero() && !o.giveUp.After(now) {
			o.giveUp = time.Time{}
			slots = append(slots, o.slots...)
		}
	}

	return slots
}
