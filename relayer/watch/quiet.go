package watch

import (
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// quietPause is how often a watch commits while nothing happens, whatever the block time is.
const quietPause = 2 * time.Second

// quiet has quiet blocks wait for the block behind them: they are stored with the first one that has
// a log, or when the last commit is quietPause ago. So a chain with four blocks per second costs each
// watch a transaction every two seconds while nothing happens, instead of four per second.
//
// What waits is not kept: the next reading begins at the cursor and gives it again, from the source's
// memory and of the branch that is the chain's then. It belongs to the goroutine of its watch.
type quiet struct {
	stored time.Time // when the last commit ended
	left   bool      // the last reading left blocks waiting
	read   uint64    // the highest quiet block that was read
}

// isQuiet says whether a batch is one block, read by its hash, that has no log under the filter. By
// topics it has then none of any escrow and none of the factory; by addresses none of the factory
// and of the escrows that were named.
func isQuiet(b *source.Batch) bool { return b.Parent != (common.Hash{}) && len(b.Logs) == 0 }

// again says whether a batch is a quiet block that was read before, and notes it: it teaches nothing new.
func (q *quiet) again(b *source.Batch) bool {
	if !isQuiet(b) {
		return false
	}

	before := q.read
	q.read = max(before, b.To)

	return b.To <= before
}

// waits says whether a group is to wait, in the middle of a reading or at its end. In the middle it
// waits for the rest, which has mostly been read before, so that one commit stores all that waited.
// The block behind finality does not wait: once it is final, it would be read a second time, by range.
func (q *quiet) waits(g *group, final int64, ended bool) bool {
	if !g.silent || g.batches >= enoughBlocks || g.from.Next <= final+1 {
		return false
	}

	return q.pause() > 0 || !ended && time.Since(g.since) < quietPause
}

// pause is how long quiet blocks may wait from now on.
func (q *quiet) pause() time.Duration { return quietPause - time.Since(q.stored) }
