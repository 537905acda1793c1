package endpoint

import (
	"context"
	"errors"
	"log/slog"
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
// before prove nothing, as a failure of a request sent before the last failure adds nothing, nor a refusal for the rate
// of one sent before the pause.
type health struct {
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

// worked notes an answer to a request that was sent at asked.
func (n *Node) worked(asked time.Time, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.health.latency == 0 {
		n.health.latency = took
	}

	n.health.latency += (took - n.health.latency) / 8
	if !asked.Before(n.health.failed) && !n.cfg.Now().Before(n.health.resume) { // else something went wrong since
		n.health.failures = 0
		n.become(answered, nil)
	}
}

// proves notes logs from the node, asked for at that time, that stood all tests: it is not avoided any more, unless a
// wrong answer came meanwhile. A header, or an empty list of logs, proves too little.
func (n *Node) proves(asked time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if asked.After(n.health.lied) && n.health.fault == nil {
		n.health.faults, n.health.avoid = 0, time.Time{}
		n.become(answered, nil)
	}
}

// Blame notes an error that speaks against the node, and pauses it.
func (n *Node) Blame(ctx context.Context, err error) {
	n.blame(ctx, n.cfg.Secrets.Error(err), time.Time{})
}

// blame notes the error of a request that was sent at asked; zero: now.
func (n *Node) blame(ctx context.Context, err error, asked time.Time) {
	if ctx.Err() != nil {
		return
	}

	n.accuse(err)
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.cfg.Now()
	since := n.health.failed
	if rpc.Classify(err) == rpc.RateLimited {
		since = n.health.resume // nothing is sent during a pause: what was refused was on its way
	}

	repeated := !asked.IsZero() && asked.Before(since) && n.health.failures > 0
	news := n.health.err == nil || rpc.Classify(n.health.err) != rpc.Classify(err) || n.health.failures == 0
	if n.health.err = err; !repeated {
		n.health.failures++
		n.health.failed = now
	}

	what, pause := n.judge(err)
	if repeated && what == failed {
		return // requests that were in flight together fail together
	}

	if what != limited {
		pause += n.jitter(pause)
	}

	if until := now.Add(pause); until.After(n.health.resume) {
		n.health.resume = until
	}

	if what == lied {
		n.Disagrees()
	}

	if !n.become(what, err) && (news || n.health.hushed) { // what goes on after all is said again
		n.say(n.health.state, err)
	}
}

// judge says what an error means, and for how long the node is left alone. Held: mu.
func (n *Node) judge(err error) (event, time.Duration) {
	kind := rpc.Classify(err)
	switch {
	case errors.Is(err, ErrWrongChain):
		return foreign, n.shun(faultPause)
	case kind == rpc.Invalid && !errors.Is(err, rpc.ErrGarbled):
		return lied, n.shun(longestFaultPause)
	case kind == rpc.RateLimited:
		if wait := rpc.RetryIn(err); wait > 0 {
			return limited, wait
		}

		return limited, min(limitPause<<min(n.health.failures-1, 10), longestLimitPause)
	}

	return failed, min(firstPause<<min(n.health.failures-1, 10), longestPause)
}

// shun has a node avoided while others serve, twice as long each time, and returns for how long it
// is left alone even if none does. Held: mu.
func (n *Node) shun(most time.Duration) time.Duration {
	now := n.cfg.Now()
	n.health.faults++
	n.health.lied = now
	long := min(faultPause<<min(n.health.faults-1, 10), most)
	if until := now.Add(long + n.jitter(long)); until.After(n.health.avoid) {
		n.health.avoid = until
	}

	return min(alonePause<<min(n.health.faults-1, 10), longestAlonePause)
}

func (n *Node) jitter(pause time.Duration) time.Duration {
	return time.Duration(n.cfg.Rand() * float64(pause) / 4)
}

// avoided reports whether the node is left alone while others serve. Held: mu.
func (n *Node) avoided() bool { return n.health.fault != nil || n.cfg.Now().Before(n.health.avoid) }

// become changes the state by an event, and reports whether it did. err is why; nil: it works. Held: mu.
func (n *Node) become(what event, err error) bool {
	was := n.health.state
	if n.health.state = transitions[was][what]; n.health.state == was {
		return false
	}

	if !n.health.state.Up() {
		n.proven.Store(false)
	}

	n.say(was, err)

	return true
}

// sayAgain is how often the log repeats an error of a node that works in between, as one does that fails
// in some of what it is asked: it may be asked every second, for hours.
const sayAgain = time.Minute

// say tells operators of a change of state, or of a new reason. Held: mu.
func (n *Node) say(was State, err error) {
	n.cfg.Metrics.state(n.cfg.Name, n.health.state)
	attrs := []any{slog.String("endpoint", n.cfg.Name), slog.String("state", string(n.shown())),
		slog.String("was", string(was))}
	if err != nil {
		if n.health.heard[n.health.state] == nil {
			n.health.heard[n.health.state] = &logging.Repeats{}
		}

		n.health.hushed = n.health.heard[n.health.state].Lately(err, n.cfg.Now(), sayAgain)
	}

	switch {
	case err != nil && !n.health.hushed:
		n.cfg.Log.Warn("endpoint not working", append(attrs, slog.Any("err", err))...)
	case err != nil:
		n.cfg.Log.Debug("endpoint not working", append(attrs, slog.Any("err", err))...)
	case !was.Up() && !n.health.hushed:
		n.cfg.Log.Info("endpoint is up", attrs...)
	default:
		n.cfg.Log.Debug("endpoint changed", attrs...)
	}
}

// shown is the state as operators see it. Held: mu.
func (n *Node) shown() State {
	if n.avoided() && n.health.state != WrongChain {
		return Suspect
	}

	return n.health.state
}

// Serves reports whether the node can be counted on: it is in use, has not answered wrongly lately,
// and may be asked at once or soon.
func (n *Node) Serves() bool { return n.Claim().Serves }

// serves is Serves. Held: mu.
func (n *Node) serves() bool {
	return n.health.state.Up() && !n.avoided() && n.health.resume.Sub(n.cfg.Now()) <= LongestWait
}

// Pause says how long the node is not to be asked, given whether another one serves.
func (n *Node) Pause(served bool) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, until := n.cfg.Now(), n.health.resume
	if served && n.health.avoid.After(until) {
		until = n.health.avoid
	}

	if served && n.health.fault != nil {
		until = now.Add(rememberedFor) // another look then
	}

	return until.Sub(now)
}

// Retire takes a node out of use that served because no better one was there: what it says of the head no longer
// counts.
func (n *Node) Retire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.avoided() && n.health.state.Up() && !n.cfg.Now().Before(n.health.resume) {
		n.become(lied, nil)
	}
}

// Status of the node.
func (n *Node) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := Status{Name: n.cfg.Name, State: n.shown(), Up: n.health.state.Up(), Head: n.claim.Head.Number,
		Latency: n.health.latency, Fault: n.health.fault}
	if n.health.err != nil {
		st.LastError, st.Failed = n.health.err.Error(), n.health.failed
	}

	return st
}

// Disagrees counts an answer that contradicts the other endpoints'.
func (n *Node) Disagrees() { n.cfg.Metrics.disagreements.WithLabelValues(n.cfg.Name).Inc() }
