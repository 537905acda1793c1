package watch

import (
	"cmp"
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// book is the set of escrows that a slot watch follows. It belongs to the goroutine of the watch.
type book struct {
	addresses *addressSet              // each marked with the index of its factory
	factories []common.Address         // that have deployed them
	ended     map[common.Address]int64 // block of the release or refund, until it is final
	// new ones, by block: each joins with the batch of its deployment: its request names it
	waiting []registry.Late
	version int // raised by each change of the requested addresses
}

// loadBook reads the escrows of some slots that a cursor covers.
func loadBook(ctx context.Context, db registry.DB, chainID int64, slots []int16, final int64) (*book, error) {
	n, err := registry.Count(ctx, db, chainID, slots)
	if err != nil {
		return nil, err
	}

	b := newBook(n)
	err = registry.Load(ctx, db, chainID, slots, final, func(a, factory common.Address, endedBlock int64) {
		b.addresses.add(a, b.index(factory))
		if endedBlock > 0 {
			b.ended[a] = endedBlock
		}
	})

	return b, err
}

// newBook creates a book with room for so many escrows.
func newBook(escrows int) *book {
	return &book{addresses: newAddressSet(escrows), ended: map[common.Address]int64{}}
}

func (b *book) has(a common.Address) bool { return b.addresses.has(a) }

func (b *book) add(l registry.Late) {
	if b.addresses.add(l.Address, b.index(l.Factory)) {
		b.version++
	}

	if l.Ended > 0 {
		b.end(l.Address, l.Ended)
	}
}

// index is the place of a factory in the book's list.
func (b *book) index(factory common.Address) uint8 {
	i := slices.Index(b.factories, factory)
	if i < 0 {
		i, b.factories = len(b.factories), append(b.factories, factory)
	}

	return uint8(i)
}

// factory is the factory that has deployed an escrow of the book.
func (b *book) factory(escrow common.Address) common.Address {
	return b.factories[b.addresses.mark(escrow)]
}

// await replaces the waiting escrows.
func (b *book) await(late []registry.Late) {
	slices.SortStableFunc(late, func(x, y registry.Late) int { return cmp.Compare(x.Block, y.Block) })
	if !slices.Equal(b.waiting, late) {
		b.waiting = late
		b.version++
	}
}

// due are the waiting escrows that are deployed up to a block.
func (b *book) due(block int64) []registry.Late {
	n, _ := slices.BinarySearchFunc(b.waiting, block+1, func(l registry.Late, block int64) int {
		return cmp.Compare(l.Block, block)
	})

	return b.waiting[:n:n]
}

// join adds the first n waiting escrows.
func (b *book) join(n int) {
	for _, l := range b.waiting[:n] {
		b.addresses.add(l.Address, b.index(l.Factory))
	}

	b.waiting = b.waiting[n:]
}

// end records that an escrow has ended: it leaves the book once that block is final.
func (b *book) end(a common.Address, block int64) { b.ended[a] = block }

// forget drops escrows with a final ending: they emit no more events.
func (b *book) forget(final int64) {
	for a, block := range b.ended {
		if block <= final {
			delete(b.ended, a)
			b.addresses.remove(a)
			b.version++
		}
	}
}

func (b *book) list() []common.Address {
	list := slices.AppendSeq(make([]common.Address, 0, b.addresses.len()+len(b.waiting)), b.addresses.all())
	for _, l := range b.waiting {
		list = append(list, l.Address)
	}

	return list
}
