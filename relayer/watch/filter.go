package watch

import (
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// FilterMode says how logs are asked for.
type FilterMode string

const (
	// FilterAuto takes whatever costs less bytes and requests, by what was seen.
	FilterAuto FilterMode = "auto"
	// FilterTopics asks for every log under our topics, and matches addresses here: the cost is other contracts' logs.
	FilterTopics FilterMode = "topics"
	// FilterAddresses names the addresses: the cost is the list, in chunks below the provider's cap.
	FilterAddresses FilterMode = "addresses"
)

// Costs that FilterAuto weighs, in bytes. A log of one topic argument is about 600 bytes of JSON, an address in a filter is 45; one more
// request is worth what it costs in headers, in a provider's price (eth_getLogs is billed like some 75 small calls), and in latency.
const (
	bytesPerLog     = 600
	bytesPerAddress = 45
	bytesPerRequest = 4000
	// In address mode other contracts' logs are not seen, so every so many batches one is read by topics to look.
	probeEvery = 500
)

// Filters builds the filters of an instance. The slot watch sets its escrows; both watches read with Head at the head of the
// chain, so that they share one request a block.
type Filters struct {
	abi          *contract.ABI
	factory      common.Address
	mode         FilterMode
	maxAddresses int
	head         atomic.Pointer[source.Filter]
	ranged       *source.Filter // used by the slot watch only
	book         *book
	version      int
	heads, spans chooser
}

// NewFilters returns filters that ask by topics until the slot watch has loaded its escrows.
func NewFilters(abi *contract.ABI, factory common.Address, mode FilterMode, maxAddresses int) *Filters {
	f := &Filters{abi: abi, factory: factory, mode: mode, maxAddresses: maxAddresses}
	f.head.Store(&source.Filter{Topics: abi.Topics()})
	return f
}

// Factory is the filter of the factory watch below finality.
func (f *Filters) Factory() *source.Filter {
	return &source.Filter{Topics: f.abi.FactoryTopics(), Addresses: []common.Address{f.factory}}
}

// Head is the filter for single blocks at the head: our topics, of every contract or of the factory and the watched escrows.
func (f *Filters) Head() *source.Filter { return f.head.Load() }

// update fits the filters to the book. It is called by the goroutine of the slot watch.
func (f *Filters) update(b *book) {
	n := len(b.addresses)
	head, ranged := f.choose(&f.heads, n), f.choose(&f.spans, n)
	fresh := f.book != b || f.version != b.version
	f.book, f.version = b, b.version
	if current := f.head.Load(); (current.Addresses != nil) != head || head && fresh {
		next := &source.Filter{Topics: f.abi.Topics()}
		if head {
			next.Addresses = append(b.list(), f.factory)
		}
		f.head.Store(next)
	}
	if f.ranged == nil || (f.ranged.Addresses != nil) != ranged || ranged && fresh {
		f.ranged = &source.Filter{Topics: f.abi.EscrowTopics()}
		if ranged {
			f.ranged.Addresses = b.list()
		}
	}
}

func (f *Filters) choose(c *chooser, n int) (addresses bool) {
	switch {
	case f.mode == FilterTopics || n == 0:
		return false
	case f.mode == FilterAddresses:
		return true
	}
	return c.addresses(n, f.maxAddresses)
}

// chooser weighs addresses against topics for one kind of reading. The zero value knows nothing and goes by topics.
type chooser struct {
	foreign float64 // other contracts' logs a batch, a moving average
	seen    int     // batches read by topics
	blind   int     // batches read by addresses since the last look
	now     bool
}

// observe learns from a batch that was read by topics.
func (c *chooser) observe(foreign int) {
	c.seen++
	if c.seen == 1 {
		c.foreign = float64(foreign)
		return
	}
	c.foreign += (float64(foreign) - c.foreign) / 16
}

func (c *chooser) addresses(n, maxPerRequest int) bool {
	if c.seen == 0 {
		return false
	}
	if c.now {
		if c.blind++; c.blind > probeEvery {
			c.blind, c.now = 0, false
			return false
		}
	}
	requests := (n + maxPerRequest - 1) / max(maxPerRequest, 1)
	byAddress := float64(n*bytesPerAddress + (requests-1)*bytesPerRequest)
	byTopic := c.foreign * bytesPerLog
	if c.now {
		c.now = byAddress < byTopic*1.2 // do not change for a trifle
	} else {
		c.now = byAddress*1.2 < byTopic
	}
	return c.now
}
