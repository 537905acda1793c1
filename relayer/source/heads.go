package source

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Safe and finalized are asked for once in so many blocks where they do not decide what is processed, an epoch of Ethereum's, at whose end they
// move; but not more often than tagsEvery, nor less than tagsSeldom.
const (
	tagsBlocks            = 32
	tagsEvery, tagsSeldom = 12 * time.Second, 10 * time.Minute
)

// lookAround is how often an endpoint that is kept out looks whether it is needed. That costs no request.
const lookAround = 500 * time.Millisecond

// follow keeps up with one endpoint's head until ctx ends.
func (s *Source) follow(ctx context.Context, e *endpoint) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	subscribes := e.ws != nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if pause := s.paused(e); pause > 0 {
			timer.Reset(min(pause, lookAround)) // it ends early when the others end
			continue
		}
		if subscribes {
			subscribes = s.listen(ctx, e)
			timer.Reset(0)
			continue
		}
		s.poll(ctx, e, e.do)
		timer.Reset(s.nextPoll(e))
	}
}

// nextPoll is when to look again: of the node that is read from, when the next block is due there; of one in reserve, seldom.
func (s *Source) nextPoll(e *endpoint) time.Duration {
	if e != s.lead() && s.View().Ready {
		return 2 * s.cfg.PollInterval
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tempo.due.Sub(s.now())
}

// lead is the endpoint that is read from.
func (s *Source) lead() *endpoint {
	now := s.now()
	for _, e := range s.endpoints {
		if e.serves(now) {
			return e
		}
	}
	return s.endpoints[0]
}

// poll asks for the head, for the tags when they are due, and maybe for the logs that a new head makes readable.
func (s *Source) poll(ctx context.Context, e *endpoint, do func(context.Context, ...*call) error) {
	calls := []*call{byTag("latest")}
	pause := s.tagsPause()
	e.mu.Lock()
	before, spent := e.head, e.items
	if s.cfg.Finality == Safe || s.cfg.Finality == Finalized || s.now().Sub(e.tagged) >= pause {
		calls = append(calls, byTag("finalized"), byTag("safe"))
		if s.cfg.Finality != Safe {
			calls = calls[:2]
		}
	}
	e.mu.Unlock()
	tags := calls[1:]
	var logs *call
	var hint *hint
	if e.ws == nil && e == s.lead() {
		if logs, hint = s.foretell(e); logs != nil {
			calls = append(calls, logs)
		}
	}
	asked := s.now()
	head, err := s.head(ctx, e, do, calls, tags)
	news := err == nil && head.Hash != before.Hash
	s.foretold(logs, hint, head, news)
	paying := s.hints.pay()
	e.mu.Lock()
	if news {
		e.tempo.found(head.Number, asked, s.cfg.PollInterval)
		if !paying {
			e.counted = spent // nothing is to be had by putting looks off
		}
		e.tempo.spend(spent-e.counted, head.Number-min(before.Number, head.Number), s.cfg.PollInterval)
		e.counted = spent
	} else {
		e.tempo.missed(asked, s.cfg.PollInterval)
	}
	e.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			s.refresh(ctx)
		}
		return
	}
	s.arrived(ctx, e, head, nil)
}

func (s *Source) tagsPause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pace.seen < 16 {
		return tagsEvery
	}
	return min(max(tagsBlocks*s.pace.mean, tagsEvery), tagsSeldom)
}

// head sends the calls, the first of which asks for the head, and takes in the tags.
func (s *Source) head(ctx context.Context, e *endpoint, do func(context.Context, ...*call) error, calls, tags []*call) (head Header, err error) {
	if err := do(ctx, calls...); err != nil {
		return head, err
	}
	if err := calls[0].decode(&head); err != nil {
		if ctx.Err() == nil {
			e.failed(ctx, s.secrets.Error(err))
		}
		return head, err
	}
	if len(tags) == 0 {
		return head, nil
	}
	// A node that does not know the tags answers with an error or null.
	var told [2]uint64
	for i, c := range tags {
		var h Header
		err := c.decode(&h)
		told[i] = h.Number
		if err != nil && []string{Finalized, Safe}[i] == s.cfg.Finality {
			if ctx.Err() == nil {
				e.failed(ctx, fmt.Errorf("it does not know the %s block: wait for it, or set FINALITY=confirmations: %w", s.cfg.Finality, s.secrets.Error(err)))
			}
			return head, err
		}
	}
	e.mu.Lock()
	e.final, e.safe, e.tagged = told[0], told[1], s.now()
	e.mu.Unlock()
	return head, nil
}

// listen follows the head by subscription until the connection ends. It says whether to try that again: some nodes have no subscriptions.
func (s *Source) listen(ctx context.Context, e *endpoint) bool {
	opening, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, errSlow)
	conn, err := e.ws.connect(opening)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			e.failed(ctx, s.secrets.Error(err))
			s.refresh(ctx)
		}
		return true
	}
	do := func(ctx context.Context, calls ...*call) error {
		return e.via(ctx, func(ctx context.Context, calls []*call) (int, int, error) { return e.ws.over(ctx, conn, calls) }, calls)
	}
	subscribe := &call{method: subscribeMethod, params: `["newHeads"]`}
	if err := do(ctx, subscribe); err != nil {
		return true
	}
	if subscribe.err != nil {
		s.log.WarnContext(ctx, "endpoint has no subscriptions, polling instead", slog.String("endpoint", e.name), slog.Any("err", subscribe.err))
		return false
	}
	s.poll(ctx, e, do)
	// Subscriptions have been seen to go silent without the connection breaking.
	look := time.NewTicker(min(max(4*s.cfg.PollInterval, s.cfg.PollInterval), tagsEvery))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-conn.done:
			if ctx.Err() == nil {
				e.failed(ctx, errDisconnected)
				s.refresh(ctx)
			}
			return true
		case h := <-conn.heads:
			s.arrived(ctx, e, h, conn)
			if s.cfg.Finality == Safe || s.cfg.Finality == Finalized {
				s.poll(ctx, e, do)
			}
		case <-look.C:
			s.poll(ctx, e, do)
		}
	}
}

// arrived notes an endpoint's head; via is the connection over which it was announced.
func (s *Source) arrived(ctx context.Context, e *endpoint, h Header, via *wsConn) {
	// The ring first: another endpoint's refresh may make a View of this head, whose readers then look at the ring.
	s.ring.head(h, e, via)
	if h.Bloom != (types.Bloom{}) {
		s.blooms.Store(true)
	}
	e.mu.Lock()
	e.head = h
	e.mu.Unlock()
	s.refresh(ctx)
}

// refresh derives the View from what the endpoints say.
func (s *Source) refresh(ctx context.Context) {
	type claim struct{ head, final uint64 }
	var finals []claim
	var next View
	var head Header
	for _, e := range s.endpoints {
		e.mu.Lock()
		if e.up && e.head.Hash != (common.Hash{}) {
			next.Ready = true
			if e.head.Number > head.Number || head.Hash == (common.Hash{}) {
				head = e.head
			}
			final := e.final
			if final == 0 && e.head.Number > unknownFinality {
				final = e.head.Number - unknownFinality
			}
			finals = append(finals, claim{e.head.Number, final})
			switch s.cfg.Finality {
			case Safe:
				next.Target = max(next.Target, e.safe)
			case Finalized:
				next.Target = max(next.Target, e.final)
			}
		}
		e.mu.Unlock()
	}
	if !next.Ready {
		return
	}
	next.Head, next.HeadTime = head.Number, time.Unix(int64(head.Time), 0)
	switch s.cfg.Finality {
	case Latest:
		next.Target = head.Number
	case Confirmations:
		next.Target = head.Number - min(head.Number, s.cfg.Confirmations)
	}
	// Final is what all say that are up to date: too low costs requests, too high the check of parents.
	next.Final = next.Target
	for _, c := range finals {
		if c.head >= next.Target {
			next.Final = min(next.Final, c.final)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if head.Hash != s.headHash && next.Head >= s.view.Head {
		if s.view.Ready {
			s.pace.blocks(next.Head-s.view.Head, now.Sub(s.moved))
		}
		s.headHash, s.moved = head.Hash, now
	}
	if s.view.Ready {
		if next.Head >= s.view.Head {
			s.doubted = time.Time{}
		} else {
			if s.doubted.IsZero() {
				s.doubted = now
			}
			if now.Sub(s.doubted) < viewHold {
				next.Head, next.HeadTime = s.view.Head, s.view.HeadTime
			} else {
				s.log.WarnContext(ctx, "no endpoint has the newest block any more: going back", slog.Uint64("block", s.view.Head), slog.Uint64("head", next.Head))
				s.doubted, s.headHash, s.moved = time.Time{}, head.Hash, now
				s.view.Target, s.view.Final = 0, 0
			}
		}
		next.Target, next.Final = max(next.Target, s.view.Target), max(next.Final, s.view.Final)
	}
	if next == s.view {
		return
	}
	s.view = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// pace is how fast the chain makes blocks, as seen from here.
type pace struct {
	mean time.Duration
	seen int
}

func (p *pace) blocks(n uint64, took time.Duration) {
	if n == 0 || n > 1000 || took <= 0 {
		return
	}
	each := took / time.Duration(n)
	if p.seen++; p.seen == 1 {
		p.mean = each
	}
	p.mean += (each - p.mean) / 8
}

// patience is how long no new block is no cause for alarm; zero: for ever, as the pace is not known.
func (p *pace) patience() time.Duration {
	if p.seen < 16 {
		return 0
	}
	return max(2*time.Minute, 30*p.mean)
}

// ring remembers the newest headers, each the parent of the next.
type ring struct {
	mu      sync.Mutex
	headers map[uint64]known
	top     uint64
	owner   *endpoint // whose head is on top
}

// known is a header, and the connection that announced it: its node has the block.
type known struct {
	Header
	by  *endpoint
	via *wsConn
}

// ringSize covers any depth of finality by confirmations.
const ringSize = 1024

// head puts a head on the ring. Another endpoint's that is lower is left out: its node lags.
func (r *ring) head(h Header, e *endpoint, via *wsConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.headers == nil {
		r.headers = map[uint64]known{}
	}
	if h.Number < r.top && e != r.owner {
		return
	}
	if have, ok := r.headers[h.Number]; ok && have.Hash == h.Hash {
		if via != nil && have.via == nil {
			r.headers[h.Number] = known{h, e, via}
		}
		if e != r.owner {
			return
		}
	} else {
		r.headers[h.Number] = known{h, e, via}
	}
	for n := h.Number + 1; n <= r.top; n++ {
		delete(r.headers, n)
	}
	r.top, r.owner = h.Number, e
	r.link(h.Number)
	for n := range r.headers {
		if n+ringSize < r.top {
			delete(r.headers, n)
		}
	}
}

// link drops what is below a header and not its ancestor. Held: mu.
func (r *ring) link(n uint64) {
	child := r.headers[n]
	for n > 0 {
		n--
		parent, ok := r.headers[n]
		if !ok {
			// What is below a gap cannot be judged; whoever fills the gap does.
			return
		}
		if parent.Hash != child.Parent {
			for m := range r.headers {
				if m <= n {
					delete(r.headers, m)
				}
			}
			return
		}
		if child.Number+8 < r.top {
			return // it was linked before
		}
		child = parent
	}
}

// has says whether a header is on the ring.
func (r *ring) has(h Header) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.headers[h.Number]
	return ok && k.Hash == h.Hash
}

// get returns the headers that are known of from..to.
func (r *ring) get(from, to uint64) map[uint64]known {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[uint64]known{}
	for n := from; n <= to; n++ {
		if k, ok := r.headers[n]; ok {
			found[n] = k
		}
	}
	return found
}

// newest is the number of the head on the ring; 0 when it is so far above a block that headers in between would not be kept.
func (r *ring) newest(above uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.top > above+ringSize/2 {
		return 0
	}
	return r.top
}

// fill adds headers that were read, below the top.
func (r *ring) fill(list []known) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range list {
		if _, ok := r.headers[k.Number]; !ok && k.Number < r.top && k.Number+ringSize >= r.top {
			r.headers[k.Number] = k
		}
	}
}

// drop forgets everything but the top: what was remembered turned out to be on no chain.
func (r *ring) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.headers)
	r.top = 0
}
