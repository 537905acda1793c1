package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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
	// FilterAuto requests by topics, unless others emit so much under them that naming addresses costs less, or
	// no endpoint answers otherwise.
	FilterAuto FilterMode = "auto"
	// FilterTopics requests every log under our topics and matches addresses here: the cost is other contracts' logs.
	FilterTopics FilterMode = "topics"
	// FilterAddresses names the addresses: the cost is the list, in chunks below the provider's cap.
	FilterAddresses FilterMode = "addresses"
)

// contractsPerLog is how many contracts can be named for the cost of one log of another contract:
// an address in a filter is 45 bytes of JSON, a log of one topic argument about 500.
const contractsPerLog = 10

// By addresses other contracts' logs are invisible, so now and then a few blocks are read by topics
// to count them. They are few, since on the wrong chain a range by topics costs as much as hundreds
// by addresses.
const (
	lookEvery  = 10 * time.Minute
	lookBlocks = 10
)

// namedFor is how long FilterAuto names addresses after every endpoint has refused logs by topics.
// Each endpoint remembers that it needs addresses, so trying again costs one request at most, and a
// recovered endpoint that accepts topics is soon used so.
const namedFor = time.Minute

// Filters builds the filters of an instance. The slot watch sets its escrows; both watches read
// with Head at the head of the chain, so that they share one request per block.
//
// Head, Factory, FactoryHead and Refused may be called from any goroutine. ranged, book, version,
// heads and ranges belong to the goroutine of the slot watch: update changes the first three, so
// that both filters fit the book in that version.
type Filters struct {
	abi        *contract.ABI
	followed   *registry.Followed
	mode       FilterMode
	oneRequest int // contracts that one request names
	head       atomic.Pointer[chain.Filter]
	ranged     *chain.Filter // for ranges of final blocks
	book       *book
	version    int

	heads, ranges noise // of what is read with either filter

	now   func() time.Time
	named atomic.Pointer[time.Time] // until when FilterAuto names addresses, at any cost; nil: never so far
}

// NewFilters returns filters by topics, until the slot watch has loaded its escrows. One request
// names maxAddresses contracts at most.
func NewFilters(abi *contract.ABI, followed *registry.Followed, mode FilterMode, maxAddresses int) *Filters {
	f := &Filters{abi: abi, followed: followed, mode: mode, oneRequest: maxAddresses, now: time.Now}
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
	if head == nil {
		return false
	}

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
	n := len(b.escrows)
	head, ranged := n <= f.most(&f.heads), n <= f.most(&f.ranges)
	fresh := f.book != b || f.version != b.version
	f.book, f.version = b, b.version
	current := f.head.Load()
	f.head.Store(fitted(current, f.abi.Topics(), head, fresh || !f.complete(current), b, f.followed.Addresses()...))
	f.ranged = fitted(f.ranged, f.abi.Topics(), ranged, fresh || !f.complete(f.ranged), b, f.followed.Addresses()...)
}

// fitted is a filter for the book, and the factories, by addresses or by topics: the current one if it still
// fits.
func fitted(current *chain.Filter, topics []common.Hash, addresses, fresh bool, b *book,
	factories ...common.Address) *chain.Filter {
	if current != nil && (current.Addresses != nil) == addresses && (!addresses || !fresh) {
		return current
	}

	next := &chain.Filter{Topics: topics}
	if addresses {
		next.Addresses = slices.AppendSeq(make([]common.Address, 0, len(b.escrows)+len(factories)), maps.Keys(b.escrows))
		next.Addresses = append(next.Addresses, factories...)
	}

	return next
}

// Again chooses how logs are requested for the second reading, of all slots: it belongs to the
// goroutine of the verifier.
type Again struct {
	*Filters
	noise noise
}

// Again returns a chooser for one verifier.
func (f *Filters) Again() *Again { return &Again{Filters: f} }

// Most is the number of contracts up to which naming them is cheaper than topics; see most.
func (a *Again) Most() int { return a.most(&a.noise) }

// Learn records a batch, with so many logs of other contracts.
func (a *Again) Learn(b *chain.Batch, foreign int) { a.learn(&a.noise, b, foreign) }

// noise is how much others emit under our topics, as one kind of reading has last seen it.
type noise struct {
	logs int       // in the last batch that was read by topics
	due  time.Time // when they are counted again; zero: now
}

// topicsOnly is below every number of contracts, also none.
const topicsOnly = -1

// most is the number of contracts up to which they are named: it is topicsOnly where none are, and while
// others' logs are to be counted.
func (f *Filters) most(n *noise) int {
	switch {
	case f.byAddresses():
		return math.MaxInt32
	case f.mode == FilterTopics || n.logs == 0 || !f.now().Before(n.due):
		return topicsOnly
	}

	return n.logs * contractsPerLog
}

// learn records a batch of one kind of reading, with so many logs of other contracts.
func (f *Filters) learn(n *noise, b *chain.Batch, foreign int) {
	if b.Filter.Addresses == nil {
		n.logs, n.due = foreign, f.now().Add(lookEvery)
	}
}

// limit is how many blocks to read before choosing again; zero: any number, until turned reports
// true.
func (f *Filters) limit(n *noise) int64 {
	if f.mode != FilterAuto || len(f.book.escrows) == 0 || f.mustName() || f.now().Before(n.due) {
		return 0
	}

	return lookBlocks
}

// turned reports, between two batches, whether the choice would differ now.
func (f *Filters) turned(n *noise, filter *chain.Filter) bool {
	return (len(f.book.escrows) <= f.most(n)) != (filter.Addresses != nil)
}
