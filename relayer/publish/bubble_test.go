package publish

import (
	"context"
	"flag"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/race"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

var bubbles = flag.Uint64("bubbles", 240, "seeds of TestBubble")
var firstBubble = flag.Uint64("bubble", 0, "the first of them")

// The whole publisher in simulated time: offers that are lost, a database and a Pub/Sub that fail in every way, slots
// that are quiesced, resumed, released and taken again from others who have gone ahead, rollbacks, tenures that end,
// and processes that die. Whatever happens: what Pub/Sub has stored is, per escrow and without what a consumer has
// seen, exactly what was committed, in order; nothing is noted as sent that Pub/Sub has not got; each message that
// came twice was counted, and none did where nothing was lost; and nothing is left at the end.
func TestBubble(t *testing.T) {
	seeds := *bubbles
	if race.Detector { // which sees as much in some as in all
		seeds /= 8
	}

	for seed := *firstBubble; seed < *firstBubble+seeds; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { bubble(t, seed) })
		})
	}
}

// sky is a publisher in the weather.
type sky struct {
	*weather
	*Publisher
	t      *testing.T
	seed   uint64
	random *rand.Rand
	cfg    Config
	end    func()
	died   int // processes
}

func bubble(t *testing.T, seed uint64) {
	w := newWeather(seed, seed%3 == 0)
	reg := prometheus.NewRegistry()
	s := &sky{weather: w, t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), cfg: Config{DB: &pgxpool.Pool{},
		ChainID: 7,
		Owner:   "r0", Sender: w, Topics: pubsub.Topics{Default: "d"}, Metrics: NewMetrics(reg), Handover: &Handover{},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Jitter: rand.New(rand.NewPCG(seed, 3)).Float64,
		BySlot: seed%2 == 1}}
	s.begin()
	for range 80 {
		let(time.Duration(s.random.Int64N(int64(100 * time.Millisecond))))
		s.step()
		require.Empty(t, w.wrong, "seed %d", seed)
	}

	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	s.Reload(w.claim())
	for range 10 { // the others had gone ahead
		s.Offer(w.commit(5))
		let(100 * time.Millisecond)
	}

	let(5 * time.Minute)
	synctest.Wait()
	require.Zero(t, s.Stats(), "seed %d", seed)
	s.end()
	require.Empty(t, w.wrong, "seed %d", seed)
	require.Empty(t, w.rows, "seed %d", seed)
	s.compare(counter(t, reg, "relayer_republished_total"))
}

// begin begins a tenure.
func (s *sky) begin() {
	p, err := New(s.cfg)
	require.NoError(s.t, err)
	s.mu.Lock()
	s.Box = p.store.(*outbox.Box)
	s.right.Epoch++
	s.mu.Unlock()
	p.store, p.log = s.weather, s.weather
	p.limits.windowRows, p.limits.pageRows = 40, 8
	p.limits.batchRows, p.limits.requests, p.limits.maxBlocked = 3, 4, 5
	s.Publisher = p
	p.Reload(s.held())
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	s.end = func() {
		cancel()
		require.NoError(s.t, <-ended)
	}
}

func (s *sky) step() {
	c := s.commit(s.random.Int64N(8))
	what := s.random.IntN(20)
	if what < 10 {
		s.mu.Lock()
		s.trace(0, "step %d", what)
		s.mu.Unlock()
	}
	if s.clean && (what == 4 || what == 8) {
		what = 9
	}

	switch what {
	case 0: // the offer is lost
		s.Reload(s.held())
	case 1:
		s.Reload(s.held())
		s.Offer(c)
	case 2:
		s.Offer(c)
		s.quiesce(false)
	case 3:
		s.end()
		s.begin()
	case 4: // a process dies, and nothing is known of what it had sent
		s.died++
		s.doubtAll()
		s.end()
		s.cfg.Handover = &Handover{}
		s.begin()
	case 5:
		s.Offer(c)
		s.quiesce(true)
	case 6:
		s.Offer(c)
		s.others(s.random.Int64N(12))
	case 7:
		s.Offer(c)
		s.Reload(s.claim())
	case 8:
		s.Offer(c)
		s.rollback(max(1, s.next-s.random.Int64N(15)))
		let(time.Duration(s.random.Int64N(int64(50 * time.Millisecond))))
		s.Reload(s.held())
	default:
		s.Offer(c)
		for range s.random.IntN(3) {
			s.Offer(s.commit(s.random.Int64N(4)))
		}
	}
}

// quiesce has two slots rest, and maybe releases them.
func (s *sky) quiesce(release bool) {
	slots := []int16{int16(s.random.IntN(slotsInBubble)), int16(s.random.IntN(slotsInBubble))}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(s.random.Int64N(int64(6*time.Second))))
	defer cancel()
	commits := make(chan struct{})
	go func() { // the watch goes on
		defer close(commits)
		for range s.random.IntN(4) {
			let(20 * time.Millisecond)
			s.Offer(s.commit(1))
		}
	}()
	err := s.Quiesce(ctx, slots)
	<-commits
	if err != nil {
		return
	}

	s.mu.Lock()
	before := len(s.stored)
	s.mu.Unlock()
	let(time.Second)
	s.mu.Lock()
	for _, number := range s.stored[before:] {
		require.NotContains(s.t, slots, s.committed[number].Slot, "seed %d: published while at rest", s.seed)
	}

	s.mu.Unlock()
	if !release {
		s.Resume(slots, 0)
		return
	}

	s.release(slots)
	right, held := s.held()
	s.Resume(slots, right.Epoch)
	if s.random.IntN(2) == 0 {
		s.Reload(right, held)
	}
}

// let lets simulated time pass: it moves only while every goroutine of the bubble waits, so no machine
// is waited for, and everything that is due by then has happened.
func let(pass time.Duration) { <-time.After(pass) }

// compare compares what was stored with what was committed.
func (s *sky) compare(counted float64) {
	seen, again := map[int64]bool{}, map[int64]bool{}
	last := map[common.Address]int64{}
	for _, number := range s.stored {
		if seen[number] {
			again[number] = true // and maybe once more: what is counted are messages, when they are acknowledged
			continue
		}

		seen[number] = true
		p := s.committed[number]
		if p.Seq <= last[p.Event.Escrow] { // told is long, and made for a failure alone
			require.Fail(s.t, "out of order", "seed %d: %d\n%s", s.seed, number,
				strings.Join(s.told(p.Event.Escrow), "\n"))
		}

		last[p.Event.Escrow] = p.Seq
	}

	var lost []int64
	for number := range s.committed {
		if !seen[number] {
			lost = append(lost, number)
		}
	}

	slices.Sort(lost)
	require.Empty(s.t, lost, "seed %d: lost", s.seed)
	if s.clean {
		for number := range again {
			require.Fail(s.t, "came twice", "seed %d: %d\n%s", s.seed, number,
				strings.Join(s.told(s.committed[number].Event.Escrow), "\n"))
		}
	}

	require.LessOrEqual(s.t, float64(len(again)), counted, "seed %d: came twice and were not counted", s.seed)
}

func counter(t *testing.T, reg *prometheus.Registry, name string) float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetCounter().GetValue()
		}
	}

	require.Fail(t, "no such metric", name)

	return 0
}
