package ledger_test

import (
	"maps"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// publisher is what package publish does, one step after the other: it reads the log behind what is noted as sent, then
// the outbox, and notes what was acknowledged. It meets every accident.
type publisher struct {
	box   outbox.Box
	right outbox.Right
	noted map[int16]contract.Place // nil: to be read
	end   int64                    // the next block of the cursor, when the log was read
	acked map[contract.Place]logged
	open  map[contract.Place]logged // read, and not acknowledged

	sure map[string]bool // ids that must not be sent again: acknowledged, and no crash or rollback since then forgot it
}

// logged is an event of the log.
type logged struct {
	lane outbox.Lane
	key  outbox.Lane // with the escrow
	mark outbox.Mark
	id   string
}

// publish sends what may be sent of some escrows, in order, or does not hear of its arrival.
func (s *story) publish(all bool) {
	p, stopped := &s.pub, map[outbox.Lane]bool{}
	s.readNoted()
	p.open = map[contract.Place]logged{}
	from, more := int64(math.MaxInt64), true
	for _, at := range p.noted {
		from = min(from, int64(at.Block)-1)
	}

	for more {
		page, err := p.box.Log(s.t.Context(), p.right, p.noted, from, 1+s.rnd.IntN(40))
		require.NoError(s.t, err)
		for i := range page.Events {
			f := &page.Events[i]
			e := &f.Event
			l := logged{p.box.LaneOf(&f.Pending), p.box.LaneOf(&f.Pending), outbox.MarkOf(e), e.ID()}
			l.key.Escrow = e.Escrow
			if p.acked[e.Place()].mark == l.mark {
				continue
			}

			if s.attempt(&f.Pending, stopped, all) {
				p.acked[e.Place()] = l
			} else {
				p.open[e.Place()] = l
			}
		}

		from, more, p.end = page.To, page.More, page.Next
	}

	if len(p.open) > 0 && s.rnd.IntN(3) == 0 {
		s.move()
	}

	rows, next, err := p.box.Page(s.t.Context(), p.right, allSlots(), 0, 10_000, nil)
	require.NoError(s.t, err)
	require.Equal(s.t, p.end, next)
	var done []outbox.Sent
	for i := range rows {
		if s.attempt(&rows[i].Pending, stopped, all) {
			done = append(done, rows[i].Sent())
		}
	}

	require.NoError(s.t, p.box.Delete(s.t.Context(), done, time.Minute))
	if all || s.rnd.IntN(3) > 0 {
		s.settle(false)
	}
}

// attempt sends a message, unless its key has failed, and reports whether the publisher heard that it arrived.
func (s *story) attempt(p *outbox.Pending, stopped map[outbox.Lane]bool, all bool) bool {
	lane := s.pub.box.LaneOf(p)
	if stopped[lane] || !all && s.rnd.IntN(4) == 0 {
		stopped[lane] = true
		return false
	}

	s.send(p)
	if !all && s.rnd.IntN(8) == 0 { // the answer is lost: it is sent again
		stopped[lane] = true
		return false
	}

	if message.Kind(p.Kind) == message.Original {
		s.pub.sure[p.Event.ID()] = true
	}

	return true
}

func (s *story) readNoted() {
	p := &s.pub
	if p.noted != nil {
		return
	}

	var err error
	p.right = outbox.Right{Epoch: s.epoch, Generation: s.slots.Generation}
	p.noted, err = p.box.Sent(s.t.Context(), p.right)
	require.NoError(s.t, err)
	p.open, p.end = nil, 0 // nothing is noted before the log was read
	p.cover()
}

// cover forgets what a noted place covers.
func (p *publisher) cover() {
	for at, l := range p.acked {
		if at.Compare(p.noted[l.lane.Slot]) <= 0 {
			delete(p.acked, at)
		}
	}
}

// settle notes what is acknowledged; at a hand-over also what is beyond the places.
func (s *story) settle(handOver bool) {
	p, sent := &s.pub, map[int16]contract.Place{}
	if p.noted == nil || p.end == 0 {
		return
	}

	first := map[int16]contract.Place{}
	for at, l := range p.open {
		if old, there := first[l.lane.Slot]; !there || at.Compare(old) < 0 {
			first[l.lane.Slot] = at
		}
	}

	for slot, noted := range p.noted {
		to := outbox.Last(p.end - 1)
		if at, there := first[slot]; there && at.Compare(to) <= 0 {
			if to = (contract.Place{Block: at.Block, Index: at.Index - 1}); at.Index == 0 {
				to = outbox.Last(int64(at.Block) - 1)
			}
		}

		if to.Compare(noted) > 0 {
			sent[slot] = to
		}
	}

	var beyond []outbox.Mark
	if handOver {
		for at, l := range p.acked {
			if to, there := sent[l.lane.Slot]; !there || at.Compare(to) > 0 {
				beyond = append(beyond, l.mark)
			}
		}
	}

	require.NoError(s.t, p.box.SetApart(s.t.Context(), beyond))
	slots, err := p.box.Settle(s.t.Context(), p.right, sent)
	require.NoError(s.t, err)
	require.Len(s.t, slots, len(sent))
	maps.Copy(p.noted, sent)

	p.cover()
	for _, m := range beyond {
		delete(p.acked, m.Place)
	}
}

// move gives rows to the events of keys that fail.
func (s *story) move() {
	p, waiting := &s.pub, map[outbox.Lane]bool{}
	for _, l := range p.open {
		waiting[l.key] = true
	}

	var keys []outbox.Lane
	var noted []contract.Place
	for key := range waiting {
		if s.rnd.IntN(2) == 0 {
			keys, noted = append(keys, key), append(noted, p.noted[key.Slot])
		}
	}

	if len(keys) == 0 || p.noted == nil {
		return
	}

	for range 1 + s.rnd.IntN(2) { // the first answer may be lost
		var sent []outbox.Mark
		for _, l := range p.acked {
			sent = append(sent, l.mark)
		}

		require.NoError(s.t, p.box.SetApart(s.t.Context(), sent))
		require.NoError(s.t, p.box.Move(s.t.Context(), p.right, keys, noted))
	}

	for _, key := range keys {
		for at, l := range p.open {
			if l.key == key {
				delete(p.open, at)
				s.moved++
			}
		}
	}
}

// crash forgets what was acknowledged and not noted.
func (s *story) crash() {
	for _, l := range s.pub.acked {
		delete(s.pub.sure, l.id)
	}

	s.forget()
}

func (s *story) forget() { s.pub.acked, s.pub.noted = map[contract.Place]logged{}, nil }

// stopCleanly ends a tenure: the next one repeats nothing.
func (s *story) stopCleanly() {
	s.publish(false)
	s.settle(true)
	s.forget()
}

// rewound has the publisher follow a rollback: what it had under the old right it cannot note any more.
func (s *story) rewound(fork int64) {
	p := &s.pub
	s.outdated()
	for at, l := range p.acked {
		if int64(at.Block) > fork {
			delete(p.sure, l.id)
			delete(p.acked, at)
		}
	}
}

// outdated has what was noted read anew, after the right to it has changed.
func (s *story) outdated() {
	p := &s.pub
	if p.noted != nil {
		_, err := p.box.Settle(s.t.Context(), p.right, map[int16]contract.Place{0: outbox.Last(1 << 30)})
		require.ErrorIs(s.t, err, outbox.ErrMoved)
		err = p.box.Move(s.t.Context(), p.right, []outbox.Lane{{}}, make([]contract.Place, 1))
		require.ErrorIs(s.t, err, outbox.ErrMoved)
		_, err = p.box.Log(s.t.Context(), p.right, p.noted, 0, 1)
		require.ErrorIs(s.t, err, outbox.ErrMoved)
	}

	p.noted = nil
}

// claim is what taking slots with a lower cursor does to this one. It reads again what it has stored.
func (s *story) claim() {
	next := max(1, s.slots.Next-int64(s.rnd.IntN(9)))
	s.Exec(`update cursors set epoch = epoch + 1, next_block = $1, block_hash = case when $1::bigint > 1 then $2 end`, next,
		s.chain[next-1].hash.Hex())
	s.Exec(`update leadership set epoch = epoch + 1`)
	s.epoch++
	s.reload()
	s.loadBook()
	s.outdated()
	s.claimed++
}

// verify is the second reading of what every cursor has passed.
func (s *story) verify() {
	v, err := s.led.Verifiable(s.t.Context())
	require.NoError(s.t, err)
	if v.To < v.From {
		return
	}

	stored, err := s.led.Stored(s.t.Context(), v.From, v.To)
	require.NoError(s.t, err)
	have := map[contract.Place]bool{}
	for i := range stored {
		have[stored[i].Place()] = true
	}

	var missing []contract.Event
	for n := v.From; n <= v.To; n++ {
		missing = append(missing, s.of(n, func(e *contract.Event) bool { return !have[e.Place()] })...)
	}

	_, err = s.led.Repair(s.t.Context(), s.epoch, v, v.To, missing, nil)
	require.NoError(s.t, err)
	s.repaired += len(missing)
}
