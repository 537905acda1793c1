package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"golang.org/x/time/rate"
)

const (
	// Pauses of an endpoint that does not work.
	firstPause, longestPause = 250 * time.Millisecond, 30 * time.Second
	// One that answered wrongly is broken in a way that does not pass by itself: it is shunned while others serve.
	faultPause, longestFaultPause = 30 * time.Second, 10 * time.Minute
	// With nobody else to ask, it is tried again soon: its answers are tested as before, and nothing is read meanwhile. With its
	// jitter it is less than longestWait, so that a question waits for it.
	alonePause, longestAlonePause = time.Second, longestWait * 3 / 4
	// One that refuses for its rate limit without saying for how long.
	limitPause = time.Second
	// Failures in a row after which an endpoint counts as down. One lost connection is nothing.
	downAfter = 2
)

// endpoint is one node, or a provider's many behind one URL.
type endpoint struct {
	name    string // rpc0, …
	shown   string // URL without secrets
	s       *Source
	conn    transport
	ws      *wsTransport // conn, where it is one
	limiter *rate.Limiter

	mu          sync.Mutex
	up          bool
	proven      bool // chain id checked since it was last down; WebSockets check each connection
	single      bool // takes no batches
	head        Header
	safe, final uint64
	tagged      time.Time // when safe and final were asked for
	latency     time.Duration
	err         error
	failures    int // in a row
	faults      int
	resume      time.Time // not to be asked before
	shunned     time.Time // nor before this, as long as another endpoint serves
	lied        time.Time // last
	span        span
	chunk       int    // addresses in one request
	items       uint64 // asked for, ever
	counted     uint64 // of them, by tempo
	tempo       tempo
}

func newEndpoint(s *Source, name, url, shown string) *endpoint {
	e := &endpoint{name: name, shown: shown, s: s, span: newSpan(s.cfg.MaxRange), chunk: s.cfg.MaxAddresses}
	if strings.HasPrefix(strings.ToLower(url), "ws") {
		e.ws = newWS(url)
		e.ws.hello = e.hello
		e.conn = e.ws
	} else {
		e.conn = newHTTP(url)
	}
	e.limiter = rate.NewLimiter(rate.Inf, 0)
	if s.cfg.MaxRPS > 0 {
		e.limiter = rate.NewLimiter(rate.Limit(s.cfg.MaxRPS), max(int(s.cfg.MaxRPS), 1))
	}
	return e
}

// hello checks that the endpoint serves the configured chain.
func (e *endpoint) hello(ctx context.Context, ask func(context.Context, *call) error) error {
	q := &call{method: chainIDMethod, params: "[]"}
	if err := ask(ctx, q); err != nil {
		return err
	}
	var id hexutil.Uint64
	if err := q.decode(&id); err != nil {
		return err
	}
	if uint64(id) != e.s.cfg.ChainID {
		return fmt.Errorf("%w: %s serves chain %d, CHAIN_ID is %d: correct one of them", ErrWrongChain, e.name, uint64(id), e.s.cfg.ChainID)
	}
	return nil
}

// do sends calls as one batch. The error is about the batch as a whole; each call has its own besides.
func (e *endpoint) do(ctx context.Context, calls ...*call) error {
	return e.via(ctx, e.conn.exchange, calls)
}

type exchange func(context.Context, []*call) (sent, received int, err error)

// via sends calls by a given way, and keeps the books: limits, metrics, health.
func (e *endpoint) via(ctx context.Context, way exchange, calls []*call) error {
	e.mu.Lock()
	single, proven := e.single, e.proven || e.ws != nil
	e.mu.Unlock()
	if !proven {
		if err := e.hello(ctx, func(ctx context.Context, q *call) error { return e.attempt(ctx, way, []*call{q}) }); err != nil {
			if ctx.Err() == nil && errors.Is(err, ErrWrongChain) {
				e.failed(ctx, err)
			}
			return err
		}
		e.mu.Lock()
		e.proven = true
		e.mu.Unlock()
	}
	if !single || len(calls) == 1 {
		err := e.attempt(ctx, way, calls)
		fault, is := errors.AsType[*rpcError](err)
		if !is || len(calls) == 1 || !strings.Contains(strings.ToLower(fault.Message), "batch") {
			return err
		}
		e.mu.Lock()
		e.single = true
		e.mu.Unlock()
	}
	for i := range calls {
		if err := e.attempt(ctx, way, calls[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (e *endpoint) attempt(ctx context.Context, way exchange, calls []*call) error {
	for n := len(calls); n > 0; { // a batch may be larger than the limiter's burst
		some := n
		if burst := e.limiter.Burst(); e.limiter.Limit() != rate.Inf {
			some = min(n, burst)
		}
		if err := e.limiter.WaitN(ctx, some); err != nil {
			return err
		}
		n -= some
	}
	start := e.s.now()
	limited, cancel := context.WithTimeoutCause(ctx, e.s.cfg.Timeout, fmt.Errorf("%w: %s waited %s for %s (RPC timeout)", errSlow, e.name, e.s.cfg.Timeout, calls[0].method))
	defer cancel()
	sent, received, err := way(limited, calls)
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.mu.Lock()
	e.items += uint64(len(calls))
	e.mu.Unlock()
	took := e.s.now().Sub(start)
	m := e.s.metrics
	m.sent.WithLabelValues(e.name).Add(float64(sent))
	m.received.WithLabelValues(e.name).Add(float64(received))
	m.duration.WithLabelValues(e.name, label(calls[0].method)).Observe(took.Seconds())
	err = e.s.secrets.Error(err)
	var limit error
	for _, c := range calls {
		if err == nil {
			c.err = e.s.secrets.Error(c.err)
		}
		verdict := classify(errors.Join(err, c.err))
		if err == nil && c.err == nil && string(c.result) == "null" {
			verdict = lagging
		}
		if verdict == tooManyAddrs {
			verdict = tooLarge
		}
		if verdict == rateLimited && err == nil {
			limit = c.err
		}
		m.requests.WithLabelValues(e.name, label(c.method), string(verdict)).Inc()
	}
	switch {
	case err != nil && classify(err) != tooLarge && classify(err) != lagging:
		if fault, is := errors.AsType[*rpcError](err); is && strings.Contains(strings.ToLower(fault.Message), "batch") && len(calls) > 1 {
			return err // it will be asked without
		}
		e.failed(ctx, err)
	case limit != nil:
		e.failed(ctx, limit)
		return limit
	case err == nil:
		e.worked(took)
	}
	return err
}

// worked notes an answer.
func (e *endpoint) worked(took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.latency == 0 {
		e.latency = took
	}
	e.latency += (took - e.latency) / 8
	if e.s.now().Before(e.resume) {
		return // asked before it went wrong
	}
	e.failures = 0
	if !e.up {
		e.up = true
		e.s.metrics.up.WithLabelValues(e.name).Set(1)
		e.s.log.Info("endpoint is up", slog.String("endpoint", e.name))
	}
}

// failed notes an error that speaks against the endpoint, and pauses it.
func (e *endpoint) failed(ctx context.Context, err error) {
	verdict := classify(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.s.now()
	was, again := e.up, e.failures > 0 && classify(e.err) == verdict
	e.err = err
	e.failures++
	pause := min(firstPause<<min(e.failures-1, 10), longestPause)
	switch {
	case errors.Is(err, ErrWrongChain):
		e.up, e.proven = false, false
		pause = e.shun(now, faultPause)
	case verdict == rejected && !errors.Is(err, errGarbled):
		e.up = false
		pause = e.shun(now, longestFaultPause)
		e.s.metrics.disagreements.WithLabelValues(e.name).Inc()
	case verdict == rateLimited:
		pause = min(limitPause<<min(e.failures-1, 10), longestPause)
		if status, is := errors.AsType[*statusError](err); is && status.retry > 0 {
			pause = status.retry
		}
	case e.failures >= downAfter || !e.up:
		e.up, e.proven = false, false
	}
	if verdict != rateLimited {
		pause += e.jitter(pause)
	}
	if until := now.Add(pause); until.After(e.resume) {
		e.resume = until
	}
	if was && !e.up {
		e.s.metrics.up.WithLabelValues(e.name).Set(0)
	}
	if was != e.up || !again {
		e.s.log.WarnContext(ctx, "endpoint not working", slog.String("endpoint", e.name), slog.Bool("up", e.up), slog.Any("err", err))
	}
}

// shun keeps an endpoint that answered wrongly out while others serve, twice as long each time, and returns for how long it is left
// alone even if nobody does. Held: mu.
func (e *endpoint) shun(now time.Time, most time.Duration) time.Duration {
	e.faults++
	e.lied = now
	long := min(faultPause<<min(e.faults-1, 10), most)
	if until := now.Add(long + e.jitter(long)); until.After(e.shunned) {
		e.shunned = until
	}
	return min(alonePause<<min(e.faults-1, 10), longestAlonePause)
}

func (e *endpoint) jitter(pause time.Duration) time.Duration {
	return time.Duration(e.s.random() * float64(pause) / 4)
}

// honest notes logs that stood all tests, asked for at that time. They do not excuse a lie that came meanwhile; nor do a header or the answer that
// there are no logs, in which there is not much to be wrong.
func (e *endpoint) honest(asked time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if asked.After(e.lied) {
		e.faults, e.shunned = 0, time.Time{}
	}
}

// doubtful says whether the endpoint has lied and not been heard to tell the truth since.
func (e *endpoint) doubtful(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Before(e.shunned)
}

// serves says whether the endpoint can be counted on: it is up, has not lied lately, and may be asked at once or soon.
func (e *endpoint) serves(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.up && !now.Before(e.shunned) && e.resume.Sub(now) <= longestWait
}

// pause says how long the endpoint is not to be asked, given whether another one serves.
func (e *endpoint) pause(now time.Time, served bool) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	until := e.resume
	if served && e.shunned.After(until) {
		until = e.shunned
	}
	return until.Sub(now)
}

// paused says how long the endpoint is not to be asked as things are. One that is kept out only because others serve is not up.
func (s *Source) paused(e *endpoint) time.Duration {
	now := s.now()
	pause := e.pause(now, s.servedBut(e, now))
	if pause > 0 {
		e.out(now)
	}
	return pause
}

// servedBut says whether an endpoint other than e serves.
func (s *Source) servedBut(e *endpoint, now time.Time) bool {
	return slices.ContainsFunc(s.endpoints, func(other *endpoint) bool { return other != e && other.serves(now) })
}

// out marks an endpoint that was in use for want of a better one, and is not any more: what it says of the head counts no longer.
func (e *endpoint) out(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.up && now.Before(e.shunned) && !now.Before(e.resume) {
		e.up = false
		e.s.metrics.up.WithLabelValues(e.name).Set(0)
	}
}

func (e *endpoint) status() EndpointStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := EndpointStatus{Name: e.name, URL: e.shown, Up: e.up, Head: e.head.Number, Latency: e.latency}
	if e.err != nil {
		st.LastError = e.err.Error()
	}
	return st
}

// span is how many blocks are asked for at once. It doubles until it is refused for the first time, then grows slowly, and halves when
// refused. What was refused is not tried again for a while: each refusal costs a request.
type span struct {
	size, most uint64
	ceiling    uint64 // one less than what was refused
	refused    bool
	successes  int // since
}

const (
	firstSpan = 512
	// Successes after which a refused size may be tried again: providers raise limits, and some refuse for the number of logs.
	forgetAfter = 512
	// Answers with so many logs are large enough; twice as many are too large for a commit.
	enoughLogs = 5000
)

func newSpan(most uint64) span { return span{size: min(firstSpan, most), most: most, ceiling: most} }

func (s *span) accepted(size uint64, logs int) {
	if s.refused {
		if s.successes++; s.successes > forgetAfter {
			s.ceiling, s.successes = s.most, 0
		}
	}
	switch {
	case logs > 2*enoughLogs && size <= s.size:
		s.size = max(s.size/2, 1)
	case size < s.size || logs > enoughLogs:
	case !s.refused:
		s.size = min(s.size*2, s.ceiling)
	default:
		s.size = min(s.size+max(s.size/16, 1), s.ceiling)
	}
}

func (s *span) refuse(size uint64) {
	s.refused, s.successes = true, 0
	s.ceiling = max(min(s.ceiling, size-1), 1)
	s.size = max(min(s.size, size/2), 1)
}
