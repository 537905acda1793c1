package partition

import (
	"slices"
	"strings"
	"time"
)

// Member is an instance as the others see it.
type Member struct {
	ID        string
	Partition Partition
	Alive     bool          // its session holds its advisory lock, and its last slot check is within StaleAfter
	Active    bool          // it is not stopping
	DeadFor   time.Duration // by the database's clock; zero while alive
	Serves    bool          // it has slots that it prefers
	Stuck     bool          // its nodes block it
	StateFor  time.Duration // for how long it has been stuck, or able to go on
	SitsOut   bool          // it leaves the slots to others until it can go on
	Lacks     string        // a working instance that knows event layouts which this one lacks; empty: there is none

	events map[string]string // as of Settings
}

// works reports whether the instance can process blocks.
func (m Member) works() bool { return m.Alive && m.Active && !m.SitsOut }

// serves reports whether slots may go to the instance.
func (m Member) serves() bool { return m.works() && m.Lacks == "" }

// Group is a set of slots that have one owner since the same moment.
type Group struct {
	Owner string        // empty: free
	Since time.Duration // for how long they have been owned, or free
	Slots []int16
}

// Plan is what an instance should do now.
type Plan struct {
	Take []int16  // free, or owned by dead instances
	From []string // the dead owners of Take
	// Mine, and preferred by another live instance instead of me; all of mine if I sit out or lack event layouts.
	Yield []int16
	Wait  time.Duration // until unserved slots may be adopted; zero: there are none
}

// Decide applies the one rule of this package for the instance me. It is a pure function of the
// rows, so two instances that read the same rows get compatible plans. Where they read at different
// times, the conditions of the claiming statements decide.
func Decide(me string, fleet []Member, groups []Group, adoptAfter time.Duration) Plan {
	members := make(map[string]Member, len(fleet))
	var live []Member // the instances that slots may go to
	for _, m := range fleet {
		members[m.ID] = m
		if m.serves() {
			live = append(live, m)
		}
	}

	slices.SortFunc(live, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	my, ok := members[me]
	if !ok || !my.Active {
		return Plan{}
	}

	others := func(slot int16) bool {
		return slices.ContainsFunc(live, func(m Member) bool { return m.ID != me && m.Partition.Prefers(slot) })
	}

	var plan Plan
	for _, g := range groups {
		owner, known := members[g.Owner]
		switch {
		case g.Owner == me:
			for _, slot := range g.Slots {
				if !my.serves() || !my.Partition.Prefers(slot) && others(slot) {
					plan.Yield = append(plan.Yield, slot)
				}
			}

			continue
		case g.Owner != "" && known && owner.Alive:
			continue // an owner keeps what it has; an adopter yields on its side
		case !my.serves():
			continue
		}

		unserved := g.Since
		if g.Owner != "" {
			unserved = owner.DeadFor
			if !known { // its row was removed, which happens long after an instance died
				unserved = adoptAfter
			}
		}

		plan.waitFor(adoptAfter - unserved)
		plan.take(g, func(slot int16) bool {
			return my.Partition.Prefers(slot) || (!others(slot) && adopt(me, live, slot, unserved, adoptAfter))
		})
	}

	slices.Sort(plan.Take)
	slices.Sort(plan.Yield)

	return plan
}

// waitFor records a time until some slots may be adopted; the shortest one counts.
func (p *Plan) waitFor(left time.Duration) {
	if left > 0 && (p.Wait == 0 || left < p.Wait) {
		p.Wait = left
	}
}

// take adds those slots of a group that are wanted, and the group's dead owner.
func (p *Plan) take(g Group, wanted func(slot int16) bool) {
	before := len(p.Take)
	for _, slot := range g.Slots {
		if wanted(slot) {
			p.Take = append(p.Take, slot)
		}
	}

	if g.Owner != "" && len(p.Take) > before && !slices.Contains(p.From, g.Owner) {
		p.From = append(p.From, g.Owner)
	}
}

// adopt reports whether the instance me should adopt a slot that no live instance prefers. A hash
// spreads such slots over the live instances. If the chosen instance has left the slot free after
// twice the time, any other instance takes it.
func adopt(me string, live []Member, slot int16, unserved, after time.Duration) bool {
	if unserved < after {
		return false
	}

	if unserved >= 2*after+time.Second {
		return true
	}

	return len(live) > 0 && live[mix(uint64(slot)+1<<32)%uint64(len(live))].ID == me
}
