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
	escrows   map[common.Address]uint16 // the index of the factory of each: 30 to 55 bytes per escrow
	factories []common.Address
	ended     map[common.Address]int64 // block of the release or refund, until it is final
	// ahead are the escrows whose deployments the cursor, moved back, is to meet again, by block
	ahead   []registry.Loaded
	version int // raised by each change of the requested addresses
}

// loadBook reads the escrows of some slots that a cursor covers, at the block next.
func loadBook(ctx context.Context, db registry.DB, chainID int64, slots []int16, next, final int64) (*book, error) {
	b := newBook()
	err := registry.Load(ctx, db, chainID, slots, next, final, func(l registry.Loaded) {
		if l.Block >= next {
			b.ahead = append(b.ahead, l)
			return
		}

		b.escrows[l.Address] = b.index(l.Factory)
		if l.Ended > 0 {
			b.ended[l.Address] = l.Ended
		}
	})
	slices.SortFunc(b.ahead, func(x, y registry.Loaded) int { return cmp.Compare(x.Block, y.Block) })

	return b, err
}

func newBook() *book {
	return &book{escrows: map[common.Address]uint16{}, ended: map[common.Address]int64{}}
}

func (b *book) has(a common.Address) bool {
	_, follows := b.escrows[a]
	return follows
}

func (b *book) add(l registry.Late) {
	if !b.has(l.Address) {
		b.escrows[l.Address] = b.index(l.Factory)
		b.version++
	}

	if l.Ended > 0 {
		b.end(l.Address, l.Ended)
	}
}

// index is the place of a factory in the book's list.
func (b *book) index(factory common.Address) uint16 {
	i := slices.Index(b.factories, factory)
	if i < 0 {
		i, b.factories = len(b.factories), append(b.factories, factory)
	}

	return uint16(i)
}

// factory is the factory that has deployed an escrow of the book.
func (b *book) factory(escrow common.Address) common.Address {
	return b.factories[b.escrows[escrow]]
}

// aheadIn are the deployments of some blocks that are registered already.
func (b *book) aheadIn(from, to uint64) []registry.Loaded {
	at := func(block int64) int {
		n, _ := slices.BinarySearchFunc(b.ahead, block, func(l registry.Loaded, block int64) int {
			return cmp.Compare(l.Block, block)
		})

		return n
	}

	return b.ahead[at(int64(from)):at(int64(to)+1)]
}

// end records that an escrow has ended: it leaves the book once that block is final.
func (b *book) end(a common.Address, block int64) { b.ended[a] = block }

// forget drops escrows with a final ending: they emit no more events.
func (b *book) forget(final int64) {
	for a, block := range b.ended {
		if block <= final {
			delete(b.ended, a)
			delete(b.escrows, a)
			b.version++
		}
	}
}
