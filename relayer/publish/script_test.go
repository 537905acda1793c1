package publish

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// scripted is the weather, calm, with what a test does before and after a statement.
type scripted struct {
	*weather
	refused    atomic.Pointer[string] // key
	sents      func(ctx context.Context)
	settled    func() error
	apart      func()
	logs       func()
	logged     func()
	deletes    func()
	movedAfter func(n int) error
	moves      atomic.Int64
	noNotes    atomic.Bool
	pages      atomic.Int64
	rowPages   atomic.Int64
}

// get and set are of what a test changes while the publisher runs.
func get[T any](s *scripted, of *T) T {
	s.mu.Lock()
	defer s.mu.Unlock()

	return *of
}

func set[T any](s *scripted, of *T, to T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of = to
}

func (s *scripted) Sent(ctx context.Context, r outbox.Right) (map[int16]contract.Place, error) {
	if f := get(s, &s.sents); f != nil {
		f(ctx)
	}

	return s.weather.Sent(ctx, r)
}

func (s *scripted) Log(ctx context.Context, r outbox.Right, sent map[int16]contract.Place, from int64,
	limit int) (outbox.Page, error) {
	s.pages.Add(1)
	if f := get(s, &s.logs); f != nil {
		f()
	}

	p, err := s.weather.Log(ctx, r, sent, from, limit)
	if f := get(s, &s.logged); f != nil {
		f()
	}

	return p, err
}

func (s *scripted) Page(ctx context.Context, r outbox.Right, mine []int16, last int64, limit int,
	without []outbox.Lane) ([]outbox.Found, int64, error) {
	s.rowPages.Add(1)

	return s.weather.Page(ctx, r, mine, last, limit, without)
}

func (s *scripted) Delete(ctx context.Context, rows []outbox.Sent, limit time.Duration) error {
	if f := get(s, &s.deletes); f != nil {
		f()
	}

	return s.weather.Delete(ctx, rows, limit)
}

func (s *scripted) Move(ctx context.Context, r outbox.Right, of []outbox.Lane, behind []contract.Place) error {
	err := s.weather.Move(ctx, r, of, behind)
	n := int(s.moves.Add(1))
	if f := get(s, &s.movedAfter); f != nil && err == nil {
		err = f(n)
	}

	return err
}

func (s *scripted) Settle(ctx context.Context, r outbox.Right, sent map[int16]contract.Place) ([]int16, error) {
	if s.noNotes.Load() {
		return nil, errWeather
	}

	noted, err := s.weather.Settle(ctx, r, sent)
	if f := get(s, &s.settled); f != nil && err == nil {
		return nil, f()
	}

	return noted, err
}

func (s *scripted) SetApart(ctx context.Context, events []outbox.Mark) error {
	if s.noNotes.Load() {
		return errWeather
	}

	if f := get(s, &s.apart); f != nil && len(events) > 0 {
		f()
	}

	return s.weather.SetApart(ctx, events)
}

func (s *scripted) Publish(ctx context.Context, topic, key string, m []pubsub.Message) ([]string, error) {
	if no := s.refused.Load(); no != nil && *no == key {
		let(10 * time.Millisecond)
		return nil, status.Error(codes.PermissionDenied, "refused")
	}

	return s.weather.Publish(ctx, topic, key, m)
}

func script(bySlot bool) (*scripted, *Config) {
	w := newWeather(1, true)
	w.calm = true
	w.chain = [][]outbox.Pending{nil}
	s := &scripted{weather: w}

	return s, &Config{DB: &pgxpool.Pool{}, ChainID: 7, Owner: "r0", Sender: s, Topics: pubsub.Topics{Default: "d"},
		Metrics: NewMetrics(prometheus.NewRegistry()), Handover: &Handover{}, BySlot: bySlot,
		Jitter: func() float64 { return 0.5 }}
}

func (s *scripted) start(t *testing.T, cfg *Config) (p *Publisher, end func()) {
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := New(*cfg)
	require.NoError(t, err)
	s.Box = p.store.(*outbox.Box)
	p.store, p.log = s, s
	p.limits.windowRows, p.limits.pageRows = 40, 8
	p.limits.batchRows, p.limits.requests, p.limits.maxBlocked = 3, 4, 5
	p.Reload(s.held())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()

	return p, func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// block appends a block with an event of each slot; who tells escrows of a slot apart.
func (s *scripted) block(who byte, slots ...int16) (numbers []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []outbox.Pending
	for i, slot := range slots {
		e := s.event(int64(len(s.chain)), uint(i), "Approved", slot, common.Address{18: who, 19: byte(slot)})
		events = append(events, e)
		numbers = append(numbers, e.Event.TxHash.Big().Int64())
	}

	s.chain = append(s.chain, events)

	return numbers
}

func (s *scripted) times(number int64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.stored {
		if x == number {
			n++
		}
	}

	return n
}

// offered commits and offers five blocks with events of three slots.
func (s *scripted) offered(p *Publisher) (numbers []int64) {
	for range 5 {
		numbers = append(numbers, s.block(1, 1, 2, 3)...)
	}

	p.Offer(s.commit(5))

	return numbers
}

// once requires that each of the events was published once, and that nothing was noted before.
func (s *scripted) once(t *testing.T, numbers []int64) {
	t.Helper()
	for _, n := range numbers {
		require.Equal(t, 1, s.times(n), "event %d", n)
	}

	require.Empty(t, s.wrong)
}

// goOn has the next publisher go on for a minute: each of the events was published once by then.
func (s *scripted) goOn(t *testing.T, cfg *Config, numbers []int64) {
	t.Helper()
	_, end := s.start(t, cfg)
	let(time.Minute)
	end()
	s.once(t, numbers)
}

// A page of the log that was under way when a move began, and whose snapshot is after the move, has events that the
// move has not seen, where the key is the slot. They are read again, and not dropped at the end of the move.
func TestMoveDropsNothingThatAPageBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(true)
		no := "7:1"
		s.refused.Store(&no)
		for range 25 {
			s.block(1, 1, 2)
		}

		var p *Publisher
		var late int64
		s.movedAfter = func(n int) error {
			if n == 1 {
				late = s.block(2, 1)[0] // another escrow of the slot
				p.Offer(s.commit(1))
				let(2 * time.Second)
			}

			return nil
		}
		p, end := s.start(t, cfg)
		p.Offer(s.commit(25))
		let(400 * time.Millisecond) // all is read
		set(s, &s.logs, func() { let(500 * time.Millisecond) })
		for range 100 {
			p.Offer(outbox.Commit{}) // of a right that is over: something is left to be read
			let(100 * time.Millisecond)
		}

		s.refused.Store(nil)
		let(5 * time.Second)
		s.block(3, 1)
		p.Offer(s.commit(1))
		let(5 * time.Minute)
		require.NotZero(t, s.moves.Load())
		require.NotZero(t, late)
		end()
		require.Equal(t, 1, s.times(late), "lost: %v", s.wrong)
		require.Empty(t, s.wrong)
	})
}

// A move whose answer is lost is repeated, also under the next right: until then its lanes send nothing.
func TestMoveWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		no := "7:0x0000000000000000000000000000000000000101"
		s.refused.Store(&no)
		var numbers []int64
		for range 25 {
			numbers = append(numbers, s.block(1, 1, 2)...)
		}

		var p *Publisher
		s.movedAfter = func(n int) error {
			if n == 1 {
				return errors.New("the answer is lost")
			}

			return nil
		}
		p, end := s.start(t, cfg)
		p.Offer(s.commit(25))
		for range 600 {
			if let(10 * time.Millisecond); s.moves.Load() == 1 {
				break
			}
		}

		require.EqualValues(t, 1, s.moves.Load())
		right, held := s.claim() // a claim of its own raises the epoch
		s.refused.Store(nil)
		for range 1000 {
			if let(10 * time.Millisecond); s.moves.Load() > 1 {
				break
			}
		}

		let(100 * time.Millisecond)
		let(30 * time.Second)
		p.Reload(right, held)
		let(5 * time.Minute)
		s.once(t, numbers)
		end()
	})
}

// A clean stop while it is read anew what is sent, as twice a minute and after each claim, notes what is acknowledged.
func TestStopWhileReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		numbers := s.block(1, 1, 2, 3)
		s.sents = func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		p.Offer(s.commit(1))
		let(100 * time.Millisecond) // sent and acknowledged, and not noted yet
		p.Reload(s.held())
		let(time.Millisecond)
		end()
		require.True(t, p.Settled())
		cfg.Handover = &Handover{} // another process
		set(s, &s.sents, nil)
		s.goOn(t, cfg, numbers)
	})
}

// A key that fails and leaves the window room does not have everything since then read again twice a minute.
func TestFailingKeyHoldsUpNoReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		no := "7:0x0000000000000000000000000000000000000101"
		s.refused.Store(&no)
		s.block(1, 1)
		p, end := s.start(t, cfg)
		p.Offer(s.commit(1))
		for range 300 {
			s.block(1, 2, 3, 4, 5)
			p.Offer(s.commit(1))
			let(time.Second)
		}

		before := s.pages.Load()
		let(time.Minute)
		require.Less(t, s.pages.Load()-before, int64(20), "pages of the log in a quiet minute")
		s.refused.Store(nil)
		let(time.Minute)
		end()
		require.Positive(t, slices.Max(s.stored))
	})
}

// Slots at rest have their place moved on, so that a pass does not read what is long over.
func TestIdleSlotsAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		for range 300 {
			s.block(1, 2, 3, 4, 5)
			p.Offer(s.commit(1))
			let(time.Second)
		}

		let(2 * time.Minute)
		before := s.pages.Load()
		let(time.Minute)
		require.Less(t, s.pages.Load()-before, int64(20), "pages of the log in a quiet minute")
		end()
	})
}

// What a tenure has acknowledged and could not note passes to the next one of the process, also where there was a
// rollback once, and the cursor is lowered by a claim.
func TestHandoverUnderALaterGeneration(t *testing.T) {
	for _, generation := range []int64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s, cfg := script(false)
			s.right.Generation = generation
			p, end := s.start(t, cfg)
			let(time.Second)
			s.noNotes.Store(true)
			numbers := s.offered(p)
			let(time.Second)
			end()
			s.noNotes.Store(false)
			s.mu.Lock()
			s.free[11] = 2 // of one who was behind
			s.mu.Unlock()
			s.claim()
			s.goOn(t, cfg, numbers)
		})
	}
}

// A generation that rises without a rollback, as when a factory is added, while the cursor is lowered by a claim.
func TestGenerationWithoutARollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		s.noNotes.Store(true)
		numbers := s.offered(p)
		let(time.Second)
		s.noNotes.Store(false)
		s.mu.Lock()
		s.free[11] = 2 // of one who was behind
		s.mu.Unlock()
		p.Reload(s.claim())
		let(50 * time.Millisecond)
		s.mu.Lock()
		s.right.Generation++
		s.mu.Unlock()
		p.Reload(s.held())
		let(time.Minute)
		end()
		s.once(t, numbers)
	})
}

// A clean stop just after the right has changed, as by a claim of its own, of which the publisher was not told: its
// notes are refused, and what is acknowledged is set apart.
func TestStopAfterTheRightHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		numbers := s.offered(p)
		let(100 * time.Millisecond)
		s.claim()
		let(2 * time.Second)
		end()
		require.True(t, p.Settled())
		cfg.Handover = &Handover{} // another process
		s.goOn(t, cfg, numbers)
	})
}

// The right is over, and the watch cannot read under the next one, as when it lacks an event layout: slots at rest are
// settled, so that they go to an instance that can.
func TestQuiesceAfterTheRightHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		numbers := s.offered(p)
		let(100 * time.Millisecond)
		s.mu.Lock()
		s.right.Generation++
		s.mu.Unlock()
		let(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.NoError(t, p.Quiesce(ctx, []int16{1, 2, 3}))
		end()
		cfg.Handover = &Handover{} // another process
		s.goOn(t, cfg, numbers)
	})
}

// Slots are at rest once it is read that what they have sent is noted: the answer to the note was lost.
func TestQuiesceWhileReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		set(s, &s.settled, func() error { return errWeather })
		s.offered(p)
		set(s, &s.sents, func(context.Context) { let(100 * time.Millisecond) })
		let(750 * time.Millisecond) // noted, and the answer was lost
		p.Reload(s.held())
		let(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.NoError(t, p.Quiesce(ctx, []int16{1, 2, 3}))
		end()
		require.Empty(t, s.wrong)
	})
}

// row commits an event of a slot that was read later: it has a row of the outbox.
func (s *scripted) row(slot int16) (number int64, c outbox.Commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = outbox.Commit{Right: s.right, From: s.next, Next: s.next}
	e := s.event(s.next-1, uint(100+s.numbers), "Approved", slot, common.Address{18: 1, 19: byte(slot)})
	s.add(e, true, &c)

	return e.Event.TxHash.Big().Int64(), c
}

// What a commit has stored whose answer is lost is read. Rows of the outbox do not wait until the watch has found out,
// nor are they read again and again until then.
func TestRowsBehindACommitWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		p.Offer(s.commit(1))
		no := "7:0x0000000000000000000000000000000000000101"
		s.refused.Store(&no)
		_, first := s.row(1)
		p.Offer(first)
		let(100 * time.Millisecond)
		number, behind := s.row(1) // left in the outbox until its key is free
		p.Offer(behind)
		let(time.Second)
		s.commit(1)
		before := s.rowPages.Load()
		s.refused.Store(nil)
		let(10 * time.Second)
		require.Less(t, s.rowPages.Load()-before, int64(5), "pages of the outbox")
		end()
		s.once(t, []int64{number})
	})
}

// A page of the log whose snapshot is older than that events were set apart does not bring them again.
func TestPageDoesNotBringWhatWasSetApartMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		p, end := s.start(t, cfg)
		let(time.Second)
		deleting := make(chan struct{})
		makeRoom := sync.OnceFunc(func() { close(deleting) })
		set(s, &s.deletes, func() { <-deleting })
		s.noNotes.Store(true)
		var numbers []int64
		for range 8 {
			numbers = append(numbers, s.block(1, 1, 2, 3)...)
			p.Offer(s.commit(1))
			let(100 * time.Millisecond)
		}
		for range 10 {
			_, row := s.row(4)
			p.Offer(row)
		}
		let(time.Second) // all is acknowledged, and the window is full of what is not noted
		set(s, &s.sents, func(context.Context) { s.noNotes.Store(false) })
		set(s, &s.apart, func() {
			makeRoom() // for a page
			let(300 * time.Millisecond)
		})
		set(s, &s.logged, func() { let(time.Second) })
		p.Reload(s.held())
		let(time.Minute)
		end()
		s.once(t, numbers)
	})
}

// In a backlog the places of slots without events move along: what counts the messages that wait begins at the lowest.
func TestIdleSlotsAdvanceInABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cfg := script(false)
		for range 400 {
			s.block(1, 1, 2)
		}

		s.commit(400)
		_, end := s.start(t, cfg)
		places := func() (lowest, highest uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			lowest = s.sent[1].Block
			for slot := range int16(slotsInBubble) {
				lowest, highest = min(lowest, s.sent[slot].Block), max(highest, s.sent[slot].Block)
			}

			return lowest, highest
		}
		moved := false
		for range 2000 {
			let(10 * time.Millisecond)
			lowest, highest := places()
			moved = moved || highest > 100 && highest < 399
			require.LessOrEqual(t, highest-lowest, uint64(40), "the lowest is in block %d", lowest)
		}

		require.True(t, moved)
		end()
	})
}
