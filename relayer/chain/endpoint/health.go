package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// State is a node's health in a word.
type State string

// The states. A node in use is healthy, limited or unsteady.
const (
	Untried    State = "untried"      // nothing was asked yet
	Healthy    State = "healthy"      // its last answer was one
	Limited    State = "rate_limited" // it works, and asked for fewer requests
	Unsteady   State = "unsteady"     // its last request failed; one lost connection is nothing
	Down       State = "down"         // it does not answer, or has answered wrongly and nothing since
	WrongChain State = "wrong_chain"  // it serves another chain

	// Suspect is what operators see in place of the others of a node that answered wrongly and is avoided for it.
	Suspect State = "suspect"
)

// event is what happened to a node.
type event string

const (
	answered event = "answered" // a request
	failed   event = "failed"   // a request, whatever the reason that is none of those below
	limited  event = "limited"  // it refused for its rate
	lied     event = "lied"     // it answered wrongly
	foreign  event = "foreign"  // it serves another chain
)

// transitions is the whole state machine: what a state becomes by an event.
var transitions = map[State]map[event]State{
	Untried:    {answered: Healthy, failed: Down, limited: Untried, lied: Down, foreign: WrongChain},
	Healthy:    {answered: Healthy, failed: Unsteady, limited: Limited, lied: Down, foreign: WrongChain},
	Limited:    {answered: Healthy, failed: Unsteady, limited: Limited, lied: Down, foreign: WrongChain},
	Unsteady:   {answered: Healthy, failed: Down, limited: Limited, lied: Down, foreign: WrongChain},
	Down:       {answered: Healthy, failed: Down, limited: Down, lied: Down, foreign: WrongChain},
	WrongChain: {answered: Healthy, failed: WrongChain, limited: WrongChain, lied: Down, foreign: WrongChain},
}

// Up reports whether a node in this state is in use.
func (s State) Up() bool { return s == Healthy || s == Limited || s == Unsteady }

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
)

// LongestWait is how long a request may wait for a node that is paused. Longer is up to the caller:
// there may be something else to do.
const LongestWait = 5 * time.Second

// Status is what an operator sees of a node.
type Status struct {
	Name      string
	State     State
	Up        bool
	Head      uint64
	Latency   time.Duration // moving average of a request
	LastError string        // redacted; may be older than the last success; empty: there was none
	Failed    time.Time     // when that was; zero: never
	Fault     *Fault        // what it is set aside for; nil: it is not
}

// health is whether a node is in use, from when it may be asked (from resume on where it is alone, from avoid on while
// another node serves), and what operators are told of that. failures and faults, in a row, set how long; err is the
// last error, which may be older than the last success. lied is when it last answered wrongly: logs that were asked for
// before prove nothing, as a failure of a request sent before the last failure adds nothing.
type health struct {
	cfg    *Config
	proven atomic.Bool // the chain id was checked since the node was last out of use

	mu            sync.Mutex
	state         State
	resume, avoid time.Time
	failures      int
	faults        int
	lied, failed  time.Time
	err           error
	fault         *Fault        // what it is set aside for; nil: it is not
	latency       time.Duration // moving average of a request
	heard         map[State]*logging.Repeats
	hushed        bool // the last error was one that the log has heard lately
}

func newHealth(cfg *Config) *health {
	return &health{cfg: cfg, state: Untried, heard: map[State]*logging.Repeats{}}
}

// worked notes an answer to a request that was sent at asked.
func (h *health) worked(asked time.Time, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latency == 0 {
		h.latency = took
	}

	h.latency += (took - h.latency) / 8
	if !asked.Before(h.failed) && !h.cfg.Now().Before(h.resume) { // else it was sent before something went wrong
		h.failures = 0
		h.become(answered, nil)
	}
}

// proves notes logs from the node, asked for at that time, that stood all tests: it is not avoided any more, unless a
// wrong answer came meanwhile. A header, or an empty list of logs, proves too little.
func (h *health) proves(asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if asked.After(h.lied) && h.fault == nil {
		h.faults, h.avoid = 0, time.Time{}
		h.become(answered, nil)
	}
}

// Blame notes an error that speaks against the node, and pauses it.
func (h *health) Blame(ctx context.Context, err error) {
	h.blame(ctx, h.cfg.Secrets.Error(err), time.Time{})
}

// blame notes the error of a request that was sent at asked; zero: now.
func (h *health) blame(ctx context.Context, err error, asked time.Time) {
	if ctx.Err() != nil {
		return
	}

	h.accuse(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Now()
	repeated := !asked.IsZero() && asked.Before(h.failed) && h.failures > 0
	news := h.err == nil || rpc.Classify(h.err) != rpc.Classify(err) || h.failures == 0
	if h.err = err; !repeated {
		h.failures++
		h.failed = now
	}

	what, pause := h.judge(err)
	if repeated && what == failed {
		return // requests that were in flight together fail together
	}

	if what != limited {
		pause += h.jitter(pause)
	}

	if until := now.Add(pause); until.After(h.resume) {
		h.resume = until
	}

	if what == lied {
		h.Disagrees()
	}

	if !h.become(what, err) && (news || h.hushed) { // what goes on after all is said again
		h.say(h.state, err)
	}
}

// judge says what an error means, and for how long the node is left alone. Held: mu.
func (h *health) judge(err error) (event, time.Duration) {
	kind := rpc.Classify(err)
	switch {
	case errors.Is(err, ErrWrongChain):
		return foreign, h.shun(faultPause)
	case kind == rpc.Invalid && !errors.Is(err, rpc.ErrGarbled):
		return lied, h.shun(longestFaultPause)
	case kind == rpc.RateLimited:
		if wait := rpc.RetryIn(err); wait > 0 {
			return limited, wait
		}

		return limited, min(limitPause<<min(h.failures-1, 10), longestLimitPause)
	}

	return failed, min(firstPause<<min(h.failures-1, 10), longestPause)
}

// shun has a node avoided while others serve, twice as long each time, and returns for how long it
// is left alone even if none does. Held: mu.
func (h *health) shun(most time.Duration) time.Duration {
	now := h.cfg.Now()
	h.faults++
	h.lied = now
	long := min(faultPause<<min(h.faults-1, 10), most)
	if until := now.Add(long + h.jitter(long)); until.After(h.avoid) {
		h.avoid = until
	}

	return min(alonePause<<min(h.faults-1, 10), longestAlonePause)
}

func (h *health) jitter(pause time.Duration) time.Duration {
	return time.Duration(h.cfg.Rand() * float64(pause) / 4)
}

// avoided reports whether the node is left alone while others serve. Held: mu.
func (h *health) avoided() bool { return h.fault != nil || h.cfg.Now().Before(h.avoid) }

// become changes the state by an event, and reports whether it did. err is why; nil: it works. Held: mu.
func (h *health) become(what event, err error) bool {
	was := h.state
	if h.state = transitions[was][what]; h.state == was {
		return false
	}

	if !h.state.Up() {
		h.proven.Store(false)
	}

	h.say(was, err)

	return true
}

// sayAgain is how often the log repeats an error of a node that works in between, as one does that fails
// in some of what it is asked: it may be asked every second, for hours.
const sayAgain = time.Minute

// say tells operators of a change of state, or of a new reason. Held: mu.
func (h *health) say(was State, err error) {
	h.cfg.Metrics.state(h.cfg.Name, h.state)
	attrs := []any{slog.String("endpoint", h.cfg.Name), slog.String("state", string(h.shown())),
		slog.String("was", string(was))}
	if err != nil {
		if h.heard[h.state] == nil {
			h.heard[h.state] = &logging.Repeats{}
		}

		h.hushed = h.heard[h.state].Lately(err, h.cfg.Now(), sayAgain)
	}

	switch {
	case err != nil && !h.hushed:
		h.cfg.Log.Warn("endpoint not working", append(attrs, slog.Any("err", err))...)
	case err != nil:
		h.cfg.Log.Debug("endpoint not working", append(attrs, slog.Any("err", err))...)
	case !was.Up() && !h.hushed:
		h.cfg.Log.Info("endpoint is up", attrs...)
	default:
		h.cfg.Log.Debug("endpoint changed", attrs...)
	}
}

// shown is the state as operators see it. Held: mu.
func (h *health) shown() State {
	if h.avoided() && h.state != WrongChain {
		return Suspect
	}

	return h.state
}

// Serves reports whether the node can be counted on: it is in use, has not answered wrongly lately,
// and may be asked at once or soon.
func (h *health) Serves() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.Up() && !h.avoided() && h.resume.Sub(h.cfg.Now()) <= LongestWait
}

// Pause says how long the node is not to be asked, given whether another one serves.
func (h *health) Pause(served bool) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, until := h.cfg.Now(), h.resume
	if served && h.avoid.After(until) {
		until = h.avoid
	}

	if served && h.fault != nil {
		until = now.Add(rememberedFor) // another look then
	}

	return until.Sub(now)
}

// Retire takes a node out of use that served because no better one was there: what it says of the head no longer
// counts.
func (h *health) Retire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.avoided() && h.state.Up() && !h.cfg.Now().Before(h.resume) {
		h.become(lied, nil)
	}
}

func (h *health) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := Status{Name: h.cfg.Name, State: h.shown(), Up: h.state.Up(), Latency: h.latency, Fault: h.fault}
	if h.err != nil {
		st.LastError, st.Failed = h.err.Error(), h.failed
	}

	return st
}

// Disagrees counts an answer that contradicts the other endpoints'.
func (h *health) Disagrees() { h.cfg.Metrics.disagreements.WithLabelValues(h.cfg.Name).Inc() }
