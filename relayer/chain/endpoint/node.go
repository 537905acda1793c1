// Package endpoint is one endpoint of the chain: its connection, what it can do, whether it is in use,
// and readings that are validated. It knows of no other endpoint.
//
// A node is a provider's many machines behind one URL: two answers, even of one batch, may come from
// machines that have different heads. So nothing is concluded from one answer about another, only
// from what an answer itself proves: logs carry their block's hash.
//
//	ReadRange ── span ─────────► link       logs of final blocks
//	ReadBlock ─────────────────► link       logs of one block, by its receipts
//	Do ────────────────────────► link       everything else
//	                              ├── allowance, batches ──► rpc.Client
//	                              └── health: states and transitions
//
// What a node's refusals teach is kept here and kept to by everything that asks it: requests per
// second (pace) and at a time (width), both behind one gate (allowance), requests per batch (batches),
// blocks per request (span); and addresses per request, how far back it goes, and that it wants addresses
// named (abilities).
package endpoint

import (
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Node is one endpoint. Its methods may be called concurrently.
type Node struct {
	*link
	*abilities
	cfg  *Config
	span *span

	mu    sync.Mutex
	claim Claim     // but Of, Up and Serves
	moved time.Time // when its head last rose, or StandsStill said that it had not
}

// New returns a node and connects to nothing.
func New(cfg Config) *Node {
	if cfg.Large == nil {
		cfg.Large = semaphore.NewWeighted(1)
	}

	return &Node{cfg: &cfg, link: newLink(&cfg), abilities: newAbilities(cfg.MaxAddresses, cfg.Now),
		span: newSpan(cfg.MaxRange, cfg.Now)}
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
	c.Of, c.Up, c.Serves = n, n.status().Up, n.Serves()

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
	return n.Claim().Head.Number >= block && !n.oldHeaders.holds(block) && !n.oldLogs.holds(block) && !n.anyLogs.holds(0)
}

// Status of the node.
func (n *Node) Status() Status {
	st := n.status()
	st.Head = n.Claim().Head.Number

	return st
}
