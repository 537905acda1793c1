package chain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// headersAtOnce bounds how many headers are asked for in one batch.
const headersAtOnce = 32

// blocks yields from..to block by block.
func (r *reader) blocks(ctx context.Context, from, to uint64, f *Filter, avoid *endpoint.Node,
	yield func(Batch, error) bool) bool {
	var parent common.Hash
	for from <= to {
		last := min(to, from+headersAtOnce-1)
		chain, err := r.chain(ctx, from, last)
		if err == nil && parent != (common.Hash{}) && chain[0].Parent != parent {
			r.ring.drop()
			err = fmt.Errorf("%w: block %d is not the parent of block %d any more", ErrDisagree, from-1, from)
		}

		if err != nil {
			yield(Batch{}, fmt.Errorf("read the headers of blocks %d to %d: %w", from, last, err))
			return false
		}

		i := 0
		if !pipeline(ctx, r.flight.width, func() (func(context.Context) (Batch, error), bool) {
			if i == len(chain) {
				return nil, false
			}

			h := chain[i]
			i++

			return func(ctx context.Context) (Batch, error) {
				said, err := r.logsOf(ctx, h, f, avoid)
				if err != nil {
					return Batch{}, fmt.Errorf("read block %d: %w", h.Number, err)
				}

				return Batch{From: h.Number, To: h.Number, ByHash: true, Parent: h.Parent, Logs: said.logs, Last: h,
					Filter: f, By: said.by}, nil
			}, true
		}, yield) {
			return false
		}

		parent, from = chain[len(chain)-1].Hash, last+1
	}

	return true
}

// chain returns the headers of from..to, each the parent of the next, from the ring as far as it
// has them. They are linked up to the newest head that is known: a header that the ring still has from
// before a reorganisation, with a gap above it, is linked to its old children only, and a machine that
// is behind may have stayed on a branch that the chain has left.
func (r *reader) chain(ctx context.Context, from, to uint64) ([]Header, error) {
	reading := false
	for attempt := 0; attempt < 2; {
		top := max(to, r.outlook.View().Head)
		if top-to > deepest {
			top = to
		}

		have := r.ring.get(from, top)
		var missing []uint64
		for n := from; n <= top; n++ {
			if _, ok := have[n]; !ok {
				missing = append(missing, n)
			}
		}

		if len(missing) > 0 && !reading { // readers that lack the same headers ask for them once
			select {
			case r.headers <- struct{}{}:
				defer func() { <-r.headers }()
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}

			reading = true

			continue // what lacked may be there now
		}

		if err := r.askHeaders(ctx, missing, have, attempt > 0); err != nil {
			return nil, err
		}

		if list, ok := linked(have, from, top); ok {
			r.ring.fill(list)
			return list[:to-from+1], nil
		}

		attempt++
		r.ring.drop() // the chain moved, or machines have different ones: once more, along the newest head's
	}

	return nil, fmt.Errorf("%w: they are not each other's parents, the chain is moving", ErrDisagree)
}

// askHeaders asks for the headers of some blocks, and adds them to those that there are. The newest come
// first: a block that is missing by its number is asked for by the hash that its child has for it, since
// there are gateways that remember for seconds that a block was not there yet. byHash has all but the
// newest asked for so, one after the other: they are of one branch then, whoever answers.
func (r *reader) askHeaders(ctx context.Context, missing []uint64, have map[uint64]Header, byHash bool) error {
	for _, some := range slices.Backward(slices.Collect(slices.Chunk(missing, headersAtOnce))) {
		err := r.pool.ask(ctx, some[len(some)-1], nil, func(ctx context.Context, e *endpoint.Node) error {
			numbers := lacking(some, have)
			if byHash {
				numbers = slices.DeleteFunc(numbers, func(n uint64) bool { return n != missing[len(missing)-1] })
			}

			list, err := e.Headers(ctx, numbers)
			for _, h := range list {
				have[h.Number] = h
			}

			if err == nil || errors.Is(err, ErrBehind) {
				err = ancestors(ctx, e, lacking(some, have), have)
			}

			return err
		})
		r.ring.fill(slices.Collect(maps.Values(have))) // they are compared with each other when all are there
		if err != nil {
			return err
		}
	}

	return nil
}

// ancestors asks for blocks by their hashes, one after the other: each is the parent of one that is there.
func ancestors(ctx context.Context, e *endpoint.Node, numbers []uint64, have map[uint64]Header) error {
	for _, n := range slices.Backward(numbers) {
		child, ok := have[n+1]
		if !ok {
			return fmt.Errorf("%w: block %d", ErrBehind, n)
		}

		h, err := e.Parent(ctx, child)
		if err != nil {
			return err
		}

		have[n] = h
	}

	return nil
}

// lacking are those of the numbers whose headers are not there.
func lacking(numbers []uint64, have map[uint64]Header) []uint64 {
	return slices.DeleteFunc(slices.Clone(numbers), func(n uint64) bool { _, ok := have[n]; return ok })
}

// linked lists the headers of from..to, if each is the parent of the next.
func linked(have map[uint64]Header, from, to uint64) (list []Header, ok bool) {
	for n := from; n <= to; n++ {
		if n < to && have[n+1].Parent != have[n].Hash {
			return nil, false
		}

		list = append(list, have[n])
	}

	return list, true
}

// logsOf returns the logs of a block. Readers of the same block by the same filter share one request.
func (r *reader) logsOf(ctx context.Context, h Header, f *Filter, avoid *endpoint.Node) (reading, error) {
	if avoid != nil {
		return r.readBlock(ctx, h, f, avoid)
	}

	return r.memo.get(ctx, memoKey{h.Hash, f}, func() (reading, error) {
		said, err := r.readBlock(ctx, h, f, nil)
		if errors.Is(err, ErrBehind) {
			r.ring.drop() // nobody has the block: maybe it was replaced
		}

		return said, err
	})
}

// readBlock reads the logs of a block from one endpoint, and proves it where there are none, or none
// of a part of the filter.
func (r *reader) readBlock(ctx context.Context, h Header, f *Filter, avoid *endpoint.Node) (said reading, err error) {
	err = r.pool.ask(ctx, h.Number, avoid, func(ctx context.Context, n *endpoint.Node) (err error) {
		said.by = n
		said.logs, err = n.ReadBlock(ctx, h, f)
		return err
	})
	r.flight.landed(endpoint.SizeOf(said.logs), err)
	if err != nil || said.by.Answered(said.logs, h, f) || excluded(h, f) {
		return said, err
	}

	return r.prove(ctx, h, f, said)
}

// excluded says whether a block's header shows that it has no logs that match. A bloom filter without
// any bits does not: there are chains without bloom filters, and machines behind one URL of which
// some give none.
func excluded(h Header, f *Filter) bool {
	if f.Addresses != nil && len(f.Addresses) == 0 {
		return true
	}

	if h.Empty && !endpoint.Telling(&h.Bloom) {
		return true
	}

	return h.Bloom != (types.Bloom{}) && !f.AllowedBy(&h.Bloom)
}

// prove makes sure that a block has no more matching logs than the first reading gave: an endpoint
// shows all logs of the block. That another endpoint has none either would be no proof, since it
// may be behind as well. It returns what is found instead, and of whom.
func (r *reader) prove(ctx context.Context, h Header, f *Filter, first reading) (said reading, err error) {
	err = r.pool.ask(ctx, h.Number, nil, func(ctx context.Context, n *endpoint.Node) (err error) {
		said.by = n
		var size int
		said.logs, size, err = n.ReadProven(ctx, h, f, r.pool.farBehind())
		r.flight.landed(size, err)
		if err == nil && len(said.logs) < len(first.logs) {
			return fmt.Errorf("%w: block %d has %d logs, now it has %d", ErrDisagree, h.Number, len(first.logs),
				len(said.logs))
		}

		return err
	})
	if err == nil && len(said.logs) > len(first.logs) {
		first.by.SeenUneven()
		if said.by != first.by {
			contradicted(ctx, first, said, h)
		}
	}

	return said, err
}

// contradicted deals with an endpoint that had fewer logs of a block than another has: it is behind,
// or left them out.
func contradicted(ctx context.Context, first, second reading, h Header) {
	q := rpc.ByHash(h.Hash)
	if err := first.by.Do(ctx, q); err == nil && q.Err == nil && !q.Null() {
		first.by.Blame(ctx, fmt.Errorf("%w: %d logs of block %d, where %s has %d", rpc.ErrInvalid, len(first.logs),
			h.Number, second.by.Name(), len(second.logs)))
	}
}
