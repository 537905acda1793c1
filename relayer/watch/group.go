package watch

import (
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// Limits of one commit. A reading of final blocks brings some 1,500 events at a time, a reading
// block by block one block.
const (
	enoughEvents  = 2048
	enoughBatches = 128
)

// group is what one commit stores: consecutive batches, and their events. Everything but since and
// read changes with each batch; it belongs to the goroutine of its watch.
type group struct {
	blocks
	events []contract.Event
	late   []common.Address // escrows deployed in these blocks that become late
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

// add appends a batch, with the times when the wait for it began and when it came. The first batch
// begins at a position.
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

// gathered implements stage.
func (g *group) gathered() (some, enough bool) {
	return g.batches > 0, len(g.events) >= enoughEvents || g.batches >= enoughBatches
}

// isQuiet reports whether a batch is one block, read by its hash, without a log under the filter.
// By topics it then has no log of any escrow or of the factory; by addresses none of the factory
// and of the named escrows.
func isQuiet(b *chain.Batch) bool { return b.ByHash && len(b.Logs) == 0 }

// quietPause is the pause between commits of quiet blocks, at any block time.
const quietPause = 2 * time.Second

// quiet delays quiet blocks until the next block with a log, or until quietPause after the last
// commit. So on an idle chain with four blocks per second each watch costs one transaction every
// two seconds instead of four per second.
//
// Waiting blocks are dropped: the next reading begins at the cursor and returns them again, from
// the source's memory and of the branch that is current then. It belongs to the goroutine of its
// watch.
type quiet struct {
	stored time.Time // when the last commit ended
	left   bool      // the last reading left blocks waiting
	read   uint64    // the highest quiet block that was read
}

// again reports whether a batch is a quiet block that was read before, and records it: it teaches
// nothing new.
func (q *quiet) again(b *chain.Batch) bool {
	if !isQuiet(b) {
		return false
	}

	before := q.read
	q.read = max(before, b.To)

	return b.To <= before
}

// waits reports whether gathered blocks should wait, during a reading or at its end. During it they
// wait for the rest, which has mostly been read before, so that one commit stores all of them. The
// block after finality does not wait: once final, it would be read a second time, by range.
func (q *quiet) waits(b *blocks, final int64, ended bool) bool {
	if !b.silent || b.batches >= enoughBatches || b.from.Next <= final+1 {
		return false
	}

	return q.pause() > 0 || !ended && time.Since(b.since) < quietPause
}

// pause is how long quiet blocks may still wait.
func (q *quiet) pause() time.Duration { return quietPause - time.Since(q.stored) }
