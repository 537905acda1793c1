package endpoint

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

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

// standing is a node's health as it is now, and what operators are told of it.
type standing struct {
	cfg    *Config
	proven atomic.Bool // the chain id was checked since the node was last out of use

	mu      sync.Mutex
	health  health
	latency time.Duration // moving average of a request
	heard   map[State]*logging.Repeats
	hushed  bool // the last error was one that the log has heard lately
}

// sayAgain is how often the log repeats an error of a node that works in between, as one does that fails
// in some of what it is asked: it may be asked every second, for hours.
const sayAgain = time.Minute

// hush reports whether the log has heard of an error lately. Held: mu.
func (s *standing) hush(err error) bool {
	if s.heard == nil {
		s.heard = map[State]*logging.Repeats{}
	}

	state := s.health.state
	if s.heard[state] == nil {
		s.heard[state] = &logging.Repeats{}
	}

	return s.heard[state].Lately(err, s.cfg.Now(), sayAgain)
}

// worked notes an answer to a request that was sent at asked.
func (s *standing) worked(asked time.Time, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latency == 0 {
		s.latency = took
	}

	s.latency += (took - s.latency) / 8
	was := s.health.state
	if s.health.works(asked, s.cfg.Now()) {
		s.changed(was, nil)
	}
}

// Proves notes that logs from the node stood all tests, which were asked for at that time.
func (s *standing) proves(asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.health.state
	if s.health.proves(asked) {
		s.changed(was, nil)
	}
}

// gaveLogs notes that the node answered for a range, maybe that there are none: it is not one that
// refuses logs.
func (s *standing) gaveLogs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health.state == Unfit {
		s.health.proves(s.cfg.Now())
		s.changed(Unfit, nil)
	}
}

// Blame notes an error that speaks against the node, and pauses it.
func (s *standing) Blame(ctx context.Context, err error) {
	s.blame(ctx, s.cfg.Secrets.Error(err), time.Time{})
}

func (s *standing) blame(ctx context.Context, err error, asked time.Time) {
	if ctx.Err() != nil {
		return
	}

	s.accuse(ctx, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	was, before := s.health.state, s.health.err
	news := before == nil || rpc.Classify(before) != rpc.Classify(err) || s.health.failures == 0
	changed := s.health.fails(err, asked, s.cfg.Now(), s.jitter)
	if s.health.state == Suspect || s.health.state == OnProbation {
		if rpc.Classify(err) == rpc.Invalid {
			s.Disagrees()
		}
	}

	if !s.health.state.Up() {
		s.proven.Store(false)
	}

	if changed || news || s.hushed { // what goes on after all is said again
		s.changed(was, err)
	}
}

// changed tells operators of a change of state, or of a new reason. Held: mu.
func (s *standing) changed(was State, err error) {
	s.cfg.Metrics.state(s.cfg.Name, s.health.state)
	attrs := []any{slog.String("endpoint", s.cfg.Name), slog.String("state", string(s.health.state)),
		slog.String("was", string(was))}
	if err != nil {
		s.hushed = s.hush(err)
	}

	switch {
	case err != nil && !s.hushed:
		s.cfg.Log.Warn("endpoint not working", append(attrs, slog.Any("err", err))...)
	case err != nil:
		s.cfg.Log.Debug("endpoint not working", append(attrs, slog.Any("err", err))...)
	case !was.Up() && !s.hushed:
		s.cfg.Log.Info("endpoint is up", attrs...)
	default:
		s.cfg.Log.Debug("endpoint changed", attrs...)
	}
}

func (s *standing) jitter(pause time.Duration) time.Duration {
	return time.Duration(s.cfg.Rand() * float64(pause) / 4)
}

// Serves reports whether the node can be counted on: it is in use, has not answered wrongly lately,
// and may be asked at once or soon.
func (s *standing) Serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()

	return s.health.state.Up() && !s.health.avoided(now) && s.health.resume.Sub(now) <= LongestWait
}

// Pause says how long the node is not to be asked, given whether another one serves.
func (s *standing) Pause(served bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, until := s.cfg.Now(), s.health.resume
	if served && s.health.avoid.After(until) {
		until = s.health.avoid
	}

	if served && s.health.fault != nil {
		until = now.Add(rememberedFor) // another look then
	}

	return until.Sub(now)
}

// Retire takes a node out of use that served because no better one was there: what it says of the head no longer
// counts.
func (s *standing) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.health.state; s.health.retire(s.cfg.Now()) {
		s.changed(was, nil)
	}
}

func (s *standing) up() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health.state.Up()
}

func (s *standing) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.cfg.Name, State: s.health.state, Up: s.health.state.Up(), Latency: s.latency,
		Fault: s.health.fault}
	if s.health.err != nil {
		st.LastError, st.Failed = s.health.err.Error(), s.health.failed
	}

	return st
}

// Disagrees counts an answer that contradicts the other endpoints'.
func (s *standing) Disagrees() { s.cfg.Metrics.disagreements.WithLabelValues(s.cfg.Name).Inc() }
