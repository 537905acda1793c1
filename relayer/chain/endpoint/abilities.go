package endpoint

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// rememberedFor is how long what was found out about a node counts: providers change, machines
// behind a URL are mended, and the reason may have been another.
const rememberedFor = 10 * time.Minute

// lack is something that a node does not give, of a block and those below it: headers, logs. It is believed after so
// many answers in a row that say so: behind one URL one machine may keep less than others, or be far behind. It is
// remembered for a while, and for twice as long with each time that the node says so again, up to rememberedFor. Said
// again so often that it cannot be in passing, it is for good: of blocks below the lowest that the node has given it
// of. Its methods may be called concurrently.
type lack struct {
	now   func() time.Time
	sure  int           // answers that are believed
	first time.Duration // for which it is remembered at first

	mu    sync.Mutex
	below uint64    // it is of blocks below this one
	said  int       // so often, while it was not remembered
	until time.Time // for how long it is remembered
	gives uint64    // the lowest block that the node has given it of; MaxUint64: none
}

// newLack is of a node that has said nothing yet.
func newLack(sure int, first time.Duration, now func() time.Time) *lack {
	return &lack{now: now, sure: sure, first: first, gives: math.MaxUint64}
}

// What may be in passing is remembered for lostFirst at first. Said lostForGood times more, it lasts over a minute.
const lostFirst, lostForGood = 5 * time.Second, 4

// note notes that the node does not give it, of a block. It reports whether that is believed.
func (l *lack) note(block uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if block >= l.gives { // what was said before was of older blocks: this is in passing, or new
		l.said, l.until, l.gives = 0, time.Time{}, math.MaxUint64
	}

	l.below = max(l.below, block+1)
	if now.Before(l.until) { // what was asked for together is one answer
		return true
	}

	if l.said++; l.said < l.sure {
		return false
	}

	l.until = now.Add(min(l.first<<min(l.said-l.sure, 10), rememberedFor))

	return true
}

// gave notes that the node has given it, of a block: what was said of that was one machine's word.
func (l *lack) gave(block uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gives = min(l.gives, block)
	if block < l.below {
		l.below, l.said, l.until = 0, 0, time.Time{}
	}
}

// given reports whether the node has given it, of a block or an older one.
func (l *lack) given(block uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return block >= l.gives
}

// doubted reports whether the node has said of any block that it does not give it, and has not given that since.
func (l *lack) doubted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.below > 0
}

// holds reports whether the node does not give it, of a block, as far as is remembered.
func (l *lack) holds(block uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return block < l.below && l.now().Before(l.until)
}

// forGood reports whether the node never gives it, of a block.
func (l *lack) forGood(block uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return block < l.below && l.said >= l.sure+lostForGood
}

// abilities is what a node gives, as its answers have shown. Each of them stands for itself.
type abilities struct {
	oldHeaders  *lack
	oldLogs     *lack
	unnamed     *lack  // logs of contracts that are not named
	anyLogs     *lack  // logs of a single block, whichever
	byHash      *lack  // logs of a block that is named by its hash
	allReceipts *lack  // those of a block in one answer
	addresses   *limit // per request
}

// nullsBelieved is how often in a row a node says that an old block, or its logs, are not there, or refuses the logs of
// a block, to be believed.
const nullsBelieved = 3

func newAbilities(addresses int, now func() time.Time) abilities {
	return abilities{
		oldHeaders:  newLack(nullsBelieved, lostFirst, now),
		oldLogs:     newLack(nullsBelieved, lostFirst, now),
		unnamed:     newLack(1, lostFirst, now),
		anyLogs:     newLack(nullsBelieved, lostFirst, now),
		byHash:      newLack(1, rememberedFor, now),
		allReceipts: newLack(1, rememberedFor, now),
		addresses:   newLimit(addressesAtOnce, float64(addresses), float64(addresses), now),
	}
}

// refuses reports whether the node has shown that it does not serve such a reading.
func (n *Node) refuses(from uint64, f *Filter) error {
	switch {
	case f.Addresses == nil && n.gives.unnamed.holds(0):
		return ErrAddressRequired
	case n.gives.oldHeaders.holds(from) || n.gives.oldLogs.holds(from):
		return fmt.Errorf("%w: it does not go back to block %d", ErrNoHistory, from)
	}

	return nil
}

// Lost reports whether the node has shown that it does not keep a block, and whether that is for good.
func (n *Node) Lost(block uint64) (lost, forGood bool) {
	forGood = n.gives.oldHeaders.forGood(block)
	return forGood || n.gives.oldHeaders.holds(block), forGood
}

// where is the part of eth_getLogs' parameter that names a block.
func (n *Node) where(h rpc.Header) string {
	if n.gives.byHash.holds(0) {
		return blockRange(h.Number, h.Number)
	}

	return `"blockHash":"` + h.Hash.Hex() + `"`
}

func blockRange(from, to uint64) string {
	return `"fromBlock":"` + rpc.Quantity(from) + `","toBlock":"` + rpc.Quantity(to) + `"`
}
