// Package endpoint is one endpoint of the chain: its connection, what it can do, whether it is in use,
// and readings that are validated. It knows of no other endpoint.
//
// A node is a provider's many machines behind one URL: two answers, even of one batch, may come from
// machines that have different heads. So nothing is concluded from one answer about another, only
// from what an answer itself proves: logs carry their block's hash.
//
//	ReadRange ── span ─────────► send       logs of final blocks
//	ReadBlock ─────────────────► send       logs of one block, by its receipts
//	Do ────────────────────────► send       everything else
//	                              ├── gate, batches ──► rpc.Client
//	                              └── health: states and transitions
//
// What a node's refusals teach is kept here and kept to by everything that asks it, each a limit of the same kind:
// requests per second and batches at a time, both behind one gate, requests per batch (batches), blocks per request
// (span), addresses per request; and what it does not give (abilities).
package endpoint

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// Node is one endpoint. Its methods may be called concurrently.
type Node struct {
	cfg     *Config
	client  rpc.Client
	gate    *gate
	batches *limit // requests of one
	span    *span
	gives   abilities
	proven  atomic.Bool         // the chain id was checked since the node was last out of use
	late    atomic.Bool         // logs were, and have not been answered since
	slow    atomic.Bool         // logs take longer than quickTimeout
	offers  *semaphore.Weighted // transactions on their way

	mu     sync.Mutex
	health health
	claim  Claim     // but Of, Up and Serves
	moved  time.Time // when its head last rose, or StandsStill said that it had not
}

// New returns a node and connects to nothing.
func New(cfg Config) *Node {
	if cfg.Large == nil {
		cfg.Large = semaphore.NewWeighted(1)
	}

	n := &Node{cfg: &cfg, gate: newGate(cfg.MaxRPS, cfg.Now), span: newSpan(cfg.MaxRange, cfg.Now),
		batches: newLimit(callsAtOnce, callsPerBatch, callsPerBatch, cfg.Now),
		gives:   newAbilities(cfg.MaxAddresses, cfg.Now), offers: semaphore.NewWeighted(mostOffers),
		health: health{state: Untried, heard: map[State]*logging.Repeats{}}}
	if n.client = rpc.NewHTTP(cfg.URL, cfg.Dial); cfg.webSocket() {
		n.client = rpc.NewWS(cfg.URL, cfg.Dial, n.checkChain)
	}

	return n
}

// Claim is what a node says of the chain.
type Claim struct {
	Of          *Node
	Up, Serves  bool
	Head        rpc.Header // zero: it has not said yet
	Heard, Rose time.Time  // when it last told of its head, and of one above the one before
	Safe, Final rpc.Header // zero: it does not know
	Tagged      time.Time  // when it was asked for those
}

// Claim returns what the node last said of the chain.
func (n *Node) Claim() Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claim
	c.Of, c.Up, c.Serves = n, n.health.state.Up(), n.serves()

	return c
}

// Claims notes the node's head. One that is lower than the last is of a machine that is behind, or
// of a reorganisation.
func (n *Node) Claims(h rpc.Header) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.cfg.Now()
	if h.Number > n.claim.Head.Number {
		n.moved, n.claim.Rose = now, now
	}

	n.claim.Head, n.claim.Heard = h, now
}

// StandsStill says, once per patience, whether the head has not risen for so long. Zero: it never does.
func (n *Node) StandsStill(patience time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.cfg.Now()
	if patience == 0 || n.moved.IsZero() || now.Sub(n.moved) < patience {
		return false
	}

	n.moved = now

	return true
}

// Tags notes what the node says is final and safe; zero: it does not know.
func (n *Node) Tags(final, safe rpc.Header) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claim.Final, n.claim.Safe, n.claim.Tagged = final, safe, n.cfg.Now()
}

// Has reports whether the node may have a block and its logs: by its head, and unless it has shown that it threw it
// away, or gives no logs.
func (n *Node) Has(block uint64) bool {
	return n.Claim().Head.Number >= block && !n.gives.oldHeaders.holds(block) && !n.gives.oldLogs.holds(block) &&
		!n.gives.anyLogs.holds(0)
}
