package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// allowance is what a node is known to let through: requests per second (pace) and batches at
// a time (width). Everything that is asked of the node goes through it, by take and done. What is read at
// once goes before what can wait (Later), which has its turn after patience.
//
// Between take and done a request waits for its answer alone, and for no other place.
type allowance struct {
	now func() time.Time

	mu       sync.Mutex
	pace     pace
	width    *limit        // batches in flight
	inFlight int           // batches
	lowered  time.Time     // when a refusal was last taken in, by pace or width
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
)

// errPaused means that a node is not to be asked for so long that there may be something else to do.
var errPaused = fmt.Errorf("%w: it has refused others", rpc.ErrRate)

func newAllowance(most float64, now func() time.Time) *allowance {
	return &allowance{now: now, pace: newPace(most, now), freed: make(chan struct{}),
		width: newLimit(batchesAtOnce, mostInFlight, mostInFlight, now)}
}

// take waits until a batch of n requests may be sent, and says how many batches are in flight with it. n is 0
// for what is sent again, as its answer was lost: that waits for a place and for no rate. done has to follow,
// unless there is an error.
func (a *allowance) take(ctx context.Context, n int) (crowd int, err error) {
	banned := false
	err = a.await(ctx, func() time.Duration {
		pause := a.paused.Sub(a.now())
		switch banned = pause > LongestWait; {
		case banned:
			return 0
		case pause > 0:
			return pause
		case float64(a.inFlight+1) > a.width.allowed():
			return patience
		}

		if pause = a.pace.take(float64(n), a.now()); pause > 0 {
			return pause
		}

		a.inFlight++
		crowd = a.inFlight

		return 0
	})
	if err == nil && banned {
		err = errPaused
	}

	return crowd, err
}

// done notes that a batch is not in flight any more, and says how many were with it.
func (a *allowance) done() (crowd int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wake()
	a.inFlight--

	return a.inFlight + 1
}

// await waits for a condition, which says by 0 that it is met, or else when to look at it again at the
// latest. What can wait lets what is urgent go first.
func (a *allowance) await(ctx context.Context, met func() time.Duration) error {
	later, began := rpc.IsLater(ctx), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !later {
		a.urgent++
		defer func() { a.urgent--; a.wake() }()
	}

	for ctx.Err() == nil {
		pause := began.Add(patience).Sub(a.now())
		if !later || a.urgent == 0 || pause <= 0 {
			pause = met()
		}

		if pause == 0 {
			return nil
		}

		a.sleep(ctx, pause)
	}

	return context.Cause(ctx)
}

// sleep waits until a request may go on, or a time is over. Held: mu, but while it waits.
func (a *allowance) sleep(ctx context.Context, pause time.Duration) {
	timer, freed := time.NewTimer(pause), a.freed
	a.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-freed:
	case <-timer.C:
	}

	timer.Stop()
	a.mu.Lock()
}

// wake has all that wait look again. Held: mu.
func (a *allowance) wake() {
	close(a.freed)
	a.freed = make(chan struct{})
}

// answered notes the answers to n requests.
func (a *allowance) answered(n int, s sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pace.answered(float64(n), s.at, a.lowered, a.now())
	a.width.answered(float64(s.before), 0)
	a.wake()
}

// refused notes a refusal for the rate, and for how long nothing is to be sent. Several that were in
// flight together are one. What was refused while others were in flight was one too many, or too soon.
func (a *allowance) refused(s sent, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, crowd := a.now(), float64(s.crowd())
	if until := now.Add(pause); until.After(a.paused) {
		a.paused = until
	}

	switch {
	case !s.at.After(a.lowered): // one that was in flight with another that was refused
		return
	case crowd <= 1 || a.width.spares(crowd):
		a.pace.refused(now, pause)
	default:
		a.width.refused(crowd, 0)
	}

	a.lowered = now
}

// learnt is the rate that was found out, requests per second; 0: none.
func (a *allowance) learnt() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pace.rate.size == a.pace.most {
		return 0
	}

	return a.pace.rate.size
}

// atOnce is how many requests one batch may have: those of the two seconds for which others wait then.
func (a *allowance) atOnce() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pace.rate.size == 0 {
		return callsPerBatch
	}

	return max(int(a.pace.rate.size*window.Seconds()), 1)
}

// pace is how many requests per second a node lets through: any number until the first refusal.
//
// tokens may be negative: a batch larger than the bucket goes when the bucket is full, and the debt is
// waited for. Held: the allowance's mu.
type pace struct {
	rate   *limit  // requests per second; of size 0: none is known
	most   float64 // configured, requests per second; 0: none
	tokens float64
	filled time.Time // when tokens was last brought up to date

	resumed  time.Time // when the pause after the last refusal was over
	passed   float64   // requests answered since, of those asked since
	short    bool      // somebody waited for tokens in this window
	since    time.Time // start of the window that counts
	counted  float64   // requests answered in it
	previous float64   // and in the one before, per second
}

const (
	// window over which answered requests are counted, and after which the rate is raised.
	window = 2 * time.Second
	// A rate beyond which a limit that was met once is forgotten, in requests per second.
	unlimited = 1000
	// A first refusal at a slower pace than slowPace, in requests per second, is hardly for the pace.
	slowPace = 8
	// Fewer requests than fewPassed tell little.
	fewPassed = 10
)

func newPace(most float64, now func() time.Time) pace {
	p := pace{most: most, rate: newLimit(callsPerSecond, most, cmp.Or(most, unlimited), now), since: now(), filled: now()}
	p.rate.least = min(p.rate.least, p.rate.most)
	p.tokens = p.burst()

	return p
}

// burst is how many requests may go at once: a second's.
func (p *pace) burst() float64 { return max(p.rate.allowed(), 1) }

// take takes the tokens for n requests, or says how long until it is worth trying again.
func (p *pace) take(n float64, now time.Time) time.Duration {
	if p.rate.size == 0 || n == 0 {
		return 0
	}

	rate, burst := p.rate.allowed(), p.burst()
	p.tokens = min(p.tokens+rate*now.Sub(p.filled).Seconds(), burst)
	p.filled = now
	if need := min(n, burst); p.tokens+1e-9 < need {
		p.short = true
		return max(time.Duration((need-p.tokens)/rate*float64(time.Second)), time.Millisecond)
	}

	p.tokens -= n

	return 0
}

// answered counts requests that were answered, and raises the rate when there was no refusal for a window, and
// somebody waited. What is let through is hardly more than what was, so what was refused is tried again as a whole.
func (p *pace) answered(n float64, asked, refused, now time.Time) {
	if p.rate.size > 0 && !asked.Before(refused) {
		p.passed += n
	}

	p.counted += n
	elapsed := now.Sub(p.since)
	if elapsed < window {
		return
	}

	p.previous = p.counted / elapsed.Seconds()
	p.since, p.counted = now, 0
	if !p.short || now.Sub(refused) < window {
		return
	}

	p.short = false
	if p.rate.answered(p.rate.allowed(), 0); p.most == 0 && p.rate.size >= unlimited {
		p.rate.size = 0
	}
}

// refused notes a refusal, and for how long nothing is sent. While nothing is let through that says nothing of the
// rate.
func (p *pace) refused(now time.Time, pause time.Duration) {
	p.tokens, p.filled = 0, now.Add(pause)
	n := p.rate.allowed()
	switch {
	case n == 0:
		p.rate.size = min(max(p.counted/window.Seconds(), p.previous, slowPace), p.rate.most)
	case p.passed > 0: // so much was answered in all that time, of which some may have been idle
		least := n / 2
		if p.passed < fewPassed { // that tells little
			least = n * 2 / 3
		}

		p.rate.refused(n, max(p.passed/now.Sub(p.resumed).Seconds(), least))
	}

	p.rate.until = p.filled.Add(p.rate.holds)
	if n == 0 || p.passed > 0 {
		p.resumed, p.passed = p.filled, 0
	}
}
