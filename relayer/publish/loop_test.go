package publish

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// bench is a loop whose steps are taken one by one: for orders of events that hardly ever happen.
type bench struct {
	*loop
	*Publisher
	t *testing.T
}

// accepting takes whatever it is given.
type accepting struct{}

func (accepting) Publish(context.Context, string, string, []pubsub.Message) ([]string, error) {
	return nil, nil
}

// hanging does not answer until it is told to end.
type hanging struct{}

func (hanging) Publish(ctx context.Context, _, _ string, _ []pubsub.Message) ([]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func assemble(t *testing.T) *bench {
	return assembleWith(t, accepting{})
}

func assembleWith(t *testing.T, s Sender) *bench {
	p, err := New(Config{DB: &pgxpool.Pool{}, ChainID: 7, Owner: "r0", Sender: s,
		Topics: pubsub.Topics{Default: "d"}, Metrics: NewMetrics(nil)})
	require.NoError(t, err)
	b := &bench{t: t, loop: newLoop(&p.shared), Publisher: p}
	b.reader.caughtUp, b.right.Epoch = true, 1
	b.log.caughtUp, b.log.unowned = true, false
	b.del.run = func([]outbox.Sent, time.Duration) {}

	return b
}

func pending(seq int64, who byte) outbox.Pending {
	return outbox.Pending{ID: outbox.ID{Seq: seq, Token: 7 * seq}, Slot: int16(who),
		Event: contract.Event{Name: "Approved", Escrow: common.Address{19: who}, Args: []byte(`{}`)}}
}

func read(seq int64, who byte) outbox.Found { return outbox.Found{Pending: pending(seq, who)} }

func (b *bench) lane(who byte) *lane {
	return b.lanes.byID[outbox.Lane{Slot: int16(who), Escrow: common.Address{19: who}}]
}

func (b *bench) queued(who byte) (seqs []int64) {
	if n := b.lane(who); n != nil {
		for i := range n.queue {
			seqs = append(seqs, n.queue[i].Seq)
		}
	}

	return seqs
}

// sendAll sends what is ready and settles it, with an error for the escrows named.
func (b *bench) sendAll(failing ...byte) {
	b.sendReady(b.t.Context(), time.Now())
	for b.lanes.underWay() > 0 {
		f := <-b.answered
		if slices.Contains(failing, byte(f.lane.id.Slot)) {
			f.err = status.Error(codes.PermissionDenied, "no")
		}

		b.settle(b.t.Context(), f)
	}

	b.readSkipped()
}

// put adds a row, as an offer or a page does.
func (b *bench) put(seq int64, who byte) { b.add(row{Pending: pending(seq, who)}) }

// retry ends the delay of every blocked lane.
func (b *bench) retry() { b.lanes.retry(time.Now().Add(time.Hour)) }

// An offer may be opened after its rows were read, sent, deleted and forgotten, and the outbox was
// read from the start once more.
func TestOfferOpenedLate(t *testing.T) {
	b := assemble(t)
	b.take(t.Context(), readResult{what: aPage, page: []outbox.Found{read(1, 1), read(2, 1)}, limit: 10})
	b.sendAll()
	b.del.batch, b.del.waiting = b.del.waiting, nil
	b.forget(t.Context(), nil)
	require.Empty(t, b.window.ids)
	b.reader.rewind(0)
	b.take(t.Context(), readResult{what: aPage, limit: 10})
	require.True(t, b.reader.caughtUp)
	b.OfferRows(1, []outbox.Pending{pending(1, 1), pending(2, 1), pending(3, 1)})
	b.open()
	require.Equal(t, []int64{3}, b.queued(1))
}

// An offer that is not taken, for whatever reason, is not overtaken by the next.
func TestOfferNotTaken(t *testing.T) {
	many := make([]outbox.Pending, 20)
	for i := range many {
		many[i] = pending(int64(i+1), 1)
	}

	for name, offer := range map[string]func(*bench){
		"too much for the inbox":  func(b *bench) { b.loop.limits.windowRows = 10; b.OfferRows(1, many) },
		"too much for the window": func(b *bench) { b.OfferRows(1, many); b.loop.limits.windowRows = 10 },
		"of an old epoch":         func(b *bench) { b.right.Epoch = 2; b.OfferRows(1, many) },
	} {
		t.Run(name, func(t *testing.T) {
			b := assemble(t)
			offer(b)
			b.OfferRows(2, []outbox.Pending{pending(21, 1), pending(22, 2)})
			b.open()
			require.False(t, b.reader.caughtUp)
			require.LessOrEqual(t, b.reader.last, int64(10))
			require.Empty(t, b.queued(2))
			b.loop.limits.windowRows = 100
			b.OfferRows(2, []outbox.Pending{pending(23, 2)})
			b.open()
			require.False(t, b.reader.caughtUp)
			require.Empty(t, b.queued(2))
		})
	}
}

// What comes behind a row that fails is left in the outbox, which is read again from there once that row is sent.
func TestRowComesBehindOneThatFails(t *testing.T) {
	b := assemble(t)
	b.put(1, 1)
	b.sendAll(1)
	b.put(2, 1)
	b.put(3, 1)
	require.Equal(t, []int64{1}, b.queued(1))
	b.reader.last = 3
	b.retry()
	b.sendAll()
	require.Empty(t, b.lanes.byID)
	require.EqualValues(t, 1, b.reader.last)
	require.False(t, b.reader.caughtUp)
	b.take(t.Context(), readResult{what: aPage, page: []outbox.Found{read(2, 1), read(3, 1)}, limit: 10})
	b.sendAll()
	require.Len(t, b.del.waiting, 3)
}

// When a row of a lane was passed over because too many others are blocked, the lane's next row is
// too, although there is room again.
func TestPassedOverAtTheLimit(t *testing.T) {
	b := assemble(t)
	b.loop.limits.maxBlocked = 4
	for who := byte(1); who <= 4; who++ {
		b.put(int64(who), who)
	}

	b.sendAll(1, 2, 3, 4)
	b.put(5, 9)
	b.reader.busy, b.reader.last = true, 6
	b.retry()
	b.sendAll(2, 3, 4)
	require.Len(t, b.lanes.topics[0].blocked, 3)
	b.put(6, 9)
	require.Nil(t, b.lane(9))
	b.reader.busy = false
	b.readSkipped()
	require.EqualValues(t, 4, b.reader.last, "the outbox is read from the first that was passed over")
	require.False(t, b.reader.caughtUp)
}

// Where too many lanes are blocked, one more keeps nothing in memory.
func TestTooManyKeepNothing(t *testing.T) {
	b := assemble(t)
	b.loop.limits.maxBlocked = 2
	for who := byte(1); who <= 5; who++ {
		b.put(int64(who), who)
	}

	b.sendAll(1, 2, 3, 4, 5)
	require.Len(t, b.lanes.byID, 2)
	require.Len(t, b.window.ids, 2)
	require.Positive(t, b.lanes.topics[0].skipped)
}

// A request that is under way when its slot is quieted, and fails, leaves nothing behind that would try again.
func TestFailsWhileQuiet(t *testing.T) {
	b := assemble(t)
	b.put(1, 1)
	b.sendReady(t.Context(), time.Now())
	b.put(2, 1)
	done := make(chan []int16, 1)
	b.applyOrder(order{what: quiesce, slots: []int16{1}, done: done})
	f := <-b.answered
	f.err = status.Error(codes.Unavailable, "away")
	b.answered <- f
	require.NoError(t, b.takeAnswers(t.Context(), <-b.answered))
	b.rest.notify(b.unsure, b.log.resting)
	require.Equal(t, []int16{1}, <-done, "it may have been sent")
	require.Empty(t, b.lanes.byID)
	require.Empty(t, b.window.ids)
	require.Empty(t, b.lanes.retries)
	require.Empty(t, b.rest.busy)
	require.Zero(t, b.window.bytes)
	require.Empty(t, b.lanes.topics[0].blocked)
}

// A slot that is quieted and resumed while a request of it is under way reads on from the rows that were
// dropped, not from the later ones that never were in memory.
func TestResumedWhileSending(t *testing.T) {
	b := assemble(t)
	b.put(1, 1)
	b.sendAll(1)
	b.put(2, 1)
	b.retry()
	b.sendReady(t.Context(), time.Now())
	b.applyOrder(order{what: quiesce, slots: []int16{1}, done: make(chan []int16, 1)})
	b.applyOrder(order{what: resume, slots: []int16{1}})
	b.settle(t.Context(), <-b.answered)
	require.EqualValues(t, 2, b.lanes.topics[0].skipped)
}

// A request that hangs is ended once whoever wants its slot quiet has waited long enough.
func TestPatienceEnds(t *testing.T) {
	b := assembleWith(t, hanging{})
	b.put(1, 1)
	b.put(2, 2)
	b.sendReady(t.Context(), time.Now())
	b.applyOrder(order{what: quiesce, slots: []int16{1}, done: make(chan []int16, 1), patience: time.Hour})
	b.lanes.cancel(b.rest.overdue(time.Now()))
	require.Zero(t, b.rest.overdue(time.Now()), "nobody has lost patience yet")
	b.lanes.cancel(b.rest.overdue(time.Now().Add(2 * time.Hour)))
	f := <-b.answered
	require.ErrorIs(t, f.err, context.Canceled)
	require.EqualValues(t, 1, f.lane.id.Slot)
	require.Empty(t, b.answered, "the other slot's request goes on")
	b.settle(t.Context(), f)
	require.Equal(t, map[int16]int64{1: 1}, b.unsure)
	b.lane(2).request.cancel()
	<-b.answered
}

// Of the rows of one key one request is under way at a time.
func TestOneRequestALane(t *testing.T) {
	b := assemble(t)
	b.put(1, 1)
	b.sendReady(t.Context(), time.Now())
	b.put(2, 1)
	b.put(3, 1)
	b.sendReady(t.Context(), time.Now())
	require.Equal(t, 1, b.lanes.underWay())
	b.settle(t.Context(), <-b.answered)
	b.sendReady(t.Context(), time.Now())
	f := <-b.answered
	require.Len(t, f.rows, 2, "what has gathered goes together")
	b.settle(t.Context(), f)
	require.Empty(t, b.lanes.byID)
}

// While the database does not answer, nothing is taken for read.
func TestReadingFails(t *testing.T) {
	b := assemble(t)
	b.reader.rewind(0)
	b.take(t.Context(), readResult{what: aPage, err: context.DeadlineExceeded})
	require.True(t, b.reader.notUntil.After(time.Now()))
	require.False(t, b.reader.caughtUp)
}
