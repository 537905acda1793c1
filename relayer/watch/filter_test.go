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

// reading is a chain with a number of other contracts' logs a block, read in batches of a number of blocks.
type reading struct {
	f       *Filters
	now     time.Time
	foreign int
	batch   int64
	topics  int64 // blocks read so
	named   int64
}

func newReading(t *testing.T, escrows, foreign int, batch int64) *reading {
	abi, err := contract.New("", "")
	require.NoError(t, err)
	r := &reading{f: NewFilters(abi, registry.NewFollowed(), FilterAuto, 1000), foreign: foreign, batch: batch}
	r.f.now = func() time.Time { return r.now }
	b := newBook()
	for i := range escrows {
		b.add(registry.Late{Address: common.Address{byte(i), byte(i >> 8), byte(i >> 16)}})
	}

	r.f.book = b

	return r
}

// blocks reads on as SlotWatch.advance does, for so many. A batch takes 12 seconds.
func (r *reading) blocks(n int64) {
	for n > 0 {
		r.f.update(r.f.book)
		filter, left := r.f.ranged, n
		if limit := r.f.limit(&r.f.ranges); limit > 0 {
			left = min(left, limit)
		}

		for left > 0 {
			size := min(left, r.batch)
			by := &r.topics
			if filter.Addresses != nil {
				by = &r.named
			}

			*by += size
			r.now = r.now.Add(12 * time.Second)
			r.f.learn(&r.f.ranges, &chain.Batch{Filter: filter}, r.foreign*int(size))
			left, n = left-size, n-size
			if r.f.turned(&r.f.ranges, filter) {
				break
			}
		}
	}
}

func TestAutoFilter(t *testing.T) {
	for _, c := range []struct {
		name             string
		escrows, foreign int
		batch            int64
		addresses        bool
		whatever         int64 // blocks read the other way, at most
	}{
		{"few escrows in much noise", 100, 200, 10, true, lookBlocks},
		{"in one backfill of large ranges", 100, 200, 1000, true, lookBlocks},
		{"many escrows, little noise", 10_000, 1, 10, false, 0},
		{"many escrows, but a list serves a large range", 10_000, 10, 1000, true, lookBlocks + 1000},
		{"nothing of others", 10, 0, 1000, false, 0},
		{"a little noise", 200, 1, 10, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReading(t, c.escrows, c.foreign, c.batch)
			r.blocks(40 * c.batch)
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
	r := newReading(t, 1000, 400, 1)
	const between = int64(lookEvery / (12 * time.Second))
	r.blocks(10 * between)
	require.Greater(t, r.topics, int64(5))
	require.LessOrEqual(t, r.topics, int64(11))
	r.foreign = 0
	before := r.named
	r.blocks(20 * between)
	require.LessOrEqual(t, r.named-before, between, "it has noticed")
}
