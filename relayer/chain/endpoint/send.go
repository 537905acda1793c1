package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// quickTimeout is of requests with small answers. A connection that swallows them is found out by it.
const quickTimeout = 5 * time.Second

// Name of the node, as operators see it.
func (n *Node) Name() string { return n.cfg.Name }

// WebSocket reports whether the node can announce blocks.
func (n *Node) WebSocket() bool { return n.cfg.webSocket() }

// Close ends its connections. The next request opens new ones.
func (n *Node) Close() { n.client.Close() }

// checkChain makes sure that the node serves the configured chain.
func (n *Node) checkChain(ctx context.Context, ask func(context.Context, *rpc.Call) error) error {
	q := &rpc.Call{Method: rpc.ChainID, Params: "[]"}
	if err := ask(ctx, q); err != nil {
		return err
	}

	var id rpc.Number
	if err := q.Decode(&id); err != nil {
		return err
	}

	if uint64(id) != n.cfg.ChainID {
		return fmt.Errorf("%w: %s serves chain %d, CHAIN_ID is %d: correct one of them", ErrWrongChain, n.cfg.Name,
			uint64(id), n.cfg.ChainID)
	}

	return nil
}

// Do sends calls with small answers. The error is about all of them; each call also has its own.
func (n *Node) Do(ctx context.Context, calls ...*rpc.Call) error {
	return n.send(ctx, bounds{timeout: min(n.cfg.Timeout, quickTimeout), limit: smallAnswer}, calls)
}

// mostOffers transactions are on their way to a node at a time: those that hang leave places for what is read.
const mostOffers = mostInFlight - RangesInFlight

// Offer is Do of a transaction, within Config.Timeout. Those that a slow node has not answered have the others wait in
// their order.
func (n *Node) Offer(ctx context.Context, call *rpc.Call) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeout)
	defer cancel()
	if err := n.offers.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%w: %s has not answered the transactions before (RPC timeout)", rpc.ErrSlow, n.cfg.Name)
	}

	defer n.offers.Release(1)

	return n.Do(ctx, call)
}

// sendLogs is send of calls for logs, or for what proves them. The beginning of such an answer may take nearly as long
// as Config.Timeout, but a connection that swallows requests is to be found out sooner: so it is waited for
// quickTimeout, unless the last answer took half of that, or logs were late twice and the node answered something
// between, so that it is in use still, or what asks can wait (Later). Even then there is time left within 10 s, so that
// a node that hung is read from.
func (n *Node) sendLogs(ctx context.Context, b bounds, calls []*rpc.Call) error {
	b.timeout = min(n.cfg.Timeout, quickTimeout)
	if n.slow.Load() || canWait(ctx) {
		b.timeout = max(n.cfg.Timeout*4/5, b.timeout)
	}

	asked := n.cfg.Now()
	err := n.send(ctx, b, calls)
	switch {
	case err == nil:
		n.slow.Store(n.cfg.Now().Sub(asked) > quickTimeout/2)
		n.late.Store(false)
	case errors.Is(err, rpc.ErrSlow):
		n.slow.Store(n.late.Swap(true) && n.Status().Up)
	}

	return err
}

// bounds of an answer.
type bounds struct {
	timeout  time.Duration // for its beginning where it streams
	limit    int64         // bytes
	answered bool          // as much was answered before: it is no reason to refuse
	block    bool          // logs of a single block: neither is that
}

// send sends calls in as large batches as the node takes, after it has proven to serve the right chain.
func (n *Node) send(ctx context.Context, b bounds, calls []*rpc.Call) error {
	if !n.WebSocket() && !n.proven.Load() { // each connection of a WebSocket is checked when it is made
		err := n.checkChain(ctx, func(ctx context.Context, q *rpc.Call) error {
			return n.attempt(ctx, bounds{timeout: b.timeout, limit: smallAnswer}, []*rpc.Call{q})
		})
		if errors.Is(err, ErrWrongChain) {
			n.Blame(ctx, err)
		}

		if err != nil {
			return err
		}

		n.proven.Store(true)
	}

	answered := false // since a limit of the rate was met
	for left := calls; len(left) > 0; {
		some := left[:min(len(left), int(n.batches.allowed()), n.gate.atOnce())]
		open, err := n.sendBatch(ctx, b, some)
		switch {
		case err == nil:
			answered, left = true, slices.Concat(open, left[len(some):])
		case answered && rpc.Classify(err) == rpc.RateLimited && n.waitOut(ctx):
			answered = false // what has been answered is not thrown away for it
		default:
			return err
		}
	}

	for _, c := range calls {
		var h rpc.Header
		if c.IsHeader() && c.Decode(&h) == nil {
			c.Err = n.authentic(ctx, h, c.Result)
		}
	}

	return nil
}

// sendBatch sends one batch, and returns those of its calls that are to be sent again, fewer at once.
func (n *Node) sendBatch(ctx context.Context, b bounds, some []*rpc.Call) ([]*rpc.Call, error) {
	err := n.attempt(ctx, b, some)
	open := n.open(some, err)
	if len(some) == 1 || len(open) == 0 || ctx.Err() != nil {
		if err != nil && len(some) > 1 && !slices.ContainsFunc(some, isLogs) {
			n.batches.spares(float64(len(some))) // of a batch with logs the range is doubted first
		}

		return nil, err
	}

	// It may be that the batch was too large: one of its requests, sent alone, decides.
	err = n.attempt(ctx, b, open[:1])
	switch {
	case err == nil && open[0].Err == nil:
		n.batches.refused(float64(len(some)), float64(cmp.Or(len(some)-len(open), len(some)/2)))
		return open[1:], nil
	case err == nil:
		n.batches.answered(float64(len(some)), 0)
	}

	return nil, err
}

// waitOut waits until the node may be asked again, and reports whether that is worth it.
func (n *Node) waitOut(ctx context.Context) bool {
	pause := n.Pause(false)
	if pause > LongestWait {
		return false
	}

	return Wait(ctx, pause) == nil
}

// Wait returns after a pause, or with the cause when ctx ends before.
func Wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(max(pause, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sent says when calls were sent, how long the answer took, and how many batches were in flight, with
// them, at the beginning and at the end.
type sent struct {
	at            time.Time
	took          time.Duration
	before, after int
}

// crowd is how many batches were in flight when they were answered, or when they were sent if that is more.
func (s sent) crowd() int { return max(s.before, s.after) }

// exchange sends calls when the gate lets count of them through. All of an answer that streams, of up to a hundred
// megabytes, has Config.Timeout. Where ctx ended the error is its cause.
func (n *Node) exchange(ctx context.Context, b bounds, calls []*rpc.Call, count int) (s sent, err error) {
	if s.before, err = n.gate.take(ctx, count); err != nil {
		return s, err
	}

	s.at = n.cfg.Now()
	slow := func(timeout time.Duration) error {
		return fmt.Errorf("%w: %s waited %s for %s (RPC timeout)", rpc.ErrSlow, n.cfg.Name, timeout, calls[0].Method)
	}
	whole, streams := b.timeout, slices.ContainsFunc(calls, (*rpc.Call).Streams)
	if streams {
		whole = n.cfg.Timeout
	}

	limited, cancel := context.WithTimeoutCause(ctx, whole, slow(whole))
	defer cancel()
	var arrived func()
	if streams {
		begins, silent := context.WithCancelCause(limited)
		timer := time.AfterFunc(b.timeout, func() { silent(slow(b.timeout)) })
		defer timer.Stop()
		limited, arrived = begins, func() { timer.Stop() }
	}

	for _, c := range calls {
		c.Answer = rpc.Answer{} // of the try before
	}

	traffic, err := n.client.Exchange(limited, calls, b.limit, arrived)
	s.after = n.gate.done()
	if ctx.Err() != nil {
		return s, context.Cause(ctx)
	}

	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}

	if errors.Is(err, rpc.ErrTooLarge) && len(calls) == 1 && !streams {
		err = fmt.Errorf("%w: %s: %w", rpc.ErrOversized, calls[0].Method, err)
	}

	s.took = n.cfg.Now().Sub(s.at)
	err = n.cfg.Secrets.Error(err)
	for _, c := range calls {
		c.Err = n.cfg.Secrets.Error(c.Err)
	}

	n.cfg.Metrics.exchanged(n.cfg.Name, calls, err, traffic, s.took)

	return s, err
}

// attempt sends one batch and keeps the books. The failure of a batch that may be one of batches
// is held against the batch, not the node: its requests are sent alone next.
func (n *Node) attempt(ctx context.Context, b bounds, calls []*rpc.Call) error {
	s, err := n.exchange(ctx, b, calls, len(calls))
	for tries := 1; broke(err) && tries < n.tries(calls) && ctx.Err() == nil; tries++ {
		s, err = n.exchange(ctx, b, calls, 0)
	}

	if ctx.Err() != nil || s.at.IsZero() { // it was not sent
		return err
	}

	partial := errors.Is(err, rpc.ErrUnanswered)
	if err == nil || partial {
		if i := slices.IndexFunc(calls, metRate); i >= 0 { // a request's limit of the rate is the batch's
			err, partial = fmt.Errorf("%w: %w", rpc.ErrRate, calls[i].Err), false
		}
	}

	if reason := n.unexplained(b, calls, err); reason != nil {
		err, partial = fmt.Errorf("%w: %w", errUnexplained, reason), false
	}

	if err != nil && !partial {
		n.fails(ctx, b, calls, err, s)
		return err
	}

	n.gate.answered(len(calls), s)
	n.worked(s.at, s.took)
	if err == nil && !slices.ContainsFunc(calls, func(c *rpc.Call) bool { return c.Err != nil }) {
		n.batches.answered(float64(len(calls)), 0)
	}

	return err
}

// errUnexplained is a refusal that is taken for one of the rate, as no other reason is known.
var errUnexplained = fmt.Errorf("%w, so it seems", rpc.ErrRate)

// unexplained returns the refusal without a reason of what a node has answered before: it is busy, or it is the rate.
func (n *Node) unexplained(b bounds, calls []*rpc.Call, err error) error {
	i := slices.IndexFunc(calls, (*rpc.Call).Streams)
	if i < 0 || !n.takesBatch(len(calls)) {
		return nil
	}

	err = cmp.Or(err, calls[i].Err)
	_, said := errors.AsType[*rpc.Error](err)
	_, page := errors.AsType[*rpc.Page](err)
	if (said || page) && rpc.Vague(err) && (b.answered || b.block && rpc.Classify(err) == rpc.RangeTooLarge) {
		return err
	}

	return nil
}

// lostTries is how often something is asked at once, in all, while its answer is lost.
const lostTries = 3

// tries is how often requests are sent at once while their answer is lost on its way: the connection
// was idle for too long, or one of the machines behind the URL is broken.
func (n *Node) tries(calls []*rpc.Call) int {
	if !n.takesBatch(len(calls)) {
		return 1 // its size may be the reason
	}

	return lostTries
}

// broke reports whether the answer to a request was lost, which says nothing of the request.
func broke(err error) bool {
	if page, is := errors.AsType[*rpc.Page](err); is {
		return page.Status == http.StatusBadGateway || rpc.Classify(err) == rpc.Invalid
	}

	_, said := errors.AsType[*rpc.Error](err)

	return !said && !notSent(err) && !errors.Is(err, ErrWrongChain) && rpc.Classify(err) == rpc.Failed
}

// metRate reports whether a request was refused for its rate. A limit that is not named, of a request without
// a range, is one of the rate.
func metRate(c *rpc.Call) bool {
	kind := rpc.Classify(c.Err)
	return kind == rpc.RateLimited || kind == rpc.RangeTooLarge && !isLogs(c) && rpc.Vague(c.Err)
}

// fails keeps the books of a batch that failed as a whole.
func (n *Node) fails(ctx context.Context, b bounds, calls []*rpc.Call, err error, s sent) {
	size := len(calls)
	kind := rpc.Classify(err)
	switch {
	case kind == rpc.RateLimited:
		if size > 1 && strings.Contains(strings.ToLower(err.Error()), "batch") {
			n.batches.refused(2, 1) // BNB Chain's nodes say so to any eth_getLogs in a batch
		}

		// One that is larger than what is let through at once would be refused for ever.
		if size > 1 && !errors.Is(err, errUnexplained) {
			n.batches.refused(float64(size), float64(size/2))
		}

		n.blame(ctx, err, s.at)
		n.gate.refused(s, n.Pause(false))
	case kind == rpc.RangeTooLarge && slices.ContainsFunc(calls, (*rpc.Call).Streams) || kind == rpc.Behind ||
		kind == rpc.BatchRefused || n.mayBeRefused(calls, err):
	case kind == rpc.Pruned || kind == rpc.AddressRequired || kind == rpc.TooManyAddresses:
		n.worked(s.at, s.took) // it concerns what was asked for
	default:
		n.blame(ctx, err, s.at)
		streams := slices.ContainsFunc(calls, (*rpc.Call).Streams)
		if kind == rpc.TimedOut && !streams && n.gate.tooLate(s) { // of logs the range is made smaller
			n.batches.tooLate(float64(size))
		}

		fits := b.answered || n.takesBatch(len(calls)) && !streams
		if fits && broke(err) && !errors.Is(err, rpc.ErrAbandoned) { // some end the connection instead of a refusal
			n.gate.refused(s, n.Pause(false))
		}
	}
}

// Subscribe follows the node's head. It is for a node with WebSocket. A refusal in words, an
// *rpc.Error, leaves the node's health alone.
func (n *Node) Subscribe(ctx context.Context) (*rpc.Subscription, error) {
	q := &rpc.Call{Method: rpc.Subscribe, Params: `["newHeads"]`}
	err := n.Do(ctx, q)

	return q.Subscription, cmp.Or(err, q.Err)
}
