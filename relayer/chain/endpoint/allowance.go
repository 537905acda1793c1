package endpoint

import (
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
// Between take and done a request waits for its answer alone, and for no other place. Ranges are also between enter
// and leave, where the places are taken.
type allowance struct {
	now func() time.Time

	mu       sync.Mutex
	pace     pace
	width    *limit        // batches in flight
	inFlight int           // batches
	narrowed time.Time     // when the width was last lowered
	ranges   int           // asked for
	calm     int           // ranges answered in a row
	urgent   int           // askers that wait and are urgent
	paused   time.Time     // until when nothing is sent: it would be refused
	freed    chan struct{} // closed and made anew when somebody may go on

	suspicion int  // that lost answers are for the rate: how often they were lost again at once, less how often not
	heard     bool // something was answered since they were
}

// RangesInFlight hides a provider's latency; more would only meet its rate limit.
const RangesInFlight = 4

const (
	// mostInFlight is more than are usually asked at a time: four by each watch and the verifier, and looks.
	mostInFlight = 16
	// patience is how long what can wait waits behind what is urgent.
	patience = 5 * time.Second
	// Bounds of suspicion, the one from which a lost answer is for the rate, and the other.
	sureOfRate, sureOfNetwork = 2, -3
	// Fewer requests than fewPassed tell little.
	fewPassed = 10
)

// errPaused means that a node is not to be asked for so long that there may be something else to do.
var errPaused = fmt.Errorf("%w: it has refused others", rpc.ErrRate)

func newAllowance(most float64, now func() time.Time) *allowance {
	return &allowance{now: now, pace: newPace(most, now), freed: make(chan struct{}),
		width: newLimit(batchesAtOnce, mostInFlight, mostInFlight, now)}
}

type laterKey struct{}

// Later marks what is asked under a context as work that can wait: polling, and reading a second time.
func Later(ctx context.Context) context.Context { return context.WithValue(ctx, laterKey{}, true) }

// IsLater reports whether what is asked under a context can wait.
func IsLater(ctx context.Context) bool { return ctx.Value(laterKey{}) != nil }

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

// enter waits for a turn to ask for a range. leave ends it. What is asked under the context that it returns
// is urgent: others wait for the turn.
func (a *allowance) enter(ctx context.Context) (context.Context, error) {
	err := a.await(ctx, func() time.Duration {
		if !a.enters() {
			return patience
		}

		return 0
	})

	return context.WithValue(ctx, laterKey{}, nil), err
}

// enters reports whether one more range may be asked for now: one until one was answered, and one more with each
// answer. Held: mu.
func (a *allowance) enters() bool {
	if a.ranges >= min(1+a.calm, RangesInFlight, int(a.width.allowed())) {
		return false
	}

	a.ranges++

	return true
}

func (a *allowance) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges--
	a.wake()
}

// await waits for a condition, which says by 0 that it is met, or else when to look at it again at the
// latest. What can wait lets what is urgent go first.
func (a *allowance) await(ctx context.Context, met func() time.Duration) error {
	later, began := IsLater(ctx), a.now()
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

// calmer has one more range be asked for at a time. Where it is not so, one is asked for at a time again: after
// a refusal, and before a range that is larger than any that was answered.
func (a *allowance) calmer(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calm++; !is {
		a.calm = 0
	}

	a.wake()
}

// answered notes the answers to n requests.
func (a *allowance) answered(n int, s sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pace.answered(float64(n), s.at, a.now())
	a.width.answered(float64(s.before), 0)
	a.heard = true
	a.wake()
}

// crowded reports whether so many were in flight that it is not known that the node takes them.
func (a *allowance) crowded(s sent) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.crowd() > 1 && !a.width.proven(float64(s.crowd()))
}

// refused notes a refusal for the rate, and for how long nothing is to be sent. Several that were in
// flight together are one. What was refused while others were in flight was one too many, or too soon.
func (a *allowance) refused(s sent, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse(s, pause)
}

func (a *allowance) refuse(s sent, pause time.Duration) {
	now, crowd := a.now(), float64(s.crowd())
	switch a.stop(now.Add(pause)); {
	case !s.at.After(a.pace.lowered) || !s.at.After(a.narrowed): // one that was in flight with another that was refused
	case crowd <= 1 || a.width.spares(crowd):
		a.pace.refused(now, pause)
	default:
		a.width.refused(crowd, 0)
		a.narrowed = now
	}
}

// again notes whether what was asked again at once, as its answer was lost, was lost again: the sign
// of a limit of the rate; a network that loses some answers gives most of them the second time. heard
// tells it from a node that does not answer at all.
func (a *allowance) again(lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !lost:
		a.suspicion = max(a.suspicion-1, sureOfNetwork)
	case a.heard:
		a.suspicion, a.heard = min(a.suspicion+1, sureOfRate), false
	}
}

// tries is how often something is asked at once, in all, while its answer is lost.
func (a *allowance) tries() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.suspicion < 0:
		return 3
	case a.suspicion < sureOfRate:
		return 2
	}

	return 1
}

// lost notes that the answer to a request was lost, in all its tries. Where that is for the rate, and
// few were answered since the last time, it may not be after all: the next is asked again at once.
func (a *allowance) lost(s sent, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.suspicion < sureOfRate {
		a.stop(a.now().Add(pause))
		return
	}

	if a.pace.passed < fewPassed {
		a.suspicion--
	}

	a.refuse(s, max(pause, limitPause))
}

// stop has nothing be sent for a while. Held: mu.
func (a *allowance) stop(until time.Time) {
	a.calm = 0
	if until.After(a.paused) {
		a.paused = until
	}
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
