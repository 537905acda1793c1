package watch

import (
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// reading is a chain with a number of other contracts' logs a block, read in batches of a number of blocks.
type reading struct {
	f        *Filters
	foreign  int
	timeless bool // logs come without their block's time
	batch    int64
	topics   int64 // blocks read so
	named    int64
}

func newReading(t *testing.T, escrows, maxAddresses, requestPrice, foreign int, batch int64) *reading {
	abi, err := contract.New("", "")
	require.NoError(t, err)
	r := &reading{f: NewFilters(abi, registry.NewFollowed(), FilterAuto, maxAddresses, requestPrice),
		foreign: foreign, batch: batch}
	b := newBook(0)
	for i := range escrows {
		b.add(registry.Late{Address: common.Address{byte(i), byte(i >> 8), byte(i >> 16)}})
	}

	r.f.book = b

	return r
}

// read is a batch of so many blocks.
func (r *reading) read(filter *chain.Filter, blocks int64) *chain.Batch {
	b := &chain.Batch{From: 1, To: uint64(blocks), Filter: filter, Logs: make([]types.Log, r.foreign*int(blocks))}
	if r.timeless && r.foreign > 0 {
		b.Headers = int(blocks)
	}

	return b
}

// blocks reads on as SlotWatch.advance does, for so many.
func (r *reading) blocks(n int64) {
	for n > 0 {
		r.f.update(r.f.book)
		filter, left := r.f.ranged, n
		if limit := r.f.limit(&r.f.spans); limit > 0 {
			left = min(left, limit)
		}

		for left > 0 {
			size := min(left, r.batch)
			by := &r.topics
			if filter.Addresses != nil {
				by = &r.named
			}

			*by += size
			r.f.learn(&r.f.spans, r.read(filter, size), r.foreign*int(size))
			left, n = left-size, n-size
			if r.f.turned(&r.f.spans, filter) {
				break
			}
		}
	}
}

func TestAutoFilter(t *testing.T) {
	for _, c := range []struct {
		name                          string
		escrows, most, price, foreign int
		batch                         int64
		addresses                     bool
		whatever                      int64 // blocks read the other way, at most
	}{
		{"few escrows in much noise", 100, 1000, 4000, 200, 10, true, 1},
		{"in one backfill of large ranges", 100, 1000, 4000, 200, 1000, true, 1},
		{"many escrows, little noise", 10_000, 1000, 4000, 1, 10, false, 0},
		{"many escrows, but a list serves a large range", 10_000, 1000, 4000, 10, 1000, true, 1 + 4000},
		{"nothing of others", 10, 1000, 4000, 0, 1000, false, 0},
		{"a little noise", 100, 1000, 4000, 1, 10, false, 0},
		{"timeless: a little noise makes a header of each block necessary", 100, 1000, 4000, 1, 10, true, 1},
		{"timeless: headers are cheap", 100, 1000, 1, 1, 10, false, 0},
		{"dear requests", 1500, 100, 4000, 200, 1, false, 1},
		{"cheap requests", 1500, 100, 1, 200, 1, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReading(t, c.escrows, c.most, c.price, c.foreign, c.batch)
			r.timeless = strings.HasPrefix(c.name, "timeless: ")
			r.blocks(100 * c.batch)
			other := r.named
			if c.addresses {
				other = r.topics
			}

			require.LessOrEqual(t, other, c.whatever, "%d blocks by topics, %d by addresses", r.topics, r.named)
		})
	}
}

// Addresses hide what others do, so a few blocks are read by topics now and then; what has become
// quiet is read by topics again.
func TestAutoFilterLooks(t *testing.T) {
	r := newReading(t, 1000, 1000, 4000, 400, 1)
	r.blocks(10 * probeEvery)
	require.Greater(t, r.topics, int64(5*probeBlocks))
	require.LessOrEqual(t, r.topics, int64(11*probeBlocks))
	r.foreign = 0
	before := r.named
	r.blocks(20 * probeEvery)
	require.Less(t, r.named-before, int64(10*probeEvery), "it has noticed")
}
