package watch

import (
	"time"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// What one commit takes together. A reading of final blocks brings some 1,500 events at a time, a
// reading block by block one block.
const (
	enoughEvents  = 2048
	enoughBatches = 128
)

// group is what one commit stores: consecutive batches, and what they brought. Everything but since
// and read changes with each batch; it belongs to the goroutine of its watch.
type group struct {
	blocks
	events  []contract.Event
	joining []registry.Late // escrows that join the book with these blocks
}

// blocks are consecutive batches.
type blocks struct {
	from, to ledger.Position
	inside   []ledger.Block // the last block of each batch but the newest
	time     uint64         // of the last block
	batches  int
	logs     int
	silent   bool      // each of them is quiet
	since    time.Time // when the wait for the first batch began
	read     time.Time // when it came
}

// add puts a batch behind those that are there, which was waited for since one moment and came at
// another. The first begins at a position.
func (b *blocks) add(at ledger.Position, batch *chain.Batch, since, read time.Time) {
	if b.batches == 0 {
		b.from, b.since, b.read, b.silent = at, since, read, true
	} else {
		b.inside = append(b.inside, ledger.Block{Number: b.to.Next - 1, Hash: b.to.Hash})
	}

	b.to, b.time = b.from.To(int64(batch.To)+1, batch.Last.Hash), batch.Last.Time
	b.batches++
	b.logs += len(batch.Logs)
	b.silent = b.silent && isQuiet(batch)
}

// gathered is what a stage says of it.
func (g *group) gathered() (some, enough bool) {
	return g.batches > 0, len(g.events)+len(g.joining) >= enoughEvents || g.batches >= enoughBatches
}

// isQuiet says whether a batch is one block, read by its hash, that has no log under the filter. By
// topics it has then none of any escrow and none of the factory; by addresses none of the factory
// and of the escrows that were named.
func isQuiet(b *chain.Batch) bool { return b.ByHash && len(b.Logs) == 0 }

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

// again says whether a batch is a quiet block that was read before, and notes it: it teaches nothing new.
func (q *quiet) again(b *chain.Batch) bool {
	if !isQuiet(b) {
		return false
	}

	before := q.read
	q.read = max(before, b.To)

	return b.To <= before
}

// waits says whether gathered blocks are to wait, in the middle of a reading or at its end. In the
// middle it waits for the rest, which has mostly been read before, so that one commit stores all
// that waited. The block behind finality does not wait: once it is final, it would be read a second
// time, by range.
func (q *quiet) waits(b *blocks, final int64, ended bool) bool {
	if !b.silent || b.batches >= enoughBatches || b.from.Next <= final+1 {
		return false
	}

	return q.pause() > 0 || !ended && time.Since(b.since) < quietPause
}

// pause is how long quiet blocks may wait from now on.
func (q *quiet) pause() time.Duration { return quietPause - time.Since(q.stored) }
