package chain

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// query is one reading of logs.
type query struct {
	filter *Filter
	avoid  *endpoint.Node // is not asked; nil: anybody is
	second bool           // its reader compares it, and has a proof decide: one endpoint's word will do
}

// Read reads the logs of blocks from..to in order: by range up to View.Final, several ranges in
// flight, and above it block by block, by hash, each the parent of the next. It ends after the
// first error; what was yielded before stands.
func (s *Source) Read(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return s.read(ctx, from, to, query{filter: f})
}

// Later marks readings under a context as such that can wait: what is read at once goes before them, and an endpoint
// has most of Config.Timeout to begin to answer.
func Later(ctx context.Context) context.Context { return endpoint.Later(ctx) }

// ReadOther reads the blocks of a batch a second time, from another endpoint than the batch is from (By; nil: from
// any). It fails while no other can be used or gives the reading, rather than ask the same one twice, which would say
// nothing. Only where no other is configured that ever gives it, the same one is asked.
func (s *Source) ReadOther(ctx context.Context, b Batch) iter.Seq2[Batch, error] {
	return s.read(ctx, b.From, b.To, query{b.Filter, b.By, true})
}

func (s *Source) read(ctx context.Context, from, to uint64, q query) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		q := q
		others := func(n *endpoint.Node) bool { return n != q.avoid && !n.Never(from, q.filter) }
		if !slices.ContainsFunc(s.nodes, others) {
			q.avoid = nil
		}

		if last := s.byRange(to); from <= last && !s.oneByOne(from, to, q) {
			if !s.ranges(ctx, from, last, q, yield) {
				return
			}

			from = last + 1
		}

		if from <= to {
			s.blocks(ctx, from, to, q, yield)
		}
	}
}

// oneByOne reports whether blocks are read one by one although they are final, since that proves them: what
// a reader that keeps up reads for the first time.
func (s *Source) oneByOne(from, to uint64, q query) bool {
	news := !q.second && to-from < s.outlook.atLeast(leapBlocks, leapTime)
	return s.cfg.Proof == ProveWhole || news && s.laws.Headers.Holds()
}

// byRange is the last block up to to that may be read by range: a final one. The logs of a range
// prove nothing of the blocks that a machine behind a URL may lack still, and there are chains that
// call those final: they are read one by one.
func (s *Source) byRange(to uint64) uint64 {
	v := s.outlook.View()
	return min(to, v.Final, v.Head-min(v.Head, s.outlook.farBehind()))
}

// ranges yields from..to in ranges, each behind the one before. It reports whether the reader wants more.
func (s *Source) ranges(ctx context.Context, from, to uint64, q query, yield func(Batch, error) bool) bool {
	var planned []uint64 // the last blocks of the ranges in flight
	next := func() (func(context.Context) (Batch, error), bool) {
		if from > to {
			return nil, false
		}

		first := from
		last := first + min(to-first, s.plan(first, q)-1)
		from, planned = last+1, append(planned, last)

		return func(ctx context.Context) (Batch, error) {
			return s.readRange(ctx, first, last, q)
		}, true
	}

	var before Batch

	return pipeline(ctx, s.flight.width, next, func(b Batch, err error) bool {
		last := planned[0]
		planned = planned[1:]
		for {
			if err == nil {
				b, err = s.following(ctx, &before, b, last, q)
			}

			if !yield(b, err) || err != nil {
				return false
			}

			if before = b; b.To == last {
				return true
			}

			// the endpoint was asked for fewer: the others are read as they are taken
			b, err = s.readRange(ctx, b.To+1, last, q)
		}
	})
}

// sameBranchTries is how often a range is read that is not of the branch of the one before.
const sameBranchTries = 6

// following returns a range that follows the one before, which a machine on another branch may
// have answered: it is read again, up to its planned end, until it does.
func (s *Source) following(ctx context.Context, before *Batch, b Batch, last uint64, q query) (Batch, error) {
	for tries := 1; !b.Follows(before.Last.Hash); tries++ {
		if tries == sameBranchTries {
			return Batch{}, fmt.Errorf("%w: blocks %d to %d do not follow block %s", ErrDisagree, b.From, b.To,
				before.Last.Hash)
		}

		var err error
		if b, err = s.readRange(ctx, b.From, last, q); err != nil {
			return b, err
		}
	}

	return b, nil
}

// readRange reads a range, or the first blocks of it, and proves what Config.Proof wants proved. What is read a second
// time is compared by its reader, and proved where it differs.
func (s *Source) readRange(ctx context.Context, from, to uint64, q query) (b Batch, err error) {
	err = s.ask(ctx, from, q.avoid, func(ctx context.Context, n *endpoint.Node) (err error) {
		b, err = n.ReadRange(ctx, from, to, q.filter)
		return err
	})
	s.flight.landed(endpoint.SizeOf(b.Logs), err)
	if err != nil {
		return Batch{}, fmt.Errorf("read blocks %d to %d: %w", from, to, err)
	}

	if q.second {
		return b, nil
	}

	return s.proveEvents(ctx, b)
}

// plan is how many blocks to ask for: as many as the endpoint that is likely to be asked answers for.
func (s *Source) plan(n uint64, q query) uint64 {
	list, _ := s.order(n, q.avoid)
	if len(list) == 0 {
		list = s.nodes
	}

	return list[0].Span(q.filter)
}
