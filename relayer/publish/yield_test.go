package publish_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func TestQuiesce(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Match: one("1"), Delay: time.Hour})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1, 1, 2)
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
	rows = append(rows, w.approve(p, 1)...)

	rested := p.BeginQuiesce([]int16{1, 5})
	require.NoError(t, p.Quiesce(t.Context(), []int16{3}), "nothing of it is under way")
	rows = append(rows, w.approve(p, 1, 2, 3)...)
	require.NoError(t, w.tap.Wait(w.within(), 2), "other slots go on")
	select {
	case <-rested:
		require.Fail(t, "its message is under way")
	default:
	}

	slow.Remove()
	<-rested
	require.NoError(t, w.tap.Wait(w.within(), 4))
	stored := w.tap.Messages()
	require.Equal(t, []string{"1", "2"}, w.numbers(stored)["7:0xe5c0000000000000000000000000000000000001"],
		"what was handed over, and no more")
	var left int
	require.NoError(t, w.DB.QueryRow(t.Context(), `select count(*) from outbox where slot = 1`).Scan(&left))
	require.Equal(t, 2, left, "what was acknowledged is deleted")

	// The slots go to another instance. What was offered under the old epoch is not for this one to send.
	w.Exec(`update slot_ownership set owner = 'r1' where slot in (1, 3, 5)`)
	old := w.commit("Approved", message.Original, 1)
	p.OfferRows(1, old)
	w.Exec(`update cursors set epoch = 2`)
	p.Resume([]int16{1, 3, 5}, 2)
	p.OfferRows(1, w.commit("Approved", message.Original, 1))
	w.epoch = 2
	rows = append(rows, w.approve(p, 2)...)
	require.NoError(t, w.tap.Wait(w.within(), 5))
	require.NoError(t, p.stop())
	require.Equal(t, 5, w.tap.Len())

	cfg := w.config()
	cfg.Owner, cfg.Handover = "r1", nil
	w.Join("r1", 0)
	other := w.start(cfg, publish.Tuning{})
	messages := w.wait(len(rows) + 2)
	require.NoError(t, other.stop())
	require.Equal(t, []string{"1", "2", "4", "5", "8", "9"},
		w.numbers(messages)["7:0xe5c0000000000000000000000000000000000001"])
}

func TestQuiesceGivesUp(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Match: one("1"), Delay: time.Hour})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1)
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Quiesce(ctx, []int16{1}), context.DeadlineExceeded)
	rows = append(rows, w.approve(p, 1)...)
	slow.Remove()
	w.same(rows, w.wait(2))
	require.NoError(t, p.stop())
	require.NoError(t, p.Quiesce(t.Context(), []int16{1}), "nothing is under way after the end")
}

// A failure while a slot is quiet leaves its rows to the next owner.
func TestQuiesceWhileFailing(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Match: one("1"), Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{})
	w.approve(p, 1, 2)
	require.Eventually(t, func() bool { return fault.Hits() > 2 }, patience, tick)
	require.NoError(t, p.Quiesce(t.Context(), []int16{1}))
	require.Eventually(t, func() bool { return p.Stats().InFlight == 0 && p.Stats().BlockedKeys == 0 }, patience, tick)
	hits := fault.Hits()
	w.approve(p, 1)
	require.NoError(t, p.stop())
	require.Equal(t, hits, fault.Hits())
	require.Equal(t, 2, w.outbox())
}

func TestEndDrains(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Delay: time.Hour})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1, 2, 3)
	require.Eventually(t, func() bool { return slow.Hits() == 3 }, patience, tick)
	p.end()
	later := w.approve(p, 4)
	slow.Remove()
	require.NoError(t, p.stop())
	require.Equal(t, 1, w.outbox(), "acknowledged and deleted; nothing new was taken")
	w.same(rows, w.tap.Messages())

	again := w.start(w.config(), publish.Tuning{})
	w.same(append(rows, later...), w.wait(4))
	require.NoError(t, again.stop())
	require.Zero(t, w.metric("relayer_republished_total"), "this process knows that it sent each once")
}

// Requests that nobody answers do not hold up the end for ever, and the next tenure counts what it sends again.
func TestEndAbandons(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Match: one("2", "3"), Delay: time.Hour})
	p := w.start(w.config(), publish.Tuning{})
	w.approve(p, 9)
	w.wait(1)
	w.approve(p, 1, 1)
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
	w.approve(p, 1)
	require.NoError(t, p.stop())
	require.Equal(t, 1, w.logs.count("stopped with messages in flight"))
	require.Equal(t, 3, w.outbox())
	slow.Remove()
	again := w.start(w.config(), publish.Tuning{})
	w.wait(4)
	require.NoError(t, again.stop())
	require.EqualValues(t, 3, w.metric("relayer_republished_total"),
		"what the slot had then is in doubt, as far as it is sent again")
}

func TestRightEnds(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	var valid atomic.Bool
	valid.Store(true)
	cfg := w.config()
	cfg.Valid = valid.Load
	p, err := publish.New(cfg)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	p.ReloadSlots(everySlot())
	p.OfferRows(1, w.commit("Approved", message.Original, 1))
	w.wait(1)
	valid.Store(false)
	p.OfferRows(1, w.commit("Approved", message.Original, 1))
	require.ErrorIs(t, <-ended, publish.ErrFenced)
	require.Equal(t, 1, w.outbox())
	require.Equal(t, 1, w.tap.Len())
}

// The database goes while messages are under way: what is acknowledged is remembered, not sent
// again, and deleted when it is back.
func TestRowsCannotBeDeleted(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	refuse := `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no deletions today'; end $$;
		create trigger refuse before delete on outbox execute function refuse()`
	w.Exec(refuse)
	p := w.start(w.config(), publish.Tuning{RereadEvery: 20 * time.Millisecond})
	rows := w.approve(p, 1, 2, 1)
	require.NoError(t, w.tap.Wait(w.within(), 3))
	failed := "deletion of acknowledged messages from the outbox failed"
	require.Eventually(t, func() bool { return w.logs.count(failed) > 2 }, patience, tick)
	p.ReloadSlots(everySlot())
	rows = append(rows, w.approve(p, 1)...)
	require.NoError(t, w.tap.Wait(w.within(), 4))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.Error(t, p.Quiesce(ctx, []int16{1}),
		"what is acknowledged has to be deleted before somebody else has the slot")
	require.NoError(t, p.stop())
	require.Equal(t, 1, w.logs.count("stopped with acknowledged messages that are not noted"))

	again := w.start(w.config(), publish.Tuning{RereadEvery: 20 * time.Millisecond})
	rows = append(rows, w.approve(again, 1)...)
	require.NoError(t, w.tap.Wait(w.within(), 5))
	w.Exec(`drop trigger refuse on outbox`)
	w.same(rows, w.wait(5))
	require.NoError(t, again.stop())
	require.Zero(t, w.metric("relayer_republished_total"))
}

func TestStartAndStopAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			cfg := w.config()
			cfg.Handover = nil
			p, err := publish.New(cfg)
			if err != nil {
				panic(err)
			}

			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			go p.ReloadSlots(everySlot())
			go p.OfferRows(1, nil)
			go cancel()
			if err := p.Run(ctx); err != nil {
				panic(err)
			}
		})
	}

	wg.Wait()
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := publish.New(publish.Config{})
	require.ErrorContains(t, err, "required")
}
