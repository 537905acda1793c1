// Package node is one endpoint of the chain: its connection, what it can do, whether it is in use,
// and readings that are validated. It knows of no other endpoint.
//
// A node is a provider's many machines behind one URL: two answers, even of one batch, may come from
// machines that have different heads. So nothing is concluded from one answer about another, only
// from what an answer itself proves: logs carry their block's hash.
//
//	Do ── allowance (rate) ── batches ── rpc.Client        every request
//	        └── health: states and transitions of health.go
//	ReadRange ── span (blocks per request, at a time) ── Do     logs of final blocks
//	ReadBlock, ReadWhole ── Do                                  logs of one block, by its hash
//
// What a node's refusals teach is kept here and obeyed by everything that asks it: requests per
// second (allowance), blocks per request and requests at a time (span), requests per batch,
// addresses per request, how far back it goes, and that it wants addresses named.
package node

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

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

var (
	// ErrWrongChain means that an endpoint serves another chain than CHAIN_ID.
	ErrWrongChain = errors.New("wrong chain")
	// ErrDisagree means that nodes, or two answers of one, contradict each other about a block: most
	// often the chain moved while it was being read. Asking again later decides.
	ErrDisagree = errors.New("nodes disagree about the block")
	// ErrNoHistory means that a node keeps nothing of a block that is so old. An archive node does.
	ErrNoHistory = errors.New("history is not available")
	// ErrAddressRequired means that a node gives logs only of contracts that are named.
	ErrAddressRequired = errors.New("it gives logs of named contracts only: set LOG_FILTER=addresses")
	// errUnfit means that a node refuses eth_getLogs altogether.
	errUnfit = errors.New("it refuses the logs of any block: use another endpoint")
)

const (
	// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
	callsPerBatch = 50
	// What was found out about a node counts for so long: providers change, machines behind a URL are
	// mended, and the reason may have been another.
	rememberedFor = 10 * time.Minute
	// quickTimeout is of requests with small answers. A connection that swallows them is found out by it.
	quickTimeout = 5 * time.Second
	// smallAnswer and blockAnswer bound answers, in bytes: headers, and the logs of a single block,
	// which cannot be asked for in parts.
	smallAnswer, blockAnswer = 8 << 20, 128 << 20
)

// Config of a Node. All fields are required but MaxRPS, Client and Dial.
type Config struct {
	Name         string // as operators see it, without secrets
	URL          string
	Client       rpc.Client // nil: one of URL
	Dial         rpc.Dial   // nil: the network
	ChainID      uint64
	Timeout      time.Duration // of one request
	MaxRPS       float64       // requests per second; 0: no limit of ours
	MaxRange     uint64        // blocks per request
	MaxAddresses int           // per request
	MaxBytes     int64         // of one answer with the logs of a range
	Log          *slog.Logger
	Secrets      *redact.Secrets
	Metrics      *Metrics
	Rand         func() float64 // in [0,1), for jitter
	Now          func() time.Time
}

// Node is one endpoint. Its methods may be called concurrently.
type Node struct {
	cfg       Config
	client    rpc.Client
	ws        *rpc.WS // client, where it is one
	allowance *allowance
	span      *span

	mu           sync.Mutex
	health       health
	proven       bool // chain id checked since it was last out of use; WebSockets check each connection
	head         rpc.Header
	safe, final  uint64
	tagged       time.Time // when safe and final were asked for
	latency      time.Duration
	batch        int       // requests per batch
	batchWorks   int       // a batch of so many was answered: one of as many is not refused for its size
	batchLowered time.Time // when it was last found to be too large
	chunk        int       // addresses per request
	named        bool      // it wants addresses named
	byNumber     bool      // it does not take a block's hash for logs
	oldest       uint64    // it has thrown away what is below, as it showed at
	oldestSeen   time.Time
	keeps        uint64 // it has shown that it has this block, at
	keepsSeen    time.Time
	uneven       time.Time // when it was last seen not to have what it had told of
}

// New returns a node and connects to nothing.
func New(cfg Config) *Node {
	n := &Node{cfg: cfg, allowance: newAllowance(cfg.MaxRPS, cfg.Now), span: newSpan(cfg.MaxRange), batch: callsPerBatch,
		chunk: cfg.MaxAddresses}
	n.health.state = Untried
	switch {
	case cfg.Client != nil:
		n.client = cfg.Client
	case strings.HasPrefix(strings.ToLower(cfg.URL), "ws"):
		n.ws = rpc.NewWS(cfg.URL, cfg.Dial, n.prove)
		n.client = n.ws
	default:
		n.client = rpc.NewHTTP(cfg.URL, cfg.Dial)
	}

	return n
}

// Name of the node, as operators see it.
func (n *Node) Name() string { return n.cfg.Name }

// WebSocket says whether the node can announce blocks.
func (n *Node) WebSocket() bool { return n.ws != nil }

// Close ends its connections. The next request opens new ones.
func (n *Node) Close() { n.client.Close() }

// prove checks that the node serves the configured chain.
func (n *Node) prove(ctx context.Context, ask func(context.Context, *rpc.Call) error) error {
	q := &rpc.Call{Method: rpc.ChainID, Params: "[]"}
	if err := ask(ctx, q); err != nil {
		return err
	}

	var id hexutil.Uint64
	if err := q.Decode(&id); err != nil {
		return err
	}

	if uint64(id) != n.cfg.ChainID {
		return fmt.Errorf("%w: %s serves chain %d, CHAIN_ID is %d: correct one of them", ErrWrongChain, n.cfg.Name,
			uint64(id), n.cfg.ChainID)
	}

	return nil
}

// Do sends calls with small answers. The error is about all of them; each call has its own besides.
func (n *Node) Do(ctx context.Context, calls ...*rpc.Call) error {
	return n.send(ctx, min(n.cfg.Timeout, quickTimeout), smallAnswer, calls)
}

// send sends calls in as large batches as the node takes, after it has proven to serve the right chain.
func (n *Node) send(ctx context.Context, timeout time.Duration, limit int64, calls []*rpc.Call) error {
	n.mu.Lock()
	proven := n.proven || n.ws != nil
	n.mu.Unlock()
	if !proven {
		err := n.prove(ctx, func(ctx context.Context, q *rpc.Call) error {
			return n.attempt(ctx, timeout, smallAnswer, []*rpc.Call{q})
		})
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, ErrWrongChain) {
				n.Blame(ctx, err)
			}

			return err
		}

		n.mu.Lock()
		n.proven = true
		n.mu.Unlock()
	}

	for left := calls; len(left) > 0; {
		some := left[:min(len(left), n.batchSize())]
		err := n.attempt(ctx, timeout, limit, some)
		open := n.unanswered(some, err)
		if len(some) > 1 && len(open) > 0 && ctx.Err() == nil {
			// It may be that the batch was too large: one of its requests, sent alone, decides.
			if err = n.attempt(ctx, timeout, limit, open[:1]); err == nil && open[0].Err == nil {
				n.lowerBatch(len(some), len(some)-len(open))
				left = slices.Concat(open[1:], left[len(some):])
				continue
			}
		}

		if err != nil {
			return err
		}

		left = left[len(some):]
	}

	return nil
}

// answeredBatch notes that a batch was answered.
func (n *Node) answeredBatch(size int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.batchWorks = max(n.batchWorks, size)
}

// unanswered are the calls of a batch that the endpoint may have refused for being a batch.
func (n *Node) unanswered(calls []*rpc.Call, err error) []*rpc.Call {
	n.mu.Lock()
	works := len(calls) <= n.batchWorks
	n.mu.Unlock()
	if err != nil && !errors.Is(err, rpc.ErrUnanswered) {
		if rpc.Classify(err) == rpc.BatchRefused || !works && rpc.MayBeBatch(err) {
			return calls
		}

		return nil
	}

	var open []*rpc.Call
	failures := 0
	for _, c := range calls {
		switch rpc.Classify(c.Err) {
		case rpc.BatchRefused:
			open = append(open, c)
			failures++
		case rpc.Failed, rpc.Unsupported:
			failures++
		}
	}

	if len(open) == 0 && failures == len(calls) && !works {
		return calls
	}

	return open
}

func (n *Node) batchSize() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.batch < callsPerBatch && !n.lately(n.batchLowered) {
		n.batch = min(2*n.batch, callsPerBatch)
		n.batchLowered = n.cfg.Now()
	}

	return n.batch
}

// lowerBatch takes in that of so many requests of a batch only some were answered.
func (n *Node) lowerBatch(size, answered int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if answered == 0 {
		answered = size / 2
	}

	n.batch, n.batchLowered, n.batchWorks = max(min(n.batch, answered), 1), n.cfg.Now(), 0
}

// shrinkBatch takes in that a batch was refused for its rate: one that is larger than what the node
// lets through at once would be refused for ever.
func (n *Node) shrinkBatch(size int) {
	const small = 4 // no burst is smaller, and the logs of a range stay with their header
	n.mu.Lock()
	defer n.mu.Unlock()
	if size > small {
		n.batch, n.batchLowered = min(n.batch, max(size/2, small)), n.cfg.Now()
	}
}

// attempt sends one batch and keeps the books: rate, metrics, health. The failure of a batch that
// may be one of batches does not count against the node: its requests are sent alone next.
func (n *Node) attempt(ctx context.Context, timeout time.Duration, limit int64, calls []*rpc.Call) error {
	if err := n.allowance.take(ctx, len(calls)); err != nil {
		return err
	}

	for _, c := range calls {
		c.Result, c.Err = nil, nil
	}

	asked := n.cfg.Now()
	limited, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%w: %s waited %s for %s (RPC timeout)", rpc.ErrSlow, n.cfg.Name, timeout, calls[0].Method))
	defer cancel()
	traffic, err := n.client.Exchange(limited, calls, limit)
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	took := n.cfg.Now().Sub(asked)
	err = n.cfg.Secrets.Error(err)
	for _, c := range calls {
		c.Err = n.cfg.Secrets.Error(c.Err)
	}

	n.cfg.Metrics.exchanged(n.cfg.Name, calls, err, traffic, took)

	return n.judge(ctx, calls, err, asked, took)
}

// judge keeps the books of an exchange and returns its error, which a request's rate limit is too.
func (n *Node) judge(ctx context.Context, calls []*rpc.Call, err error, asked time.Time, took time.Duration) error {
	partial := errors.Is(err, rpc.ErrUnanswered)
	if err == nil || partial {
		for _, c := range calls {
			if rpc.Classify(c.Err) == rpc.RateLimited {
				err, partial = c.Err, false
				break
			}
		}
	}

	kind := rpc.Classify(err)
	n.mu.Lock()
	works := len(calls) <= n.batchWorks
	n.mu.Unlock()
	switch {
	case err == nil || partial:
		n.worked(asked, took, len(calls))
		if err == nil && !slices.ContainsFunc(calls, func(c *rpc.Call) bool { return c.Err != nil }) {
			n.answeredBatch(len(calls))
		}
	case kind == rpc.RateLimited:
		if len(calls) > 1 && strings.Contains(strings.ToLower(err.Error()), "batch") {
			// BNB Chain's nodes say so to any eth_getLogs in a batch
			n.lowerBatch(2, 0)
		}

		n.shrinkBatch(len(calls))
		n.allowance.refused(asked)
		n.span.narrow()
		n.blame(ctx, err, asked)
	case kind == rpc.RangeTooLarge || kind == rpc.Behind || kind == rpc.BatchRefused || len(calls) > 1 && !works &&
		rpc.MayBeBatch(err):
	case kind == rpc.Pruned || kind == rpc.AddressRequired || kind == rpc.TooManyAddresses:
		// it concerns what was asked for
		n.worked(asked, took, 0)
	default:
		if rpc.Overloaded(err) {
			n.allowance.refused(asked)
		}

		n.blame(ctx, err, asked)
	}

	return err
}

// worked notes an answer.
func (n *Node) worked(asked time.Time, took time.Duration, requests int) {
	n.allowance.answered(requests)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.latency == 0 {
		n.latency = took
	}

	n.latency += (took - n.latency) / 8
	was := n.health.state
	if n.health.works(asked, n.cfg.Now()) {
		n.changed(was, nil)
	}
}

// Proves notes that logs from the node stood all tests, which were asked for at that time.
func (n *Node) proves(asked time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.health.state
	if n.health.proves(asked) {
		n.changed(was, nil)
	}
}

// Blame notes an error that speaks against the node, and pauses it.
func (n *Node) Blame(ctx context.Context, err error) {
	n.blame(ctx, n.cfg.Secrets.Error(err), time.Time{})
}

func (n *Node) blame(ctx context.Context, err error, asked time.Time) {
	if ctx.Err() != nil {
		return
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	was, before := n.health.state, n.health.err
	news := before == nil || rpc.Classify(before) != rpc.Classify(err) || n.health.failures == 0
	changed := n.health.fails(err, asked, n.cfg.Now(), n.jitter)
	if n.health.state == Suspect || n.health.state == OnProbation {
		if rpc.Classify(err) == rpc.Invalid {
			n.cfg.Metrics.disagreements.WithLabelValues(n.cfg.Name).Inc()
		}
	}

	if !n.health.state.Up() {
		n.proven = false
	}

	if changed || news {
		n.changed(was, err)
	}
}

// changed tells operators of a change of state, or of a new reason. Held: mu.
func (n *Node) changed(was State, err error) {
	n.cfg.Metrics.state(n.cfg.Name, n.health.state)
	attrs := []any{slog.String("endpoint", n.cfg.Name), slog.String("state", string(n.health.state)),
		slog.String("was", string(was))}
	switch {
	case err != nil:
		n.cfg.Log.Warn("endpoint not working", append(attrs, slog.Any("err", err))...)
	case !was.Up():
		n.cfg.Log.Info("endpoint is up", attrs...)
	default:
		n.cfg.Log.Debug("endpoint changed", attrs...)
	}
}

func (n *Node) jitter(pause time.Duration) time.Duration {
	return time.Duration(n.cfg.Rand() * float64(pause) / 4)
}

// Serves says whether the node can be counted on: it is in use, has not answered wrongly lately,
// and may be asked at once or soon.
func (n *Node) Serves() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.cfg.Now()

	return n.health.state.Up() && !now.Before(n.health.avoid) && n.health.resume.Sub(now) <= LongestWait
}

// Doubtful says whether the node has answered wrongly and not been heard to tell the truth since.
func (n *Node) Doubtful() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.Now().Before(n.health.avoid)
}

// Pause says how long the node is not to be asked, given whether another one serves.
func (n *Node) Pause(served bool) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	until := n.health.resume
	if served && n.health.avoid.After(until) {
		until = n.health.avoid
	}

	return until.Sub(n.cfg.Now())
}

// Retire takes the node out of use that was used for want of a better one: what it says of the head counts no longer.
func (n *Node) Retire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if was := n.health.state; n.health.retire(n.cfg.Now()) {
		n.changed(was, nil)
	}
}

// Claim is what a node says of the chain.
type Claim struct {
	Up          bool
	Head        rpc.Header // zero: it has not said yet
	Safe, Final uint64     // zero: it does not know
	Tagged      time.Time  // when it was asked for those
}

// Claim returns what the node last said of the chain.
func (n *Node) Claim() Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Claim{n.health.state.Up(), n.head, n.safe, n.final, n.tagged}
}

// Claims notes the node's head. One that is lower than the last is of a machine that is behind, or
// of a reorganisation.
func (n *Node) Claims(h rpc.Header) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.Number < n.head.Number {
		n.uneven = n.cfg.Now()
	}

	n.head = h
}

// Uneven says whether machines that are not equally far have lately been seen behind the node's URL:
// any of its answers about the newest blocks may then be of one that does not have them.
func (n *Node) Uneven() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lately(n.uneven)
}

// SeenUneven notes that one answer of the node lacked a block that another had.
func (n *Node) SeenUneven() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.uneven = n.cfg.Now()
}

// Has says whether the node may have a block: by its head, and as far as it has not shown that it threw it away.
func (n *Node) Has(block uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.head.Number >= block && !n.lost(block)
}

// lost says whether the node has shown that it does not keep a block. Held: mu.
func (n *Node) lost(block uint64) bool {
	return block < n.oldest && n.lately(n.oldestSeen)
}

// lately says whether what was found out about the node at t still counts.
func (n *Node) lately(t time.Time) bool { return n.cfg.Now().Sub(t) < rememberedFor }

// Lacks notes that the node does not have a block, as its error err says. A block that is more than
// far blocks below its head is no matter of lag: a node that has the block below its head has
// thrown it away (ErrNoHistory), and one that has not has invented its head.
func (n *Node) Lacks(ctx context.Context, block, far uint64, err error) error {
	head := n.Claim().Head.Number
	if head >= block {
		n.SeenUneven()
	}

	if head < block+far {
		return err
	}

	if _, missing := n.Header(ctx, head-1); errors.Is(missing, rpc.ErrBehind) {
		return fmt.Errorf("%w: it told of block %d and has neither block %d nor block %d", rpc.ErrInvalid,
			head, head-1, block)
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	n.oldest, n.oldestSeen = max(n.oldest, block+1), n.cfg.Now()

	return fmt.Errorf("%w: it told of block %d and does not have block %d", ErrNoHistory, head, block)
}

// Span is how many blocks the node is asked for at once, where such logs are wanted.
func (n *Node) Span(f *Filter) uint64 { return n.span.now(kindOf(f)) }

// Status is what an operator sees of a node.
type Status struct {
	Name      string
	State     State
	Up        bool
	Head      uint64
	Latency   time.Duration // moving average of a request
	LastError string        // redacted; may be older than the last success; empty: there was none
}

// Status of the node.
func (n *Node) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := Status{Name: n.cfg.Name, State: n.health.state, Up: n.health.state.Up(), Head: n.head.Number, Latency: n.latency}
	if n.health.err != nil {
		st.LastError = n.health.err.Error()
	}

	return st
}

// Tags notes what the node says is final and safe; zero: it does not know.
func (n *Node) Tags(final, safe uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.final, n.safe, n.tagged = final, safe, n.cfg.Now()
}

// Subscribe follows the node's head. It is for a node with WebSocket. A refusal in words, an
// *rpc.Error, does not speak against the node.
func (n *Node) Subscribe(ctx context.Context) (*rpc.Subscription, error) {
	if err := n.allowance.take(ctx, 1); err != nil {
		return nil, err
	}

	asked := n.cfg.Now()
	limited, cancel := context.WithTimeoutCause(ctx, n.cfg.Timeout,
		fmt.Errorf("%w: %s waited %s for %s (RPC timeout)", rpc.ErrSlow, n.cfg.Name, n.cfg.Timeout, rpc.Subscribe))
	defer cancel()
	sub, err := n.ws.Subscribe(limited)
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}

	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	err = n.cfg.Secrets.Error(err)
	took := n.cfg.Now().Sub(asked)
	n.cfg.Metrics.exchanged(n.cfg.Name, []*rpc.Call{{Method: rpc.Subscribe}}, err, rpc.Traffic{}, took)
	if _, said := errors.AsType[*rpc.Error](err); said && rpc.Classify(err) != rpc.RateLimited {
		return nil, err
	}

	if err != nil {
		n.blame(ctx, err, asked)
		return nil, err
	}

	n.worked(asked, took, 1)

	return sub, nil
}
