package endpoint

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

func TestSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpan(10_000, time.Now)
		grow := func() {
			for range 20 {
				s.answered(&Filter{}, uint64(s.of(&Filter{}).allowed()), 0)
			}
		}
		require.EqualValues(t, 64, s.of(&Filter{}).allowed())
		grow()
		require.EqualValues(t, 10_000, s.of(&Filter{}).allowed())
		require.True(t, s.refused(&Filter{}, 10_000))
		require.EqualValues(t, 5000, s.of(&Filter{}).allowed())
		require.True(t, s.refused(&Filter{}, 10_000), "several were in flight")
		require.EqualValues(t, 5000, s.of(&Filter{}).allowed())
		grow()
		near := s.of(&Filter{}).allowed()
		require.Greater(t, near, 9000.)
		require.Less(t, near, 10_000.)
		s.answered(&Filter{}, 1, 0)
		require.Equal(t, near, s.of(&Filter{}).allowed())
		for hold := blocksAtOnce.first; hold < rememberedFor; hold *= 2 { // what was refused is tried again, ever later
			<-time.After(hold - 1)
			require.Equal(t, near, s.of(&Filter{}).allowed())
			<-time.After(1)
			require.EqualValues(t, 10_000, s.of(&Filter{}).allowed())
			s.refused(&Filter{}, 10_000)
			s.refused(&Filter{}, 10_000)
			require.Equal(t, near, s.of(&Filter{}).allowed())
		}

		<-time.After(rememberedFor)
		s.answered(&Filter{}, 10_000, 0)
		require.EqualValues(t, 10_000, s.of(&Filter{}).allowed())
		s.answered(&Filter{}, 10_000, fullness(4*enoughLogs, 0, 1000))
		require.EqualValues(t, 2500, s.of(&Filter{}).allowed(), "too many logs")
		s.answered(&Filter{}, 2500, fullness(0, 10_000, 1000))
		require.EqualValues(t, 250, s.of(&Filter{}).allowed(), "too many bytes")
	})
}

// Silence of the factory does not make answers with the logs of escrows larger.
func TestSpanOfEachKindOfLogs(t *testing.T) {
	silent, loud := &Filter{Topics: make([]common.Hash, 1)}, &Filter{Topics: make([]common.Hash, 2)}
	s := newSpan(10_000, time.Now)
	for range 10 {
		s.answered(silent, uint64(s.of(silent).allowed()), 0)
		n := s.of(loud).allowed()
		s.answered(loud, uint64(n), n/100)
	}

	require.EqualValues(t, 10_000, s.of(silent).allowed())
	require.InDelta(t, 150, s.of(loud).allowed(), 50, "what makes an answer full")
}

// When a single block is refused too, the range was not the reason: it comes back.
func TestSpanOfANodeThatIsOut(t *testing.T) {
	s := newSpan(10_000, time.Now)
	for s.refused(&Filter{}, uint64(s.of(&Filter{}).allowed())) {
	}

	require.EqualValues(t, firstSpan, s.of(&Filter{}).allowed())
}

// The limit that refuses more than 100 blocks is found within a few requests.
func TestSpanFindsALimit(t *testing.T) {
	s := newSpan(10_000, time.Now)
	refused, blocks := 0, uint64(0)
	for range 44 {
		if n := uint64(s.of(&Filter{}).allowed()); n > 101 {
			s.refused(&Filter{}, n)
			refused++
		} else {
			s.answered(&Filter{}, n, 0)
			blocks += n
		}
	}

	require.LessOrEqual(t, refused, 8)
	require.GreaterOrEqual(t, blocks, uint64(3000))
}

// A refusal without a reason of what was answered before has another reason, once.
func TestRefusalThatTheLimitDoesNotExplain(t *testing.T) {
	l := newLimit(blocksAtOnce, 16, 16, time.Now)
	require.False(t, l.spares(16), "nothing was answered")
	l.answered(16, 0)
	require.True(t, l.spares(16))
	require.False(t, l.spares(16))
}

// bucket is a provider that lets so many requests per second through, and a burst.
type bucket struct {
	tokens, rate, burst float64
	at                  time.Time
}

func (b *bucket) take(n int) bool {
	now := time.Now()
	b.tokens, b.at = min(b.tokens+b.rate*now.Sub(b.at).Seconds(), b.burst), now
	if b.tokens < float64(n) {
		return false
	}

	b.tokens -= float64(n)

	return true
}

// An allowance that nobody told is learnt, nearly used up, and hardly exceeded.
func TestAllowanceIsLearnt(t *testing.T) {
	for _, batch := range []int{1, 2, 8} {
		for _, rate := range []float64{2, 5, 50} {
			synctest.Test(t, func(t *testing.T) {
				a := newGate(0, time.Now)
				provider := &bucket{rate: rate, burst: max(2*rate, float64(batch)), tokens: max(2*rate, float64(batch)),
					at: time.Now()}
				begun := time.Now()
				through, refusals := 0, 0
				const last = 2 * time.Minute
				for time.Since(begun) < last {
					crowd, err := a.take(t.Context(), batch)
					require.NoError(t, err)
					s := sent{at: time.Now(), before: crowd}
					<-time.After(time.Millisecond)
					s.after = a.done()
					if provider.take(batch) {
						a.answered(batch, s)
						through += batch
					} else {
						refusals++
						a.refused(s, 0)
						<-time.After(limitPause)
					}
				}

				share := float64(through) / (rate * last.Seconds())
				t.Logf("batch %d, %g per second: %.0f %% used, %d refusals, learnt %.1f", batch, rate, 100*share,
					refusals, a.learnt())
				require.Greater(t, share, 0.6)
				require.LessOrEqual(t, refusals, 20)
			})
		}
	}
}

// What a provider lets through is learnt and used, however it measures that, and no more than three times
// as much is ever sent in 5 s after the first 5. Once it is known, refusals are rare.
func TestAllowanceUnderEachLimiter(t *testing.T) {
	for name, limiter := range map[string]func(rate float64) func() bool{
		"in one second":      func(rate float64) func() bool { return perWindow(int(rate), time.Second, false) },
		"in each second":     func(rate float64) func() bool { return perWindow(int(rate), time.Second, true) },
		"in ten seconds":     func(rate float64) func() bool { return perWindow(int(10*rate), 10*time.Second, false) },
		"in each ten":        func(rate float64) func() bool { return perWindow(int(10*rate), 10*time.Second, true) },
		"no more for a time": func(rate float64) func() bool { return penalty(rate, 5*time.Second) },
	} {
		for _, rate := range []float64{1, 5, 25} {
			t.Run(fmt.Sprintf("%v %s", rate, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const last = 3 * time.Minute
					takes, begun := limiter(rate), time.Now()
					a := newGate(0, time.Now)
					var asked []time.Time
					through, refusals, pause := 0, 0, limitPause
					for time.Since(begun) < last {
						crowd, err := a.take(t.Context(), 1)
						require.NoError(t, err)
						s := sent{at: time.Now(), before: crowd}
						asked = append(asked, s.at)
						<-time.After(time.Millisecond)
						s.after = a.done()
						if takes() {
							a.answered(1, s)
							through, pause = through+1, limitPause
						} else {
							a.refused(s, pause)
							refusals, pause = refusals+1, min(2*pause, LongestWait)
						}
					}

					share := float64(through) / (rate * last.Seconds())
					t.Logf("%.0f %% used, %d refusals", 100*share, refusals)
					require.Greater(t, share, 0.5)
					require.LessOrEqual(t, refusals, 30)
					for i := range asked {
						j := i
						for j < len(asked) && asked[j].Sub(asked[i]) < 5*time.Second {
							j++
						}

						if asked[i].Sub(begun) >= 5*time.Second {
							require.LessOrEqual(t, float64(j-i), 3*5*rate, "in 5 s from %s on", asked[i].Sub(begun))
						}
					}
				})
			})
		}
	}
}

// perWindow lets so many through in a window, which begins with each request, or each time that one ends.
func perWindow(most int, window time.Duration, fixed bool) func() bool {
	var passed []time.Time

	return func() bool {
		now := time.Now()
		since := now.Add(-window)
		if fixed {
			since = now.Truncate(window).Add(-1)
		}

		passed = slices.DeleteFunc(passed, func(at time.Time) bool { return !at.After(since) })
		if len(passed) >= most {
			return false
		}

		passed = append(passed, now)

		return true
	}
}

// penalty lets nothing through for a time when a bucket was empty.
func penalty(rate float64, long time.Duration) func() bool {
	b := &bucket{rate: rate, burst: 2 * rate, tokens: 2 * rate, at: time.Now()}
	var until time.Time

	return func() bool {
		now := time.Now()
		switch {
		case now.Before(until):
			return false
		case b.take(1):
			return true
		}

		until = now.Add(long)

		return false
	}
}

// A node that takes so many requests at a time is asked so many at a time, and hardly ever one more.
func TestWidthIsLearnt(t *testing.T) {
	for atOnce := 1; atOnce <= 5; atOnce++ {
		t.Run(fmt.Sprint(atOnce), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const askers, long, last = 8, 50 * time.Millisecond, 2 * time.Minute
				a, begun := newGate(0, time.Now), time.Now()
				var through, refusals, inFlight atomic.Int64
				var all sync.WaitGroup
				for range askers {
					all.Go(func() {
						for time.Since(begun) < last {
							crowd, err := a.take(t.Context(), 1)
							require.NoError(t, err)
							s := sent{at: time.Now(), before: crowd}
							takes := inFlight.Add(1) <= int64(atOnce)
							if takes {
								<-time.After(long)
							}

							inFlight.Add(-1)
							if s.after = a.done(); takes {
								through.Add(1)
								a.answered(1, s)
							} else {
								refusals.Add(1)
								a.refused(s, limitPause)
							}
						}
					})
				}

				all.Wait()
				share := float64(through.Load()) / (float64(atOnce) * last.Seconds() / long.Seconds())
				t.Logf("%.0f %% used, %d refusals", 100*share, refusals.Load())
				require.Greater(t, share, 0.75)
				require.LessOrEqual(t, refusals.Load(), int64(20))
				require.Zero(t, a.learnt(), "it is not taken for a rate")
			})
		})
	}
}

// What can wait lets what is urgent go first where only one request is taken at a time, too.
func TestUrgentGoesFirstToAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newGate(0, time.Now)
		a.width.size = 1
		_, err := a.take(t.Context(), 1)
		require.NoError(t, err)
		order := make(chan string, 10)
		var all sync.WaitGroup
		defer all.Wait()
		asks := func(ctx context.Context, name string) {
			all.Go(func() {
				if _, err := a.take(ctx, 1); err == nil {
					order <- name
					<-time.After(100 * time.Millisecond)
					a.done()
				}
			})
			synctest.Wait()
		}
		for range 3 {
			asks(Later(t.Context()), "later")
		}

		for range 3 {
			asks(t.Context(), "now")
		}

		a.done()
		for i := range 6 {
			require.Equal(t, []string{"now", "later"}[i/3], <-order)
		}
	})
}

// While a node wants a pause nothing is sent to it, not even by those who waited before; and where that is
// long, they are told.
func TestPauseHoldsForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newGate(1, time.Now)
		_, err := a.take(t.Context(), 1)
		require.NoError(t, err)
		s := sent{at: time.Now(), before: 1}
		begun, took := time.Now(), make(chan error, 1)
		ask := func() {
			_, err := a.take(t.Context(), 1)
			took <- err
		}
		go ask()
		synctest.Wait()
		a.refused(s, 4*time.Second)
		require.NoError(t, <-took)
		require.GreaterOrEqual(t, time.Since(begun), 4*time.Second)
		go ask()
		synctest.Wait()
		a.refused(sent{at: time.Now(), before: 1}, time.Minute)
		require.ErrorIs(t, <-took, rpc.ErrRate)
	})
}

// What is needed now goes before polling, which has its turn all the same.
func TestUrgentGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newGate(2, time.Now)
		take := func(ctx context.Context, n int) error {
			_, err := a.take(ctx, n)
			if err == nil {
				a.done()
			}

			return err
		}
		require.NoError(t, take(t.Context(), 2))
		order := make(chan string, 40)
		for range 5 {
			go func() {
				if take(Later(t.Context()), 1) == nil {
					order <- "later"
				}
			}()
		}

		synctest.Wait()
		for range 20 {
			go func() {
				if take(t.Context(), 1) == nil {
					order <- "now"
				}
			}()
		}

		<-time.After(patience - time.Second)
		first := len(order)
		for range first {
			require.Equal(t, "now", <-order)
		}

		require.GreaterOrEqual(t, first, 6)
		<-time.After(time.Minute)
		later := 0
		for range len(order) {
			if <-order == "later" {
				later++
			}
		}

		require.Equal(t, 5, later)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, take(ctx, 1))
	})
}

func TestMetricsAreComplete(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg, []string{"http://a", "ws://a"})
	found, err := reg.Gather()
	require.NoError(t, err)
	series := map[string]int{}
	for _, f := range found {
		series[f.GetName()] = len(f.GetMetric())
	}

	require.Equal(t, map[string]int{
		"relayer_rpc_requests_total":           2 * len(methods) * len(outcomes),
		"relayer_rpc_request_duration_seconds": 2 * len(methods),
		"relayer_rpc_endpoint_up":              2, "relayer_rpc_received_bytes_total": 2, "relayer_rpc_sent_bytes_total": 2,
		"relayer_rpc_disagreements_total": 2,
	}, series)
	for _, kind := range rpc.Kinds {
		require.Contains(t, []string{"ok", "error", "timeout", "rate_limited", "range_too_large", "behind", "invalid"},
			outcome(kind))
	}
}
