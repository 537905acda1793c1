package watch

import (
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// book is the set of escrows that a slot watch looks for. It belongs to the goroutine of the watch.
type book struct {
	addresses *addressSet
	ended     map[common.Address]int64 // block of the release or refund, for those that wait for it to be final
	version   int                      // raised by each change of the set
}

// loadBook reads the escrows of some slots that a cursor vouches for.
func loadBook(ctx context.Context, db registry.DB, chainID int64, slots []int16, final int64) (*book, error) {
	n, err := registry.Count(ctx, db, chainID, slots)
	if err != nil {
		return nil, err
	}

	b := newBook(n)
	err = registry.Load(ctx, db, chainID, slots, final, func(a common.Address, endedBlock int64) {
		b.addresses.add(a)
		if endedBlock > 0 {
			b.ended[a] = endedBlock
		}
	})

	return b, err
}

// newBook makes one for so many escrows; it may get more.
func newBook(escrows int) *book {
	return &book{addresses: newAddressSet(escrows), ended: map[common.Address]int64{}}
}

func (b *book) has(a common.Address) bool { return b.addresses.has(a) }

func (b *book) add(a common.Address) {
	if b.addresses.add(a) {
		b.version++
	}
}

// end notes that an escrow has ended: it leaves the book once that block is final.
func (b *book) end(a common.Address, block int64) { b.ended[a] = block }

// forget drops escrows whose ending is final: they will never emit again.
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
	return slices.AppendSeq(make([]common.Address, 0, b.addresses.len()), b.addresses.all())
}
