package watch

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// An escrow that joins in a reading by topics is in the filter of the other kind of reading, which names addresses.
func TestAJoiningEscrowIsInBothFilters(t *testing.T) {
	for _, ranged := range []bool{false, true} {
		abi, err := contract.New("", "")
		require.NoError(t, err)
		f := NewFilters(abi, registry.NewFollowed(), FilterAuto, 1000)
		w := &SlotWatch{births: true}
		w.cfg.Filters, w.cfg.ABI, w.book = f, abi, newBook()
		w.book.add(registry.Late{Address: common.Address{1}})
		named := &f.heads
		if ranged {
			named = &f.ranges
		}

		*named = noise{logs: 10, due: time.Now().Add(time.Hour)} // that kind has seen much noise; the other has not looked
		f.update(w.book)
		byTopics, other := f.ranged, func() *chain.Filter { return f.Head() }
		seen := &f.ranges
		if ranged {
			byTopics, other, seen = f.Head(), func() *chain.Filter { return f.ranged }, &f.heads
		}

		require.Nil(t, byTopics.Addresses)
		require.NotNil(t, other().Addresses)

		x := common.Address{2}
		g := newSlotGathering(w, 100, seen)
		g.join(t.Context(), &chain.Batch{From: 5, To: 5, Filter: byTopics},
			[]registry.Late{{Address: x, Block: 5, Monitored: 4}}, nil,
			[]contract.Event{{Name: contract.Created, Escrow: x}})
		require.True(t, w.book.has(x))

		f.update(w.book)
		require.Contains(t, other().Addresses, x)
	}
}
