package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

func TestSpan(t *testing.T) {
	s := newSpan(10_000)
	require.EqualValues(t, 64, s.now(kind{}))
	for range 10 {
		s.accepted(kind{}, s.now(kind{}), 0)
	}

	require.EqualValues(t, 10_000, s.now(kind{}))
	require.True(t, s.refused(10_000, rpc.RangeTooLarge, 0))
	require.EqualValues(t, 5000, s.now(kind{}))
	require.True(t, s.refused(10_000, rpc.RangeTooLarge, 0), "several were in flight")
	require.EqualValues(t, 5000, s.now(kind{}))
	for range 100 {
		s.accepted(kind{}, s.now(kind{}), 0)
	}

	near := s.now(kind{})
	require.Greater(t, near, uint64(9000))
	s.accepted(kind{}, 1, 0)
	require.Equal(t, near, s.now(kind{}))
	for range forgetKnown {
		s.accepted(kind{}, s.now(kind{}), 0)
	}

	require.EqualValues(t, 10_000, s.now(kind{}))
	s.accepted(kind{}, 10_000, fullness(4*enoughLogs, 0, 1000))
	require.EqualValues(t, 2500, s.now(kind{}), "too many logs")
	s.accepted(kind{}, 2500, fullness(0, 10_000, 1000))
	require.EqualValues(t, 250, s.now(kind{}), "too many bytes")
	require.True(t, s.refused(250, rpc.Failed, 100))
	require.EqualValues(t, 100, s.now(kind{}), "it said how many would do")
	s.accepted(kind{}, 100, 0)
	require.EqualValues(t, 100, s.now(kind{}), "and is believed")
}

// Silence of the factory does not make answers with the logs of escrows larger, while what the node
// refuses holds for both.
func TestSpanOfEachKindOfLogs(t *testing.T) {
	silent, loud := kind{topics: 1}, kind{topics: 2}
	s := newSpan(10_000)
	for range 10 {
		s.accepted(silent, s.now(silent), 0)
		n := s.now(loud)
		s.accepted(loud, n, float64(n)/100)
	}

	require.EqualValues(t, 10_000, s.now(silent))
	require.EqualValues(t, 100, s.now(loud), "what makes an answer full")
	require.True(t, s.refused(10_000, rpc.RangeTooLarge, 50))
	require.EqualValues(t, 50, s.now(silent))
	require.EqualValues(t, 50, s.now(loud))
}

// When a single block is refused too, the range was not the reason: it comes back. A node that
// refuses every block gives no logs at all.
func TestSpanOfANodeThatIsOut(t *testing.T) {
	s := newSpan(10_000)
	for range 3 {
		s.accepted(kind{}, s.now(kind{}), 0)
	}

	before := s.now(kind{})
	for s.refused(s.now(kind{}), rpc.Failed, 0) {
	}

	require.GreaterOrEqual(t, s.now(kind{}), before/2)
	require.False(t, s.unfit())
	s.refused(1, rpc.Failed, 0)
	s.refused(1, rpc.Failed, 0)
	require.True(t, s.unfit())
	s.accepted(kind{}, 1, 0)
	require.False(t, s.unfit())
}

// The limit that refuses more than 100 blocks is found within a few requests.
func TestSpanFindsALimit(t *testing.T) {
	s := newSpan(10_000)
	refused, blocks := 0, uint64(0)
	for range 44 {
		if n := s.now(kind{}); n > 101 {
			s.refused(n, rpc.Failed, 0)
			refused++
		} else {
			s.accepted(kind{}, n, 0)
			blocks += n
		}
	}

	require.LessOrEqual(t, refused, 8)
	require.GreaterOrEqual(t, blocks, uint64(3000))
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
				a := newAllowance(0, time.Now)
				provider := &bucket{rate: rate, burst: max(2*rate, float64(batch)), tokens: max(2*rate, float64(batch)),
					at: time.Now()}
				begun := time.Now()
				through, refusals := 0, 0
				const last = 2 * time.Minute
				for time.Since(begun) < last {
					require.NoError(t, a.take(t.Context(), batch))
					<-time.After(time.Millisecond)
					asked := time.Now()
					if provider.take(batch) {
						a.answered(batch)
						through += batch
					} else {
						refusals++
						a.refused(asked)
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

// What is needed now goes before polling, which has its turn all the same.
func TestUrgentGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAllowance(2, time.Now)
		require.NoError(t, a.take(t.Context(), 2))
		order := make(chan string, 40)
		for range 5 {
			go func() {
				if a.take(Later(t.Context()), 1) == nil {
					order <- "later"
				}
			}()
		}

		synctest.Wait()
		for range 20 {
			go func() {
				if a.take(t.Context(), 1) == nil {
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
		require.Error(t, a.take(ctx, 1))
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
