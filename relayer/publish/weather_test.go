package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// weather is how the outside behaves, in simulated time: every statement and every request takes a while, and some
// fail, also after they have taken effect. Its tables do what those of packages outbox, ledger and partition do, for
// one owner, and for others who have its slots for a while.
type weather struct {
	*outbox.Box
	mu     sync.Mutex
	random *rand.Rand
	calm   bool // nothing fails any more
	clean  bool // nothing fails so that its outcome is unknown

	right  outbox.Right
	next   int64
	chain  [][]outbox.Pending // by block, in the order of the messages
	events map[contract.Place]*told
	owned  map[int16]bool
	free   map[int16]int64 // the next block of slots that nobody owns
	sent   map[int16]contract.Place
	doubts map[int16]time.Time
	rows   map[int64]waitingRow
	last   int64 // number of a row

	numbers   int64                    // of events
	committed map[int64]outbox.Pending // by number, with Seq as the order in which they are published
	stored    []int64                  // by Pub/Sub, in this order
	has       map[int64]bool
	wrong     []string
	history   []line
}

// told is an event whose message goes out.
type told struct {
	outbox.Pending
	apart bool
	at    time.Time
}

type waitingRow struct {
	outbox.Pending
	at time.Time
}

const slotsInBubble = 12

func newWeather(seed uint64, clean bool) *weather {
	w := &weather{random: rand.New(rand.NewPCG(seed, 2)), clean: clean, right: outbox.Right{Epoch: 1}, next: 1,
		events: map[contract.Place]*told{}, owned: map[int16]bool{}, free: map[int16]int64{},
		sent:   map[int16]contract.Place{},
		doubts: map[int16]time.Time{}, rows: map[int64]waitingRow{}, last: outbox.FirstRow,
		committed: map[int64]outbox.Pending{}, has: map[int64]bool{}}
	for slot := range int16(slotsInBubble) {
		w.owned[slot] = true
	}

	return w
}

var errWeather = errors.New("the database is away")

// pass waits for up to a time, and reports whether what waited fails.
func (w *weather) pass(ctx context.Context, upTo time.Duration, oneIn int) (fails bool, err error) {
	w.mu.Lock()
	timer := time.NewTimer(time.Duration(w.random.Int64N(int64(upTo))))
	fails = !w.calm && w.random.IntN(oneIn) == 0
	w.mu.Unlock()
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		return fails, nil
	}
}

// statement waits for the database, does something there, and waits for the answer.
func (w *weather) statement(ctx context.Context, r *outbox.Right, do func()) error {
	if fails, err := w.pass(ctx, 20*time.Millisecond, 10); err != nil || fails {
		return cmp.Or(err, errWeather)
	}

	w.mu.Lock()
	moved := r != nil && *r != w.right
	if !moved {
		do()
	}

	w.mu.Unlock()
	if moved {
		return outbox.ErrMoved
	}

	if fails, err := w.pass(ctx, 10*time.Millisecond, 20); err != nil || fails {
		return cmp.Or(err, errWeather)
	}

	return nil
}

func (w *weather) Sent(ctx context.Context, r outbox.Right) (sent map[int16]contract.Place, err error) {
	err = w.statement(ctx, &r, func() {
		sent = map[int16]contract.Place{}
		for slot := range w.owned {
			sent[slot] = w.sent[slot]
		}
	})

	return sent, err
}

// inOrder are the stored events behind a block, in the order of the chain.
func (w *weather) inOrder(from int64) []*told {
	list := slices.Collect(maps.Values(w.events))
	list = slices.DeleteFunc(list, func(e *told) bool { return int64(e.Event.BlockNumber) <= from })
	slices.SortFunc(list, func(a, b *told) int { return a.Event.Place().Compare(b.Event.Place()) })

	return list
}

func byMessage(a, b *told) int {
	first := func(e *told) int {
		if e.Event.Name == contract.Deployed {
			return 0
		}

		return 1
	}

	return cmp.Or(cmp.Compare(a.Event.BlockNumber, b.Event.BlockNumber), cmp.Compare(first(a), first(b)),
		a.Event.Place().Compare(b.Event.Place()))
}

func (w *weather) Log(ctx context.Context, r outbox.Right, sent map[int16]contract.Place, from int64,
	limit int) (p outbox.Page, err error) {
	err = w.statement(ctx, &r, func() {
		list := w.inOrder(from)
		p = outbox.Page{To: w.next - 1, Next: w.next}
		if n := len(list); n > 0 {
			p.To = max(p.To, int64(list[n-1].Event.BlockNumber))
		}

		if p.More = len(list) > limit; p.More {
			p.To = max(int64(list[limit].Event.BlockNumber)-1, int64(list[0].Event.BlockNumber))
		}

		p.To = max(p.To, from)
		slices.SortFunc(list, byMessage)
		for _, e := range list {
			floor, mine := sent[e.Slot]
			if int64(e.Event.BlockNumber) <= p.To && mine && !e.apart && e.Event.Place().Compare(floor) > 0 {
				p.Events = append(p.Events, outbox.Found{Pending: e.Pending, Doubtful: e.at.Before(w.doubts[e.Slot])})
			}
		}
	})

	return p, err
}

func (w *weather) Settle(ctx context.Context, r outbox.Right, sent map[int16]contract.Place) (noted []int16,
	err error) {
	err = w.statement(ctx, &r, func() {
		for slot, to := range sent {
			if !w.owned[slot] || !w.calm && w.random.IntN(10) == 0 { // changing hands
				continue
			}

			for _, e := range w.events {
				if e.Slot == slot && !e.apart && e.Event.Place().Compare(to) <= 0 {
					w.check(e.Pending, "is noted as sent up to %v", to)
				}
			}

			if int64(to.Block) >= w.next {
				w.wrong = append(w.wrong,
					fmt.Sprintf("slot %d is noted as sent up to %v, which is not committed: %d", slot, to, w.next))
			}

			w.trace(0, "slot %d settled from %v to %v", slot, w.sent[slot], to)
			w.sent[slot] = to
			noted = append(noted, slot)
		}
	})

	return noted, err
}

func (w *weather) SetApart(ctx context.Context, events []outbox.Mark) error {
	if len(events) == 0 {
		return nil
	}

	return w.statement(ctx, nil, func() {
		for _, m := range events {
			if e := w.events[m.Place]; e != nil && !e.apart && outbox.MarkOf(&e.Event) == m {
				w.check(e.Pending, "is noted as sent beyond")
				e.apart = true
			}
		}
	})
}

// check records a message that Pub/Sub has not got.
func (w *weather) check(p outbox.Pending, what string, args ...any) {
	if number := p.Event.TxHash.Big().Int64(); !w.has[number] {
		w.wrong = append(w.wrong, fmt.Sprintf("%d at %v of slot %d %s, and Pub/Sub has not got it", number,
			p.Event.Place(), p.Slot,
			fmt.Sprintf(what, args...)))
	}
}

func (w *weather) Move(ctx context.Context, r outbox.Right, of []outbox.Lane, behind []contract.Place) error {
	return w.statement(ctx, &r, func() {
		list := w.inOrder(0)
		slices.SortFunc(list, byMessage)
		w.ahead(slices.DeleteFunc(list, func(e *told) bool {
			key := w.LaneOf(&e.Pending)
			key.Escrow = e.Event.Escrow
			i := slices.Index(of, key)
			return e.apart || i < 0 || e.Event.Place().Compare(behind[i]) <= 0
		}))
	})
}

// ahead gives rows to events, before all that are there.
func (w *weather) ahead(list []*told) {
	lowest := int64(outbox.FirstRow)
	for seq := range w.rows {
		lowest = min(lowest, seq)
	}

	for i, e := range list {
		p := e.Pending
		p.Seq = lowest - int64(len(list)-i)
		p.Token = w.random.Int64()
		e.apart = true
		w.trace(p.Event.TxHash.Big().Int64(), "moved ahead")
		w.rows[p.Seq] = waitingRow{p, e.at}
	}
}

// find returns rows in order, at most limit.
func (w *weather) find(limit int, mine []int16, match func(int64, outbox.Lane) bool) (found []outbox.Found) {
	for _, seq := range slices.Sorted(maps.Keys(w.rows)) {
		r := w.rows[seq]
		if len(found) < limit && slices.Contains(mine, r.Slot) && w.owned[r.Slot] && match(seq, w.LaneOf(&r.Pending)) {
			found = append(found, outbox.Found{Pending: r.Pending, Doubtful: r.at.Before(w.doubts[r.Slot])})
		}
	}

	return found
}

func (w *weather) Page(ctx context.Context, r outbox.Right, mine []int16, last int64, limit int,
	without []outbox.Lane) (page []outbox.Found, next int64, err error) {
	err = w.statement(ctx, &r, func() {
		next = w.next
		page = w.find(limit, mine, func(seq int64, id outbox.Lane) bool {
			return seq > last &&
				!slices.Contains(without, id)
		})
	})

	return page, next, err
}

func (w *weather) Delete(ctx context.Context, rows []outbox.Sent, _ time.Duration) error {
	return w.statement(ctx, nil, func() {
		for _, r := range rows {
			if w.rows[r.Seq].Token == r.Token {
				delete(w.rows, r.Seq)
			}
		}
	})
}

func (w *weather) Doubt(ctx context.Context, slots []int16) error {
	return w.statement(ctx, nil, func() {
		for _, slot := range slots {
			w.doubts[slot] = time.Now().Add(1)
		}
	})
}

// Publish takes up to 50 ms, and refuses some requests, loses the answers of some, and hangs on some.
func (w *weather) Publish(ctx context.Context, _, _ string, messages []pubsub.Message) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fails, err := w.pass(ctx, 50*time.Millisecond, 6)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	how := w.random.IntN(4)
	w.mu.Unlock()
	switch {
	case fails && (how == 0 || w.clean):
		return nil, status.Error(codes.PermissionDenied, "refused")
	case fails && how == 1:
		return nil, status.Error(codes.Unavailable, "lost on the way")
	}

	w.mu.Lock()
	for _, m := range messages {
		id, _, _ := strings.Cut(m.Attributes["event_id"], ":")
		w.store(common.HexToHash(id).Big().Int64())
	}

	w.mu.Unlock()
	switch {
	case fails && how == 2:
		return nil, status.Error(codes.Unavailable, "the answer was lost")
	case fails && how == 3:
		<-ctx.Done()
		return nil, ctx.Err()
	}

	return nil, nil
}

func (w *weather) store(number int64) {
	w.stored, w.has[number] = append(w.stored, number), true
	w.trace(number, "stored by Pub/Sub")
}

// line is what happened to an event; 0: to all.
type line struct {
	number int64
	text   string
}

func (w *weather) trace(number int64, what string, args ...any) {
	w.history = append(w.history, line{number, time.Now().Format("04:05.000 ") + fmt.Sprintf(what, args...)})
}

// told are the lines of the history of an escrow.
func (w *weather) told(escrow common.Address) (lines []string) {
	for _, l := range w.history {
		p, is := w.committed[l.number]
		if l.number == 0 {
			lines = append(lines, l.text)
		} else if is && p.Event.Escrow == escrow {
			lines = append(lines, fmt.Sprintf("%s: %d, place %v, slot %d, %d in order", l.text, l.number,
				p.Event.Place(), p.Slot, p.Seq))
		}
	}

	return lines
}

// event makes the next event.
func (w *weather) event(block int64, index uint, name string, slot int16, escrow common.Address) outbox.Pending {
	w.numbers++
	number := common.BytesToHash([]byte{byte(w.numbers >> 16), byte(w.numbers >> 8), byte(w.numbers)})

	return outbox.Pending{Slot: slot, Event: contract.Event{Name: name, Escrow: escrow, Emitter: escrow,
		BlockNumber: uint64(block),
		LogIndex:    index, BlockHash: number, TxHash: number, Args: []byte(`{}`)}}
}

// grow extends the chain to a block. A deployment's message comes before what its transaction has emitted earlier.
func (w *weather) grow(to int64) {
	for block := int64(len(w.chain)); block < to; block++ {
		var events []outbox.Pending
		for range w.random.IntN(4) {
			slot, index := int16(w.random.IntN(slotsInBubble)), uint(len(events))
			if w.random.IntN(8) > 0 {
				events = append(events, w.event(block, index, "Approved", slot, common.Address{19: byte(slot)}))
				continue
			}

			escrow := common.Address{18: 1, 19: byte(slot)}
			escrow[0], escrow[1], escrow[2] = byte(w.numbers>>16), byte(w.numbers>>8), byte(w.numbers)
			events = append(events, w.event(block, index+1, contract.Deployed, slot, escrow),
				w.event(block, index, "Approved", slot, escrow))
		}

		w.chain = append(w.chain, events)
	}
}

// add stores an event that is told, and numbers its message.
func (w *weather) add(p outbox.Pending, apart bool, c *outbox.Commit) {
	order := p
	order.Seq = int64(len(w.committed) + 1)
	w.committed[p.Event.TxHash.Big().Int64()] = order
	e := &told{p, apart, time.Now()}
	w.trace(p.Event.TxHash.Big().Int64(), "committed, apart %t, right %v cursor %d", apart, w.right, w.next)
	if w.events[p.Event.Place()] = e; !apart {
		c.Log = append(c.Log, p)
		return
	}

	w.last++
	e.Seq, e.Token = w.last, w.random.Int64()
	w.rows[e.Seq] = waitingRow{e.Pending, e.at}
	c.Rows = append(c.Rows, e.Pending)
	e.ID = outbox.ID{}
}

// commit is the owner's, of so many blocks; 0: of events that were read later, or repaired.
func (w *weather) commit(blocks int64) outbox.Commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := outbox.Commit{Right: w.right, From: w.next, Next: w.next + blocks}
	w.next = c.Next
	w.grow(c.Next)
	for block := c.From; block < c.Next; block++ {
		for _, p := range w.chain[block] {
			if w.owned[p.Slot] && w.events[p.Event.Place()] == nil {
				w.add(p, w.waits(p.Event.Escrow) || p.Event.Place().Compare(w.sent[p.Slot]) <= 0, &c)
			}
		}
	}

	if slot := int16(w.random.IntN(slotsInBubble)); blocks == 0 && w.owned[slot] && w.next > 1 {
		w.add(w.event(w.next-1, uint(100+w.numbers), "Approved", slot, common.Address{19: byte(slot)}), true, &c)
	}

	return c
}

// waits reports whether an escrow has rows.
func (w *weather) waits(escrow common.Address) bool {
	for _, r := range w.rows {
		if r.Event.Escrow == escrow {
			return true
		}
	}

	return false
}

// rollback takes the chain back to a fork.
func (w *weather) rollback(fork int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.right.Generation++
	w.trace(0, "rollback to %d", fork)
	w.chain = w.chain[:min(fork, int64(len(w.chain)))]
	w.next = min(w.next, fork)
	gone := w.inOrder(fork - 1)
	slices.SortFunc(gone, byMessage)
	for _, e := range gone {
		delete(w.events, e.Event.Place())
	}

	gone = slices.DeleteFunc(gone, func(e *told) bool { return e.apart || e.Event.Place().Compare(w.sent[e.Slot]) <= 0 })
	w.ahead(gone)
	for _, e := range gone {
		w.doubts[e.Slot] = time.Now().Add(1)
	}

	for slot := range int16(slotsInBubble) {
		if last := outbox.Last(fork - 1); w.sent[slot].Compare(last) > 0 {
			w.sent[slot] = last
		}

		if next, is := w.free[slot]; is {
			w.free[slot] = min(next, fork)
		}
	}
}

// release gives a slot up. What of it is acknowledged is noted, unless it is in doubt.
func (w *weather) release(slots []int16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range slots {
		if !w.owned[slot] {
			continue
		}

		delete(w.owned, slot)
		w.free[slot] = w.next
		w.trace(0, "released %d at %d", slot, w.next)
		for _, e := range w.events {
			if number := e.Event.TxHash.Big().Int64(); e.Slot == slot && !e.apart && e.Event.Place().Compare(w.sent[slot]) > 0 &&
				w.has[number] && !e.at.Before(w.doubts[slot]) &&
				w.right.Generation == 0 { // a rollback may repeat what it has not removed
				w.wrong = append(w.wrong,
					fmt.Sprintf("slot %d is released although %d is sent, not noted, and not in doubt", slot, number))
			}
		}
	}

	w.right.Epoch++
}

// others own the free slots for a while, commit some blocks of theirs, and publish all.
func (w *weather) others(blocks int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range slices.Sorted(maps.Keys(w.free)) {
		var c outbox.Commit
		from := w.free[slot]
		to := from + blocks
		w.free[slot] = to
		w.trace(0, "another has slot %d up to %d", slot, to)
		w.grow(to)
		for block := from; block < to; block++ {
			for _, p := range w.chain[block] {
				if p.Slot == slot && w.events[p.Event.Place()] == nil {
					w.add(p, w.waits(p.Event.Escrow) || p.Event.Place().Compare(w.sent[slot]) <= 0, &c)
				}
			}
		}

		if w.random.IntN(2) == 0 {
			continue
		}

		list := w.inOrder(0)
		slices.SortFunc(list, byMessage)
		for _, e := range list {
			if e.Slot == slot && !e.apart && e.Event.Place().Compare(w.sent[slot]) > 0 {
				w.store(e.Event.TxHash.Big().Int64())
				e.apart = int64(e.Event.BlockNumber) >= to // as at a release
			}
		}

		for _, seq := range slices.Sorted(maps.Keys(w.rows)) {
			if r := w.rows[seq]; r.Slot == slot {
				w.store(r.Event.TxHash.Big().Int64())
				delete(w.rows, seq)
			}
		}

		if last := outbox.Last(to - 1); w.sent[slot].Compare(last) < 0 {
			w.sent[slot] = last
		}
	}
}

// claim takes the free slots, and returns what the owner has to know.
func (w *weather) claim() (outbox.Right, []int16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.right.Epoch++
	for slot, next := range w.free {
		w.owned[slot] = true
		w.trace(0, "claimed %d at %d", slot, next)
		w.next = min(w.next, next)
	}

	clear(w.free)

	return w.right, slices.Sorted(maps.Keys(w.owned))
}

// held is what the owner reads of its position.
func (w *weather) held() (outbox.Right, []int16) {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.right, slices.Sorted(maps.Keys(w.owned))
}

// doubtAll is what a takeover notes.
func (w *weather) doubtAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.right.Epoch++
	for slot := range int16(slotsInBubble) {
		w.doubts[slot] = time.Now().Add(1)
	}
}
