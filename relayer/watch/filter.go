package watch

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// FilterMode is how logs are requested.
type FilterMode string

const (
	// FilterAuto chooses the mode with the lower cost in bytes and requests, by what was seen.
	FilterAuto FilterMode = "auto"
	// FilterTopics requests every log under our topics and matches addresses here: the cost is other contracts' logs.
	FilterTopics FilterMode = "topics"
	// FilterAddresses names the addresses: the cost is the list, in chunks below the provider's cap.
	FilterAddresses FilterMode = "addresses"
)

// Costs that FilterAuto compares, in bytes. A log of one topic argument is about 500 bytes of JSON,
// an address in a filter is 45; the cost of one more request is configured, and a header that a log
// requires, because the node omits its block's time, is one.
const (
	bytesPerLog     = 500
	bytesPerAddress = 45
	// By addresses other contracts' logs are invisible, so every so many batches a few blocks are
	// read by topics to measure them. They are few, and the first measurement is one block, since
	// on the wrong chain a range by topics costs as much as hundreds by addresses.
	probeEvery  = 500
	probeBlocks = 10
	// The usual number of blocks in a range. The first range shows the number of this provider.
	usualSpan = 10
)

// namedFor is how long FilterAuto names addresses after every endpoint has refused logs by topics.
// Each endpoint remembers that it needs addresses, so trying again costs no request, and a
// recovered endpoint that accepts topics is soon used so.
const namedFor = time.Minute

// Filters builds the filters of an instance. The slot watch sets its escrows; both watches read
// with Head at the head of the chain, so that they share one request per block.
//
// Head, Factory, FactoryHead and Refused may be called from any goroutine. ranged, book, version,
// heads and spans belong to the goroutine of the slot watch: update changes the first three, so
// that both filters fit the book in that version.
type Filters struct {
	abi          *contract.ABI
	followed     *registry.Followed
	mode         FilterMode
	maxAddresses int
	requestPrice int
	head         atomic.Pointer[chain.Filter]
	ranged       *chain.Filter // for ranges of final blocks
	book         *book
	version      int
	heads, spans chooser

	now   func() time.Time
	named atomic.Pointer[time.Time] // until when FilterAuto names addresses, at any cost; nil: never so far
}

// NewFilters returns filters by topics, until the slot watch has loaded its escrows. maxAddresses
// is the most that a request names; requestPrice is the cost of one more request, in bytes.
func NewFilters(abi *contract.ABI, followed *registry.Followed, mode FilterMode, maxAddresses,
	requestPrice int) *Filters {
	f := &Filters{abi: abi, followed: followed, mode: mode, maxAddresses: maxAddresses, requestPrice: requestPrice,
		spans: chooser{span: usualSpan}, now: time.Now}
	head := &chain.Filter{Topics: abi.Topics()}
	if mode == FilterAddresses { // some providers return logs only for named contracts
		head.Addresses = followed.Addresses()
	}

	f.head.Store(head)

	return f
}

// Factory is the filter of the factory watch below finality.
func (f *Filters) Factory() *chain.Filter {
	return &chain.Filter{Topics: f.abi.FactoryTopics(), Addresses: f.followed.Addresses()}
}

// Head is the filter for single blocks at the head: our topics, of every contract or of the factory
// and the followed escrows.
func (f *Filters) Head() *chain.Filter { return f.head.Load() }

// FactoryHead is the filter of the factory watch for single blocks: Head, unless that must name
// addresses and does so only later, or lacks a factory. Only the slot watch knows the addresses, and
// it may hold no slots.
func (f *Filters) FactoryHead() *chain.Filter {
	head := f.Head()
	if head.Addresses == nil && !f.mustName() || head.Addresses != nil && f.complete(head) {
		return head
	}

	return f.Factory()
}

// complete reports whether a filter by addresses has every factory; they come last.
func (f *Filters) complete(head *chain.Filter) bool {
	factories := f.followed.Addresses()
	from := len(head.Addresses) - len(factories)

	return from >= 0 && slices.Equal(head.Addresses[from:], factories)
}

// Refused handles the error of a reading with a filter. It reports whether to read again at once,
// because FilterAuto now names addresses.
func (f *Filters) Refused(ctx context.Context, filter *chain.Filter, err error, log *slog.Logger) bool {
	if f.mode != FilterAuto || filter.Addresses != nil || !errors.Is(err, chain.ErrAddressRequired) {
		return false
	}

	until := f.now().Add(namedFor)
	if f.named.Swap(&until) == nil {
		log.InfoContext(ctx, "no endpoint gives logs of contracts that are not named: LOG_FILTER=auto names them now",
			slog.Any("err", err))
	}

	return true
}

// byAddresses reports whether addresses are named at any cost.
func (f *Filters) byAddresses() bool { return f.mode == FilterAddresses || f.mustName() }

// mustName reports whether FilterAuto names addresses because every endpoint requires it.
func (f *Filters) mustName() bool {
	until := f.named.Load()
	return until != nil && f.now().Before(*until)
}

// update adapts the filters to the book. It is called by the goroutine of the slot watch.
func (f *Filters) update(b *book) {
	n := b.addresses.len()
	head, ranged := f.choose(&f.heads, n), f.choose(&f.spans, n)
	fresh := f.book != b || f.version != b.version
	f.book, f.version = b, b.version
	current := f.head.Load()
	f.head.Store(fitted(current, f.abi.Topics(), head, fresh || !f.complete(current), b, f.followed.Addresses()...))
	f.ranged = fitted(f.ranged, f.abi.EscrowTopics(), ranged, fresh, b)
}

// fitted is a filter for the book, and more, by addresses or by topics: the current one if it still
// fits.
func fitted(current *chain.Filter, topics []common.Hash, addresses, fresh bool, b *book,
	more ...common.Address) *chain.Filter {
	if current != nil && (current.Addresses != nil) == addresses && (!addresses || !fresh) {
		return current
	}

	next := &chain.Filter{Topics: topics}
	if addresses {
		next.Addresses = append(b.list(), more...)
	}

	return next
}

func (f *Filters) choose(c *chooser, n int) (addresses bool) {
	switch {
	case f.byAddresses():
		return true
	case f.mode == FilterTopics || n == 0:
		return false
	}

	return c.choose(n, f.maxAddresses, f.requestPrice)
}

// Again chooses how logs are requested for the second reading, of all slots: it belongs to the
// goroutine of the verifier.
type Again struct {
	*Filters
	c chooser
}

// Again returns a chooser for one verifier.
func (f *Filters) Again() *Again { return &Again{f, chooser{span: usualSpan}} }

// Most is the number of contracts up to which naming them is cheaper than topics.
func (a *Again) Most() int {
	switch {
	case a.byAddresses():
		return math.MaxInt32
	case a.mode == FilterTopics:
		return 0
	}

	if a.c.now && a.c.blind >= probeEvery {
		a.c.look = probeBlocks
	}

	if a.c.looking() {
		return 0
	}

	each := bytesPerAddress + float64(a.requestPrice)/float64(max(a.maxAddresses, 1))

	return int(a.c.byTopic() / each)
}

// Learn records a batch, with so many logs of other contracts.
func (a *Again) Learn(b *chain.Batch, foreign int) {
	if named := b.Filter.Addresses != nil; a.c.now != named {
		a.c.now, a.c.blind = named, 0
	}

	a.learn(&a.c, b, foreign)
}

// learn records a batch for one kind of reading, with so many logs of other contracts. They are
// charged for their share of the headers that the logs required.
func (f *Filters) learn(c *chooser, b *chain.Batch, foreign int) {
	headers := float64(b.Headers*foreign) / float64(max(len(b.Logs), 1))
	c.learn(b.Filter.Addresses != nil, int64(b.To-b.From)+1,
		float64(foreign*bytesPerLog)+headers*float64(f.requestPrice))
}

// limit is how many blocks to read before choosing again; zero: any number, until turned reports
// true.
func (f *Filters) limit(c *chooser) int64 {
	switch {
	case f.mode != FilterAuto || f.book.addresses.len() == 0 || f.mustName():
		return 0
	case c.seen == 0:
		return 1
	}

	return c.look
}

// turned reports, between two batches, whether the choice would differ now.
func (f *Filters) turned(c *chooser, filter *chain.Filter) bool {
	n := f.book.addresses.len()
	if f.mustName() {
		return filter.Addresses == nil
	}

	return f.mode == FilterAuto && n > 0 && c.wants(n, f.maxAddresses, f.requestPrice) != (filter.Addresses != nil)
}

// chooser compares addresses with topics for one kind of reading. The zero value starts with
// topics. learn updates the measurements (others, span, sized, seen), choose the current mode
// (now), and both what remains to be measured (blind, look). It belongs to one goroutine.
type chooser struct {
	others float64 // cost of other contracts' logs per block, in bytes, a moving average
	span   float64 // blocks per batch, a moving average; a guess until sized
	sized  bool
	seen   int   // batches read by topics
	blind  int   // batches read by addresses since the last look
	now    bool  // by addresses
	look   int64 // blocks still to be read by topics, at any cost
}

// learn records a batch: its mode, its number of blocks, and the cost of other contracts' logs in
// it, in bytes.
func (c *chooser) learn(addresses bool, blocks int64, others float64) {
	if !c.looking() { // a measurement is shorter than usual ranges
		if !c.sized {
			c.span, c.sized = float64(blocks), true
		}

		c.span += (float64(blocks) - c.span) / 16
	}

	if addresses {
		c.blind++
		return
	}

	each, weight := others/float64(max(blocks, 1)), 1./16
	switch {
	case c.seen == 0:
		weight = 1
	case c.look > 0: // there are few of them, so each counts
		weight = 1. / 4
	}

	c.others += (each - c.others) * weight
	c.seen++
	c.look = max(0, c.look-blocks)
}

// looking reports whether the next reading is a measurement.
func (c *chooser) looking() bool { return c.seen == 0 || c.look > 0 }

// wants is the choice that choose would make now.
func (c *chooser) wants(n, maxPerRequest, requestPrice int) bool {
	if c.looking() || c.now && c.blind >= probeEvery {
		return false
	}

	requests := (n + maxPerRequest - 1) / max(maxPerRequest, 1)
	byAddress := float64(n*bytesPerAddress + (requests-1)*requestPrice)
	byTopic := c.byTopic()
	if c.now { // hysteresis
		return byAddress < byTopic*1.2
	}

	return byAddress*1.2 < byTopic
}

// byTopic is the cost of other contracts' logs in a batch, in bytes.
func (c *chooser) byTopic() float64 { return c.others * max(c.span, 1) }

func (c *chooser) choose(n, maxPerRequest, requestPrice int) (addresses bool) {
	addresses = c.wants(n, maxPerRequest, requestPrice)
	if c.now && c.blind >= probeEvery {
		c.look = probeBlocks
	}

	if c.now != addresses {
		c.blind = 0
	}

	c.now = addresses

	return addresses
}
