package endpoint

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// rememberedFor is how long what was found out about a node counts: providers change, machines
// behind a URL are mended, and the reason may have been another.
const rememberedFor = 10 * time.Minute

// lately reports whether what was found out at t still counts.
func lately(t, now time.Time) bool { return now.Sub(t) < rememberedFor }

// fact is something that a node's answers have shown.
type fact struct {
	now func() time.Time
	at  atomic.Int64 // when last; zero: never
}

func (f *fact) note() { f.at.Store(f.now().UnixNano()) }

// holds reports whether that was lately.
func (f *fact) holds() bool {
	at := f.at.Load()
	return at != 0 && lately(time.Unix(0, at), f.now())
}

// abilities is what a node gives, as its answers have shown. Each of them stands for itself.
type abilities struct {
	now        func() time.Time
	named      fact        // it gives logs of named contracts only
	byNumber   fact        // it does not take a block's hash for logs
	noReceipts fact        // it does not know eth_getBlockReceipts
	receipts   atomic.Bool // it has given some
	blocks     atomic.Bool // it has given the logs of single ones
	addresses  *limit      // per request

	mu        sync.Mutex
	nulls     int       // answers in a row that an old block is not there
	oldest    uint64    // what is below it counts as thrown away
	lostUntil time.Time // and until when
	oldLogs   uint64    // it has shown logs of such a block; MaxUint64: of none
}

// Behind one URL one machine may keep less than the others, or be far behind them: that a block is
// gone is believed after nullsBelieved answers in a row, first for lostFirst, then for twice as long
// with each further one, up to rememberedFor.
const (
	nullsBelieved = 3
	lostFirst     = 5 * time.Second
)

func newAbilities(addresses int, now func() time.Time) *abilities {
	return &abilities{addresses: newLimit(addressesAtOnce, float64(addresses), float64(addresses), now), now: now,
		oldLogs: math.MaxUint64, named: fact{now: now},
		byNumber: fact{now: now}, noReceipts: fact{now: now}}
}

// refuses reports whether the node has shown that it does not serve such a reading.
func (a *abilities) refuses(from uint64, f *Filter) error {
	switch {
	case f.Addresses == nil && a.named.holds():
		return ErrAddressRequired
	case a.Lost(from):
		return fmt.Errorf("%w: it does not go back to block %d", ErrNoHistory, from)
	}

	return nil
}

// Lost reports whether the node has shown that it does not keep a block.
func (a *abilities) Lost(block uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return block < a.oldest && a.now().Before(a.lostUntil)
}

// lacks notes that the node said of an old block that it is not there. It reports whether that counts.
func (a *abilities) lacks(block uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nulls++; a.nulls < nullsBelieved {
		return false
	}

	a.oldest = max(a.oldest, block+1)
	a.lostUntil = a.now().Add(min(lostFirst<<min(a.nulls-nullsBelieved, 10), rememberedFor))

	return true
}

// has notes that the node gave a block, or its logs: what it said of older ones was one machine's word.
func (a *abilities) has(block uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if block < a.oldest || a.oldest == 0 {
		a.nulls, a.oldest = 0, 0
	}
}

// logged reports whether the node has shown logs that are as old as a block.
func (a *abilities) logged(block uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return block >= a.oldLogs
}

// gaveOld notes that the node has logs of a block.
func (a *abilities) gaveOld(block uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.oldLogs = min(a.oldLogs, block)
}

// where is the part of eth_getLogs' parameter that names a block.
func (a *abilities) where(h rpc.Header) string {
	if a.byNumber.holds() {
		return blockRange(h.Number, h.Number)
	}

	return `"blockHash":"` + h.Hash.Hex() + `"`
}

func blockRange(from, to uint64) string {
	return `"fromBlock":"` + rpc.Quantity(from) + `","toBlock":"` + rpc.Quantity(to) + `"`
}
