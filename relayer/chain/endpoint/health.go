package endpoint

import (
	"errors"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// State is a node's health in a word.
type State string

// The states. A node in use is healthy, limited, unsteady or on probation.
const (
	Untried     State = "untried"      // nothing was asked yet
	Healthy     State = "healthy"      // its last answer was one
	Limited     State = "rate_limited" // it works, and asked for fewer requests
	Unsteady    State = "unsteady"     // its last request failed; one lost connection is nothing
	Down        State = "down"         // it does not answer
	Suspect     State = "suspect"      // it answered wrongly: not asked while others serve
	OnProbation State = "on_probation" // it answered wrongly and is used all the same, since no other serves
	WrongChain  State = "wrong_chain"  // it serves another chain
	Unfit       State = "unfit"        // it refuses eth_getLogs altogether
)

// event is what happened to a node.
type event string

const (
	answered event = "answered" // a request, in a way that proves nothing
	proved   event = "proved"   // with logs that stood all tests, or after the time for which it was avoided
	failed   event = "failed"   // a request, whatever the reason that is none of those below
	limited  event = "limited"  // it refused for its rate
	lied     event = "lied"     // it answered wrongly
	foreign  event = "foreign"  // it serves another chain
	refused  event = "refused"  // it has refused eth_getLogs of a single block again and again
)

// transitions is the whole state machine: what a state becomes by an event.
var transitions = map[State]map[event]State{
	Untried: {answered: Healthy, proved: Healthy, failed: Down, limited: Untried, lied: Suspect, foreign: WrongChain,
		refused: Unfit},
	Healthy: {answered: Healthy, proved: Healthy, failed: Unsteady, limited: Limited, lied: Suspect,
		foreign: WrongChain, refused: Unfit},
	Limited: {answered: Healthy, proved: Healthy, failed: Unsteady, limited: Limited, lied: Suspect,
		foreign: WrongChain, refused: Unfit},
	Unsteady: {answered: Healthy, proved: Healthy, failed: Down, limited: Limited, lied: Suspect, foreign: WrongChain,
		refused: Unfit},
	Down: {answered: Healthy, proved: Healthy, failed: Down, limited: Down, lied: Suspect, foreign: WrongChain,
		refused: Unfit},
	Suspect: {answered: OnProbation, proved: Healthy, failed: Suspect, limited: Suspect, lied: Suspect,
		foreign: WrongChain, refused: Unfit},
	OnProbation: {answered: OnProbation, proved: Healthy, failed: Suspect, limited: OnProbation, lied: Suspect,
		foreign: WrongChain, refused: Unfit},
	WrongChain: {answered: OnProbation, proved: Healthy, failed: WrongChain, limited: WrongChain, lied: Suspect,
		foreign: WrongChain, refused: Unfit},
	Unfit: {answered: Unfit, proved: Healthy, failed: Unfit, limited: Unfit, lied: Unfit, foreign: WrongChain,
		refused: Unfit},
}

// Up reports whether a node in this state is in use.
func (s State) Up() bool { return s == Healthy || s == Limited || s == Unsteady || s == OnProbation }

// Pauses of a node, by what happened.
const (
	// A node that fails is asked again after firstPause, then after twice as long each time, up to
	// longestPause: so the end of an outage is noticed within 10 s, including the jitter, and a request
	// before it that waited for quickTimeout.
	firstPause, longestPause = 250 * time.Millisecond, 3500 * time.Millisecond
	// A node that answered wrongly is broken in a way that seldom passes: it is avoided while others are in use.
	faultPause, longestFaultPause = 30 * time.Second, 10 * time.Minute
	// If no other node is in use, it is tried again soon: its answers are validated as before, and
	// reading waits meanwhile. With its jitter the pause is shorter than LongestWait, so that a request
	// waits for it.
	alonePause, longestAlonePause = time.Second, LongestWait * 3 / 4
	// A node that refuses because of its rate limit, without saying for how long, is asked again after twice as long each
	// time: some limits begin again with each request that they refuse.
	limitPause, longestLimitPause = time.Second, 2 * time.Minute
	// A node that serves no logs at all is of no use while others are: it is tried again in case its
	// plan has changed, or it was only busy.
	unfitPause = time.Hour
)

// LongestWait is how long a request may wait for a node that is paused. Longer is up to the caller:
// there may be something else to do.
const LongestWait = 5 * time.Second

// health is a state and from when its node may be asked: from resume on where it is alone, from avoid on
// while another node serves. failures and faults, in a row, set how long; err is the
// last error, which may be older than the last success. lied is when it last answered wrongly: an
// answer to a question asked before that proves nothing, as a failure of a request sent before the
// last failure adds nothing.
type health struct {
	state         State
	resume, avoid time.Time
	failures      int
	faults        int
	lied, failed  time.Time
	err           error
	fault         *Fault // what it is set aside for; nil: it is not
}

// works notes an answer to a request that was sent at asked. It reports whether the state changed.
func (h *health) works(asked, now time.Time) bool {
	if asked.Before(h.failed) || now.Before(h.resume) {
		return false // it was sent before something went wrong
	}

	h.failures = 0
	if h.avoided(now) {
		return h.become(answered)
	}

	if h.state == Unfit {
		return false
	}

	return h.become(proved)
}

// proves notes logs that stood all tests. A wrong answer that came meanwhile still counts. A header,
// or an empty list of logs, proves too little.
func (h *health) proves(asked time.Time) bool {
	if !asked.After(h.lied) || h.fault != nil {
		return false
	}

	h.faults, h.avoid = 0, time.Time{}

	return h.become(proved)
}

// fails notes an error that speaks against the node, of a request that was sent at asked; zero:
// now. It sets the pause, and reports whether the state changed.
func (h *health) fails(err error, asked, now time.Time, jitter func(time.Duration) time.Duration) bool {
	repeated := !asked.IsZero() && asked.Before(h.failed)
	h.err = err
	if !repeated || h.failures == 0 {
		h.failures++
		h.failed = now
	}

	what, pause := h.judge(err, now, jitter)
	if repeated && what == failed {
		return false // requests that were in flight together fail together
	}

	if what != limited {
		pause += jitter(pause)
	}

	if until := now.Add(pause); until.After(h.resume) {
		h.resume = until
	}

	return h.become(what)
}

// judge says what an error means, and for how long the node is left alone.
func (h *health) judge(err error, now time.Time, jitter func(time.Duration) time.Duration) (event, time.Duration) {
	kind := rpc.Classify(err)
	switch {
	case errors.Is(err, ErrWrongChain):
		return foreign, h.shun(now, faultPause, jitter)
	case errors.Is(err, errUnfit):
		h.faults++
		h.avoid = now.Add(unfitPause)

		return refused, min(alonePause<<min(h.faults-1, 10), longestAlonePause)
	case kind == rpc.Invalid && !errors.Is(err, rpc.ErrGarbled):
		return lied, h.shun(now, longestFaultPause, jitter)
	case kind == rpc.RateLimited:
		if wait := rpc.RetryIn(err); wait > 0 {
			return limited, wait
		}

		return limited, min(limitPause<<min(h.failures-1, 10), longestLimitPause)
	}

	return failed, min(firstPause<<min(h.failures-1, 10), longestPause)
}

// shun has a node avoided while others serve, twice as long each time, and returns for how long it
// is left alone even if none does.
func (h *health) shun(now time.Time, most time.Duration, jitter func(time.Duration) time.Duration) time.Duration {
	h.faults++
	h.lied = now
	long := min(faultPause<<min(h.faults-1, 10), most)
	if until := now.Add(long + jitter(long)); until.After(h.avoid) {
		h.avoid = until
	}

	return min(alonePause<<min(h.faults-1, 10), longestAlonePause)
}

// avoided reports whether the node is left alone while others serve.
func (h *health) avoided(now time.Time) bool { return h.fault != nil || now.Before(h.avoid) }

// retire takes a node out of use that served because no better one was there.
func (h *health) retire(now time.Time) bool {
	return h.state == OnProbation && h.avoided(now) && !now.Before(h.resume) && h.become(failed)
}

func (h *health) become(what event) bool {
	was := h.state
	h.state = transitions[was][what]
	return h.state != was
}
