package chain

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// reader reads what the pool's endpoints have, up to what the outlook allows.
type reader struct {
	pool    *pool
	outlook *outlook
	ring    *ring
	memo    *memo
	laws    *endpoint.Laws
	proof   string // Config.Proof
	flight  flight
	// The newest block that was asked for its logs did not prove them: two endpoints said the same, or one was believed.
	unproved atomic.Bool
	headers  *semaphore.Weighted // whoever has it may ask for headers that the ring lacks
}

// Read reads the logs of blocks from..to in order: by range up to View.Final, several ranges in
// flight, and above it block by block, by hash, each the parent of the next. It ends after the
// first error; what was yielded before stands.
func (r *reader) Read(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return r.read(ctx, from, to, f, nil)
}

// Later marks readings under a context as such that can wait: what is read at once goes before them.
func Later(ctx context.Context) context.Context { return rpc.Later(ctx) }

// ReadOther reads the blocks of a batch again, from another endpoint than the batch is from. It fails
// while no other can be used or gives the reading, rather than ask the same one twice, which would say nothing. Only
// where no other is configured that ever gives it, the same one is asked.
func (r *reader) ReadOther(ctx context.Context, b Batch) iter.Seq2[Batch, error] {
	return r.read(ctx, b.From, b.To, b.Filter, b.By)
}

func (r *reader) read(ctx context.Context, from, to uint64, f *Filter, avoid *endpoint.Node) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if !slices.ContainsFunc(r.pool.nodes, func(n *endpoint.Node) bool { return n != avoid && !n.Never(from, f) }) {
			avoid = nil
		}

		if last := r.byRange(to); from <= last && !r.oneByOne(ctx, from, to, avoid) {
			if !r.ranges(ctx, from, last, f, avoid, yield) {
				return
			}

			from = last + 1
		}

		if from <= to {
			r.blocks(ctx, from, to, f, avoid, yield)
		}
	}
}

// oneByOne reports whether blocks are read one by one although they are final, since that proves them: what
// a reader that keeps up reads for the first time.
func (r *reader) oneByOne(ctx context.Context, from, to uint64, avoid *endpoint.Node) bool {
	news := avoid == nil && !rpc.IsLater(ctx) && to-from < r.outlook.atLeast(leapBlocks, leapTime)
	return r.proof == ProveWhole || news && r.laws.Headers.Holds()
}

// byRange is the last block up to to that may be read by range: a final one. The logs of a range
// prove nothing of the blocks that a machine behind a URL may lack still, and there are chains that
// call those final: they are read one by one.
func (r *reader) byRange(to uint64) uint64 {
	v := r.outlook.View()
	return min(to, v.Final, v.Head-min(v.Head, r.outlook.farBehind()))
}

// ranges yields from..to in ranges, each behind the one before. It reports whether the reader wants more.
func (r *reader) ranges(ctx context.Context, from, to uint64, f *Filter, avoid *endpoint.Node,
	yield func(Batch, error) bool) bool {
	var planned []uint64 // the last blocks of the ranges in flight
	next := func() (func(context.Context) (Batch, error), bool) {
		if from > to {
			return nil, false
		}

		first := from
		last := first + min(to-first, r.plan(first, f, avoid)-1)
		from, planned = last+1, append(planned, last)

		return func(ctx context.Context) (Batch, error) {
			return r.readRange(ctx, first, last, f, avoid)
		}, true
	}

	var before Batch

	return pipeline(ctx, r.flight.width, next, func(b Batch, err error) bool {
		last := planned[0]
		planned = planned[1:]
		for {
			if err == nil {
				b, err = r.following(ctx, &before, b, last, avoid)
			}

			if !yield(b, err) || err != nil {
				return false
			}

			if before = b; b.To == last {
				return true
			}

			// the endpoint was asked for fewer: the others are read as they are taken
			b, err = r.readRange(ctx, b.To+1, last, f, avoid)
		}
	})
}

// sameBranchTries is how often a range is read that is not of the branch of the one before.
const sameBranchTries = 6

// following returns a range that follows the one before, which a machine on another branch may
// have answered: it is read again, up to its planned end, until it does.
func (r *reader) following(ctx context.Context, before *Batch, b Batch, last uint64,
	avoid *endpoint.Node) (Batch, error) {
	for tries := 1; !b.Follows(before.Last.Hash); tries++ {
		if tries == sameBranchTries {
			return Batch{}, fmt.Errorf("%w: blocks %d to %d do not follow block %s", ErrDisagree, b.From, b.To,
				before.Last.Hash)
		}

		var err error
		if b, err = r.readRange(ctx, b.From, last, b.Filter, avoid); err != nil {
			return b, err
		}
	}

	return b, nil
}

// readRange reads a range, or the first blocks of it, and proves what Config.Proof wants proved. What is read a second
// time is compared by its reader, and proved where it differs.
func (r *reader) readRange(ctx context.Context, from, to uint64, f *Filter, avoid *endpoint.Node) (b Batch,
	err error) {
	err = r.pool.ask(ctx, from, avoid, func(ctx context.Context, n *endpoint.Node) (err error) {
		b, err = n.ReadRange(ctx, from, to, f)
		return err
	})
	r.flight.landed(endpoint.SizeOf(b.Logs), err)
	if err != nil {
		return Batch{}, fmt.Errorf("read blocks %d to %d: %w", from, to, err)
	}

	if avoid != nil {
		return b, nil
	}

	return r.proveEvents(ctx, b)
}

// plan is how many blocks to ask for: as many as the endpoint that is likely to be asked answers for.
func (r *reader) plan(n uint64, f *Filter, avoid *endpoint.Node) uint64 {
	list, _ := r.pool.order(n, avoid)
	if len(list) == 0 {
		list = r.pool.nodes
	}

	return list[0].Span(f)
}
