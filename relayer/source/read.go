package source

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/fusion-prime/escrow-relayer/relayer/node"
)

// Read reads the logs of blocks from..to in order: by range up to View.Final, several ranges in
// flight, and above it block by block, by hash, each the parent of the next. It ends after the
// first error; what was yielded before stands.
func (s *Source) Read(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return s.read(ctx, from, to, f, false)
}

// Later marks readings under a context as such that can wait: what is read at once goes before them
// where an endpoint limits its rate.
func Later(ctx context.Context) context.Context { return node.Later(ctx) }

// ReadOther is Read from another endpoint than last read the range, where there is one.
func (s *Source) ReadOther(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return s.read(ctx, from, to, f, true)
}

func (s *Source) read(ctx context.Context, from, to uint64, f *Filter, other bool) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		final := s.View().Final
		if from <= to && from <= final {
			if !s.ranges(ctx, from, min(to, final), f, other, yield) {
				return
			}

			from = min(to, final) + 1
		}

		if from <= to {
			s.blocks(ctx, from, to, f, other, yield)
		}
	}
}

// ranges yields from..to in ranges. It says whether the reader wants more.
func (s *Source) ranges(ctx context.Context, from, to uint64, f *Filter, other bool,
	yield func(Batch, error) bool) bool {
	return pipeline(ctx, node.RangesInFlight, func() (func(context.Context) (Batch, error), bool) {
		if from > to {
			return nil, false
		}

		first := from
		avoid := (*node.Node)(nil)
		if other {
			avoid = s.served.by(first, first)
		}

		last := first + min(to-first, s.plan(first, avoid)-1)
		from = last + 1

		return func(ctx context.Context) (b Batch, err error) {
			err = s.ask(ctx, last, avoid, func(ctx context.Context, e *node.Node) (err error) {
				if b, err = e.ReadRange(ctx, first, last, f); err == nil && !other {
					s.served.note(first, last, e)
				}

				return err
			})
			if err != nil {
				return b, fmt.Errorf("read blocks %d to %d: %w", first, last, err)
			}

			return b, nil
		}, true
	}, yield)
}

// plan is how many blocks to ask for: as many as the endpoint that is likely to be asked answers for.
func (s *Source) plan(n uint64, avoid *node.Node) uint64 {
	list, _ := s.order(n, avoid)
	if len(list) == 0 {
		list = s.nodes
	}

	return list[0].Span()
}

// pipeline does jobs with so many in flight and yields their results in order, up to the first
// error. It says whether the reader wants more, and leaves no goroutine behind.
func pipeline(ctx context.Context, width int, next func() (func(context.Context) (Batch, error), bool),
	yield func(Batch, error) bool) bool {
	type result struct {
		b   Batch
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var flight []chan result
	for {
		for len(flight) < width {
			job, ok := next()
			if !ok {
				break
			}

			done := make(chan result, 1)
			wg.Go(func() {
				b, err := job(ctx)
				done <- result{b, err}
			})
			flight = append(flight, done)
		}

		if len(flight) == 0 {
			return true
		}

		r := <-flight[0]
		flight = flight[1:]
		if r.err != nil {
			yield(Batch{}, r.err)
			return false
		}

		if !yield(r.b, nil) {
			return false
		}
	}
}
