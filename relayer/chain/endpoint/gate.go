package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

type laterKey struct{}

// Later marks what is asked under a context as work that can wait: what is read at once goes before it through a
// node's gate, and a slow node is not taken for a dead one.
func Later(ctx context.Context) context.Context { return context.WithValue(ctx, laterKey{}, true) }

func canWait(ctx context.Context) bool { return ctx.Value(laterKey{}) != nil }

// gate is what a node is known to let through: requests per second (rate), any number until the first refusal, and
// batches at a time (width). Everything that is asked of the node goes through it, by take and done; between them a
// request waits for its answer alone. What can wait (Later) has its turn after patience.
//
// tokens may be negative: a batch larger than the bucket goes when the bucket is full, and the debt is waited for.
type gate struct {
	now  func() time.Time
	most float64 // configured, requests per second; 0: none

	mu     sync.Mutex
	rate   *limit    // of size 0: none is known
	tokens float64   // requests that may go
	filled time.Time // when tokens was last brought up to date
	short  bool      // somebody waited for tokens since raised
	raised time.Time // when it was last looked whether to raise the rate
	since  time.Time // passed is of the time since
	passed float64   // requests answered

	width    *limit        // batches in flight
	inFlight int           // batches
	lowered  time.Time     // when a refusal was last taken in, by rate or width
	urgent   int           // askers that wait and are urgent
	paused   time.Time     // until when nothing is sent: it would be refused
	freed    chan struct{} // closed and made anew when somebody may go on
}

// RangesInFlight hides a provider's latency; more would only meet its rate limit.
const RangesInFlight = 4

const (
	// mostInFlight is more than are usually asked at a time: four by each watch and the verifier, and looks.
	mostInFlight = 16
	// patience is how long what can wait waits behind what is urgent.
	patience = 5 * time.Second
	// After each window the rate may be raised.
	window = 2 * time.Second
	// A rate beyond which a limit that was met once is forgotten, in requests per second.
	unlimited = 1000
	// A first refusal at a slower pace than slowPace, in requests per second, is hardly for the pace.
	slowPace = 8
	// Fewer requests than fewPassed tell little.
	fewPassed = 10
)

// errPaused means that a node is not to be asked for so long that there may be something else to do.
var errPaused = fmt.Errorf("%w: it has refused others", rpc.ErrRate)

func newGate(most float64, now func() time.Time) *gate {
	g := &gate{now: now, most: most, freed: make(chan struct{}), filled: now(), raised: now(), since: now(),
		rate:  newLimit(callsPerSecond, most, cmp.Or(most, unlimited), now),
		width: newLimit(batchesAtOnce, mostInFlight, mostInFlight, now)}
	g.rate.least = min(g.rate.least, g.rate.most)
	g.tokens = g.burst()

	return g
}

// take waits until a batch of n requests may be sent, and says how many batches are in flight with it. n is 0
// for what is sent again, as its answer was lost: that waits for a place and for no rate. done has to follow,
// unless there is an error.
func (g *gate) take(ctx context.Context, n int) (crowd int, err error) {
	later, began := canWait(ctx), g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !later {
		g.urgent++
		defer func() { g.urgent--; g.wake() }()
	}

	for ctx.Err() == nil {
		if g.paused.Sub(g.now()) > LongestWait {
			return 0, errPaused
		}

		pause := began.Add(patience).Sub(g.now())
		if !later || g.urgent == 0 || pause <= 0 {
			pause = g.wait(float64(n))
		}

		if pause == 0 {
			g.inFlight++
			return g.inFlight, nil
		}

		g.sleep(ctx, pause)
	}

	return 0, context.Cause(ctx)
}

// wait takes the tokens for n requests, or says when to try again at the latest. Held: mu.
func (g *gate) wait(n float64) time.Duration {
	now := g.now()
	switch pause := g.paused.Sub(now); {
	case pause > 0:
		return pause
	case float64(g.inFlight+1) > g.width.allowed():
		return patience
	case g.rate.size == 0 || n == 0:
		return 0
	}

	rate, burst := g.rate.allowed(), g.burst()
	g.tokens = min(g.tokens+rate*now.Sub(g.filled).Seconds(), burst)
	g.filled = now
	if need := min(n, burst); g.tokens+1e-9 < need {
		g.short = true
		return max(time.Duration((need-g.tokens)/rate*float64(time.Second)), time.Millisecond)
	}

	g.tokens -= n

	return 0
}

// burst is how many requests may go at once: a second's.
func (g *gate) burst() float64 { return max(g.rate.allowed(), 1) }

// done notes that a batch is not in flight any more, and says how many were with it.
func (g *gate) done() (crowd int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wake()
	g.inFlight--

	return g.inFlight + 1
}

// sleep waits until a request may go on, or a time is over. Held: mu, but while it waits.
func (g *gate) sleep(ctx context.Context, pause time.Duration) {
	timer, freed := time.NewTimer(pause), g.freed
	g.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-freed:
	case <-timer.C:
	}

	timer.Stop()
	g.mu.Lock()
}

// wake has all that wait look again. Held: mu.
func (g *gate) wake() {
	close(g.freed)
	g.freed = make(chan struct{})
}

// answered notes the answers to n requests. The rate is raised when there was no refusal for a window, and somebody
// waited. What is let through is hardly more than what was, so what was refused is tried again as a whole.
func (g *gate) answered(n int, s sent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.width.answered(float64(s.before), 0)
	g.wake()
	if s.at.Before(g.lowered) {
		return
	}

	g.passed += float64(n)
	now := g.now()
	if now.Sub(g.raised) < window {
		return
	}

	g.raised = now
	g.passed, g.since = g.passed/2, now.Add(-now.Sub(g.since)/2) // what was long ago counts less
	if !g.short || now.Sub(g.lowered) < window {
		return
	}

	g.short = false
	if g.rate.answered(g.rate.allowed(), 0); g.most == 0 && g.rate.size >= unlimited {
		g.rate.size = 0
	}
}

// refused notes a refusal for the rate, and for how long nothing is to be sent. Several that were in
// flight together are one. What was refused while others were in flight was one too many, or too soon.
func (g *gate) refused(s sent, pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, crowd := g.now(), float64(s.crowd())
	if until := now.Add(pause); until.After(g.paused) {
		g.paused = until
	}

	switch {
	case !s.at.After(g.lowered): // one that was in flight with another that was refused
		return
	case crowd <= 1 || g.width.spares(crowd):
		g.slower(now, pause)
	default:
		g.width.refused(crowd, 0)
	}

	g.lowered = now
}

// tooLate notes that a batch was not answered in time. It reports whether that is news: several that were in flight
// together are one.
func (g *gate) tooLate(s sent) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.at.After(g.lowered) {
		return false
	}

	g.width.tooLate(float64(s.crowd()))
	g.lowered = g.now()

	return true
}

// slower lowers the rate to what was answered. While nothing is let through that says nothing of the rate. Held: mu.
func (g *gate) slower(now time.Time, pause time.Duration) {
	g.tokens, g.filled = 0, now.Add(pause)
	n, passed := g.rate.allowed(), g.passed/max(now.Sub(g.since), window).Seconds()
	switch {
	case n == 0:
		g.rate.size = min(max(passed, slowPace), g.rate.most)
	case g.passed > 0:
		least := n / 2
		if g.passed < fewPassed {
			least = n * 2 / 3
		}

		g.rate.refused(n, max(passed, least))
	}

	g.rate.until = g.filled.Add(g.rate.holds)
	if n == 0 || g.passed > 0 {
		g.since, g.passed = g.filled, 0
	}
}

// learnt is the rate that was found out, requests per second; 0: none.
func (g *gate) learnt() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rate.size == g.most {
		return 0
	}

	return g.rate.size
}

// atOnce is how many requests one batch may have: those of the two seconds for which others wait then.
func (g *gate) atOnce() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rate.size == 0 {
		return callsPerBatch
	}

	return max(int(g.rate.size*window.Seconds()), 1)
}
