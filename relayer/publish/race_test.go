package publish_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// Rows reach the publisher as offers and as pages, while it is told to read anew, slots
// are quiesced and resumed, replays are served, tenures change, and Pub/Sub refuses at
// random. Whatever the order of all this: each row is published once, and those of one key in
// order.
func TestNothingTwiceNothingOutOfOrder(t *testing.T) {
	t.Parallel()
	seeds := uint64(2) // lanes by escrow and by slot
	if long.Tables {
		seeds = 16
	}

	for seed := range seeds {
		randomRun(t, seed)
	}
}

func randomRun(t *testing.T, seed uint64) {
	t.Logf("seed %d", seed)
	w := setup(t, testpubsub.Options{})
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
	refusals := random(1)
	var refuse sync.Mutex
	fault := w.server.Inject(testpubsub.Fault{Code: codes.ResourceExhausted, Match: func(*pubsubpb.PubsubMessage) bool {
		refuse.Lock()
		defer refuse.Unlock()
		return refusals.IntN(25) == 0
	}})
	tuning := publish.Tuning{WindowRows: 40, PageRows: 8, BatchRows: 3, Requests: 4, MaxBlocked: 5,
		Delay: 2 * time.Millisecond, RereadEvery: 7 * time.Millisecond}
	cfg := w.config()
	cfg.BySlot = seed%2 == 1
	var current atomic.Pointer[running]
	current.Store(w.start(cfg, tuning))

	var rows, replayed []outbox.Pending
	stop := make(chan struct{})
	var others sync.WaitGroup
	// One goroutine commits and offers, as the slot watch does.
	committing := make(chan struct{})
	go func() {
		defer close(committing)
		r := random(2)
		for range 400 {
			var escrows []int
			for range 1 + r.IntN(8) {
				escrows = append(escrows, r.IntN(20))
			}

			committed := w.commit("Approved", message.Original, escrows...)
			rows = append(rows, committed...)
			p := current.Load()
			switch r.IntN(12) {
			case 0: // the offer is lost with a tenure
				p.ReloadSlots(everySlot())
			case 1: // the holding has changed
				p.ReloadSlots(everySlot())
				p.OfferRows(1, committed)
			case 2:
				replay := w.commit("ArbiterChanged", message.Replay, r.IntN(20))
				replayed = append(replayed, replay...)
				p.OfferRows(1, append(committed, replay...))
			default:
				p.OfferRows(1, committed)
			}
		}
	}()
	// A reading during which the outbox was to be read anew is void. So each of these waits until
	// messages have come since its last turn: a slow machine would otherwise never end a reading in time.
	every := func(stream uint64, pause time.Duration, do func(*rand.Rand)) {
		others.Go(func() {
			r := random(stream)
			came := -1
			ticker := time.NewTicker(pause)
			defer ticker.Stop()
			for {
				select {
				case <-stop:
					return
				case <-ticker.C:
					if n := w.tap.Len(); n > came {
						came = n
						do(r)
					}
				}
			}
		})
	}
	every(3, 3*time.Millisecond, func(*rand.Rand) { current.Load().ReloadSlots(everySlot()) })
	every(4, 5*time.Millisecond, func(r *rand.Rand) {
		slots := []int16{int16(r.IntN(20)), int16(r.IntN(20))}
		p := current.Load()
		if p.Quiesce(t.Context(), slots) == nil {
			p.Resume(slots, 0)
		}
	})
	tenure := random(5)
	for range 5 {
		timer := time.NewTimer(time.Duration(50+tenure.IntN(100)) * time.Millisecond)
		<-timer.C
		if err := current.Load().stop(); err != nil {
			panic(err)
		}

		current.Store(w.start(cfg, tuning))
	}

	<-committing
	require.NoError(t, w.tap.Wait(w.within(), len(rows)+len(replayed)))
	close(stop)
	others.Wait()
	fault.Remove()
	w.emptied()
	require.NoError(t, current.Load().stop())
	require.Equal(t, len(rows)+len(replayed), w.tap.Len(), "nothing twice")
	settled := slices.DeleteFunc(slices.Clone(w.tap.Messages()), func(m testpubsub.Message) bool {
		return m.Topic != testpubsub.TopicName(project, settlement)
	})
	if !cfg.BySlot {
		w.same(rows, settled)
		return
	}

	bySlot := map[string][]outbox.Pending{}
	for _, r := range rows {
		bySlot["7:"+decimal(r.Slot)] = append(bySlot["7:"+decimal(r.Slot)], r)
	}

	got := w.numbers(settled)
	for key, rows := range bySlot {
		require.Equal(t, numbersOf(t, rows), got[key], key)
	}

	require.NotZero(t, fault.Hits())
}
