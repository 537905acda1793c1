package faults

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Mode is a way to misbehave.
type Mode string

// The modes.
const (
	Down Mode = "down" // connections are refused or end without a word
	Slow Mode = "slow" // every answer takes Fault.Delay
	// HTTP 429, with Retry-After if Fault.Delay is set; over WebSocket the error that providers send
	// instead
	Limited   Mode = "limited"
	Failing   Mode = "failing"   // HTTP 500 to 504
	Truncated Mode = "truncated" // the first half of the answer
	Malformed Mode = "malformed" // an answer that is not JSON
	HTML      Mode = "html"      // a page for people, with status 200
	Range     Mode = "range"     // more than Fault.N blocks at once are refused, in a provider's words
	Results   Mode = "results"   // more than Fault.N logs at once are refused, in a provider's words
	Behind    Mode = "behind"    // the newest Fault.N blocks do not exist: null for headers, [] for logs
	Omit      Mode = "omit"      // of the logs, one in Fault.N (zero: 3) is left out, always the same ones
	Foreign   Mode = "foreign"   // logs that nobody asked for are added
	Chain     Mode = "chain"     // eth_chainId is Fault.N
	Silent    Mode = "silent"    // a WebSocket stays open and nothing comes out of it; HTTP is not affected
	Refused   Mode = "refused"   // requests of Fault.Method, or all, get an error that says Fault.Words
	Pruned    Mode = "pruned"    // blocks below Fault.N, and their logs, are gone, and the node says so
	Forgotten Mode = "forgotten" // the same without a word: null for headers, [] for logs
	Standing  Mode = "standing"  // the tags safe and finalized stay at block N
	Tagged    Mode = "tagged"    // its safe and finalized block is the one Fault.N below the newest
	// It does not know the method Fault.Words, or, with a block tag behind it, that tag there; by the error code -N, or
	// -32601.
	Without   Mode = "without"
	Stateless Mode = "stateless" // the state of blocks below Fault.N is gone, and the node says so
	// Each error of the node is an internal one, -32603, that says Fault.Words, as Hardhat's and Ganache's of a revert.
	Reworded Mode = "reworded"
	// Results are what Fault.Rewrite makes of them.
	Rewritten Mode = "rewritten"
	// Behind, but decided for each item of a batch: a gateway that splits batches over its backends.
	Split Mode = "split"
	// A gateway some of whose backends stand still on a branch that the chain has left: Fault.Branch, from
	// block Fault.N on.
	Stayed Mode = "stayed"
	Batch  Mode = "batch" // batches of more than Fault.N items are refused as geth does it: one error, for the first id
	// No more than Fault.N items per second, twice as many at once: else as Limited, or under the status Fault.Status.
	Rate Mode = "rate"
	// The same item by item: those of a batch that are beyond it get an error that says Fault.Words.
	RateEach Mode = "rate-each"

	// Lies about the chain, of a node that means to deceive: internal/faults/hostile.go.

	Invented  Mode = "invented"  // Fault.Logs are added to those of their blocks, under the true hashes
	Bits      Mode = "bits"      // the same, and their bits are in the block's bloom filter, under its true hash
	Changed   Mode = "changed"   // the last byte of each log's data from block Fault.N on is another, in receipts too
	Blank     Mode = "blank"     // headers from block Fault.N on have an empty bloom filter, under their true hashes
	Own       Mode = "own"       // from block Fault.N on a valid chain of its own: tail.go
	Receipts  Mode = "receipts"  // Fault.Logs are in the receipts of their blocks as well
	Hidden    Mode = "hidden"    // block Fault.N is not there
	Repeated  Mode = "repeated"  // the hash of block Fault.N is that of the block three below it
	Unindexed Mode = "unindexed" // logs of blocks below Fault.N are [], while their headers are there
	Miscount  Mode = "miscount"  // eth_getTransactionCount of a contract is one more
	Odd       Mode = "odd"       // receipts of blocks from Fault.N on are of a type that nobody knows
	Withheld  Mode = "withheld"  // every second log of blocks from Fault.N on is left out, of their receipts too

	// Of a WebSocket only; HTTP is not affected.
	Deaf    Mode = "deaf"    // what is behind it is gone: it answers pings, and nothing else
	Mute    Mode = "mute"    // its subscriptions are silent, requests are answered
	Closing Mode = "closing" // it is closed when it has been open for Fault.Delay

	// Of eth_sendRawTransaction only, and there of those transactions that Fault.Of says, or all.
	SendLost      Mode = "send-lost"      // it is carried out, and the connection ends without an answer
	SendForgotten Mode = "send-forgotten" // it is answered as if it were carried out, and nobody hears of it
	SendRefused   Mode = "send-refused"   // an error that says Fault.Words
	SendHangs     Mode = "send-hangs"     // it is taken, and neither passed on nor answered
)

// Fault is a mode with its particulars.
type Fault struct {
	Mode  Mode
	Delay time.Duration
	N     uint64
	// of the requests that are hit, at random; zero: all. Of Down to HTML, Slow, Behind, Split and Stayed
	// (a gateway with unequal backends), and of those of eth_sendRawTransaction.
	Share  float64
	Status int    // HTTP
	Words  string // of a refusal; empty: a provider's, at random
	Method string
	Of     func(raw []byte) bool
	Branch []common.Hash
	Logs   []types.Log // of Invented, Bits and Receipts; with block number and hash; of Own, of each block
	Ahead  int         // of Own: its newest block is so many above the newest of the node behind
	// Of Rewritten. The result is JSON, before and after.
	Rewrite func(method, result string) string
}

// Injected is a fault in force.
type Injected struct {
	Fault
	hits    atomic.Int64
	removed chan struct{}
	remove  func()

	mu     sync.Mutex
	tokens float64 // of Rate and RateEach, as of filled
	filled time.Time
	tail   tail
}

// take reports whether a node with an allowance of Fault.N items per second answers so many now.
func (i *Injected) take(items int) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	now, burst := time.Now(), 2*float64(i.N)
	if i.filled.IsZero() {
		i.tokens = burst
	} else {
		i.tokens = min(burst, i.tokens+now.Sub(i.filled).Seconds()*float64(i.N))
	}

	i.filled = now
	if float64(items) > i.tokens {
		return false
	}

	i.tokens -= float64(items)

	return true
}

// Remove ends the fault. What it is delaying goes on at once.
func (i *Injected) Remove() { i.remove() }

// Hits is how many answers the fault has changed or prevented.
func (i *Injected) Hits() int { return int(i.hits.Load()) }

type faults struct {
	mu      sync.Mutex
	list    []*Injected
	changed chan struct{} // closed and renewed at each change
}

func (f *faults) inject(fault Fault) *Injected {
	i := &Injected{Fault: fault, removed: make(chan struct{})}
	i.remove = sync.OnceFunc(func() {
		f.change(func() { f.list = slices.DeleteFunc(f.list, func(o *Injected) bool { return o == i }) })
		close(i.removed)
	})
	f.change(func() { f.list = append(f.list, i) })

	return i
}

func (f *faults) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// active returns the faults in force, the oldest first, and a channel that is closed when that changes.
func (f *faults) active() ([]*Injected, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list), f.changed
}

func find(list []*Injected, modes ...Mode) *Injected {
	for _, i := range list {
		if slices.Contains(modes, i.Mode) {
			return i
		}
	}

	return nil
}
