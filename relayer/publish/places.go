package publish

import (
	"math"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// settleEvery is how often what was acknowledged is noted in the database: what a crash repeats is what was
// acknowledged since, and what is in flight.
const settleEvery = 500 * time.Millisecond

// places is how far the log of each slot is read, acknowledged and noted in the database. It performs no I/O and has no
// clock.
//
// An event is entered when it is taken from an offer or a page, and leaves once a noted place covers it: so the entries
// are what a crash can repeat of the log. A rollback puts other events into the same places, and what is in flight, or
// acknowledged, of the old branch must not be taken for them: hence the mark.
//
// Offers continue where the last one ended (caughtUp). One that is not taken (missed) is read, and so are later ones. A
// claim may have lowered the cursor behind what was stored for other slots: then offers bring events before the last
// block that was read.
type places struct {
	slots    map[int16]*slotPlaces
	entries  int
	last     int64 // the last block that was read
	end      int64 // the next block of the cursor, as far as it is known what its commits have stored
	caughtUp bool
	missed   bool // an offer was left to be read since the reading in flight began
	unowned  bool // what is noted is to be read: see disown
	crowded  bool // there is no room for the next page
	acked    int  // since the last note
}

// slotPlaces is the log of a slot behind noted.
type slotPlaces struct {
	noted   contract.Place // in the database
	entries []entry        // in the order of the chain
	stop    *contract.Place
}

// entry is an event that was taken.
type entry struct {
	outbox.Mark
	acked bool
}

// find returns the index of the entry at a place, or where it belongs.
func (s *slotPlaces) find(at contract.Place) (int, bool) {
	return slices.BinarySearchFunc(s.entries, at, func(e entry, at contract.Place) int { return e.Place.Compare(at) })
}

// entry returns the slot of an event, and the index of its entry; false: there is none.
func (p *places) entry(slot int16, e *contract.Event) (s *slotPlaces, i int, there bool) {
	if s = p.slots[slot]; s == nil {
		return nil, 0, false
	}

	i, there = s.find(e.Place())

	return s, i, there && s.entries[i].Mark == outbox.MarkOf(e)
}

// enter takes an event, and reports whether it is new.
func (p *places) enter(slot int16, e *contract.Event) bool {
	s, at := p.slots[slot], e.Place()
	if s == nil {
		p.disown()
		return false
	}

	if at.Compare(s.noted) <= 0 {
		return false
	}

	i, there := s.find(at)
	switch n := (entry{Mark: outbox.MarkOf(e)}); {
	case !there:
		s.entries = slices.Insert(s.entries, i, n)
		p.entries++
	case s.entries[i].Mark == n.Mark:
		return false
	default: // a rollback has removed that, and what is in flight of it is not this
		s.entries[i] = n
	}

	return true
}

// acknowledge notes that Pub/Sub has an event.
func (p *places) acknowledge(slot int16, e *contract.Event) {
	if s, i, there := p.entry(slot, e); there {
		s.entries[i].acked = true
	}

	p.acked++
}

// remove forgets an event that is not acknowledged: it is read again, or has a row.
func (p *places) remove(slot int16, e *contract.Event) {
	if s, i, there := p.entry(slot, e); there && !s.entries[i].acked {
		s.entries = slices.Delete(s.entries, i, i+1)
		p.entries--
	}
}

// leave leaves an event of a slot that must be quiet to whoever has the slot next, unless it was taken before.
func (p *places) leave(slot int16, e *contract.Event) {
	if s, _, there := p.entry(slot, e); s != nil && !there && e.Place().Compare(s.noted) > 0 {
		p.abandon(slot, e)
	}
}

// abandon is remove for an event that is left to whoever has the slot next.
func (p *places) abandon(slot int16, e *contract.Event) {
	p.remove(slot, e)
	if s, at := p.slots[slot], e.Place(); s != nil && (s.stop == nil || at.Compare(*s.stop) < 0) {
		s.stop = &at
	}
}

// sent is the place up to which all events of a slot are acknowledged. While it is read anew what the database has,
// that is no more than is noted.
func (p *places) sent(s *slotPlaces) contract.Place {
	if p.unowned {
		return s.noted
	}

	to := outbox.Last(min(p.last, p.end-1))
	before := func(at contract.Place) {
		switch {
		case at.Compare(to) > 0:
		case at.Index > 0:
			to = contract.Place{Block: at.Block, Index: at.Index - 1}
		default:
			to = outbox.Last(int64(at.Block) - 1)
		}
	}
	if s.stop != nil {
		before(*s.stop)
	}

	for i := range s.entries {
		if !s.entries[i].acked {
			before(s.entries[i].Place)
			break
		}
	}

	return to
}

// note is what is to be noted: of those that must be quiet also what is acknowledged beyond, and of all where nothing
// else makes room to read what comes before it.
func (p *places) note(quiet func(slot int16) bool, all bool) (sent map[int16]contract.Place, beyond []outbox.Mark) {
	sent, p.acked = map[int16]contract.Place{}, 0
	for number, s := range p.slots {
		if to := p.sent(s); to.Compare(s.noted) > 0 && (all || len(s.entries) > 0) {
			sent[number] = to
		}
	}

	crowded := p.crowded && !p.unowned && len(sent) == 0
	for number, s := range p.slots {
		if to := p.sent(s); crowded || quiet(number) {
			for i := range s.entries {
				if e := &s.entries[i]; e.acked && e.Place.Compare(to) > 0 {
					beyond = append(beyond, e.Mark)
				}
			}
		}
	}

	return sent, beyond
}

// wereNoted handles the end of a note: slots whose place is in the database, and what beyond is apart.
func (p *places) wereNoted(n *note) {
	for _, number := range n.noted {
		s := p.slots[number]
		if s == nil || n.sent[number].Compare(s.noted) <= 0 {
			continue
		}

		s.noted = n.sent[number]
		p.leaveOut(s, func(e *entry) bool { return e.Place.Compare(s.noted) <= 0 })
	}

	if !n.apart || len(n.beyond) == 0 {
		return
	}

	beyond := make(map[outbox.Mark]bool, len(n.beyond))
	for _, m := range n.beyond {
		beyond[m] = true
	}

	for _, s := range p.slots {
		p.leaveOut(s, func(e *entry) bool { return e.acked && beyond[e.Mark] })
	}
}

// leaveOut forgets entries.
func (p *places) leaveOut(s *slotPlaces, those func(*entry) bool) {
	before := len(s.entries)
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool { return those(&e) })
	p.entries -= before - len(s.entries)
}

// disown has it read what is noted, since the slots, or the right to them, may have changed. Until then nothing of the
// log is taken, and no place is noted.
func (p *places) disown() { p.unowned, p.caughtUp = true, false }

// owned sets the slots, with what the database has of them. The log is read anew from the lowest place.
func (p *places) owned(sent map[int16]contract.Place) {
	for number := range p.slots {
		if _, mine := sent[number]; !mine {
			p.forget(number)
		}
	}

	p.unowned, p.caughtUp, p.last = false, false, math.MaxInt64
	p.acked++ // what is acknowledged is noted from now on
	for number, at := range sent {
		s := p.slots[number]
		if s == nil {
			s = &slotPlaces{}
			p.slots[number] = s
		}

		s.noted, s.stop = at, nil
		p.last = min(p.last, int64(at.Block)-1)
		p.leaveOut(s, func(e *entry) bool { return e.Place.Compare(at) <= 0 })
	}

	if len(sent) == 0 {
		p.last, p.caughtUp = -1, true
	}

	p.end = p.last + 1
}

// forget drops a slot.
func (p *places) forget(slot int16) {
	if s := p.slots[slot]; s != nil {
		p.entries -= len(s.entries)
		delete(p.slots, slot)
	}
}

// acknowledged is up to which place a slot is noted, and which places behind it are acknowledged.
func (p *places) acknowledged(slot int16) (noted contract.Place, beyond []outbox.Mark) {
	s := p.slots[slot]
	if s == nil {
		return noted, nil
	}

	for i := range s.entries {
		if e := &s.entries[i]; e.acked {
			beyond = append(beyond, e.Mark)
		}
	}

	return s.noted, beyond
}

// resting reports whether nothing of a slot is acknowledged and not noted.
func (p *places) resting(slot int16) bool {
	s := p.slots[slot]
	return s == nil || len(s.entries) == 0
}

// floors are the places behind which each slot is read.
func (p *places) floors() map[int16]contract.Place {
	floors := make(map[int16]contract.Place, len(p.slots))
	for number, s := range p.slots {
		floors[number] = s.noted
	}

	return floors
}

// read handles a page that began behind a block, and reports whether it counts. One that began beyond the cursor that
// is known lacks what was committed since before it, as a lowered cursor comes by. After the last page offers are
// taken, unless one was missed: what that has stored from the page's cursor on may be missing from the page.
func (p *places) read(from int64, page *outbox.Page) bool {
	if from >= p.end && page.Next > p.end {
		p.last = min(p.last, p.end-1)
		return false
	}

	p.end = max(p.end, page.Next)
	if p.last, p.caughtUp = page.To, !page.More && !p.missed; p.missed {
		p.last = min(p.last, p.end-1)
	}

	return true
}

// miss leaves an offer to be read.
func (p *places) miss() { p.caughtUp, p.missed, p.last = false, true, min(p.last, p.end-1) }

// take handles an offer that was taken, up to the next block of its commit.
func (p *places) take(next int64) { p.last, p.end = max(p.last, next-1), next }

// restore enters what the tenure before had acknowledged and not noted.
func (p *places) restore(acked map[int16][]entry) {
	for number, entries := range acked {
		p.slots[number] = &slotPlaces{entries: entries}
		p.entries += len(entries)
		p.acked++
	}
}

// left is what is acknowledged and not noted.
func (p *places) left() map[int16][]entry {
	left := map[int16][]entry{}
	for number, s := range p.slots {
		if acked := slices.DeleteFunc(s.entries, func(e entry) bool { return !e.acked }); len(acked) > 0 {
			left[number] = acked
		}
	}

	return left
}
