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
)

// headersAtOnce bounds how many headers are asked for in one batch.
const headersAtOnce = 32

// blocks yields from..to block by block.
func (r *reader) blocks(ctx context.Context, from, to uint64, f *Filter, avoid *endpoint.Node,
	yield func(Batch, error) bool) bool {
	var parent common.Hash
	for from <= to {
		last := min(to, from+headersAtOnce-1)
		chain, err := r.buried(ctx, from, last)
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

// buried returns the headers of from..to, to be processed. Where depth decides that (CONFIRMATIONS), they are
// linked to a head that is as deep above them and leads through the tip: a head of another branch than the one
// that is agreed on leaves open how deep a block lies.
func (r *reader) buried(ctx context.Context, from, to uint64) ([]Header, error) {
	anchor, _, err := r.anchor(ctx, to)
	if err != nil {
		return nil, err
	}

	least := to + r.outlook.depth()
	if tip, _, _ := r.outlook.agreement.Anchor(to); least <= tip.number {
		return r.chain(ctx, from, to, anchor, anchor)
	}

	err = fmt.Errorf("%w: no endpoint in use has block %d, by which block %d is as deep as it has to be", ErrBehind,
		least, to)
	for _, head := range r.outlook.heads(least) {
		var list []Header
		if list, err = r.chain(ctx, from, to, anchor, head); err == nil {
			return list, nil
		}
	}

	return nil, err
}

// chain returns the headers of from..to, each the parent of the next, from the ring where it
// has them. They are linked by way of the tip, the highest block that is known to be the chain's, up to a block
// above it or to the tip itself, whatever the machine that answers next says of the blocks between.
func (r *reader) chain(ctx context.Context, from, to uint64, tip, top place) ([]Header, error) {
	reading := false
	for attempt := 0; attempt < 2; {
		have := r.ring.get(from, top.number)
		maps.DeleteFunc(have, func(n uint64, h Header) bool {
			return n == tip.number && h.Hash != tip.hash || n == top.number && h.Hash != top.hash ||
				!h.Proved && r.laws.Headers.Holds()
		})

		var missing []uint64
		for n := from; n <= top.number; n++ {
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

		if err := r.askHeaders(ctx, missing, have, top, attempt > 0); err != nil {
			return nil, err
		}

		if list, ok := linked(have, from, top.number); ok && list[tip.number-from].Hash == tip.hash {
			r.ring.fill(list)
			return list[:to-from+1], nil
		}

		attempt++
		r.ring.drop() // the chain moved, or machines have different ones: once more, along the top's
	}

	return nil, fmt.Errorf("%w: they are not each other's parents, the chain is moving", ErrDisagree)
}

// askHeaders asks for the headers of some blocks, and adds them to those that there are. The newest come
// first: a block that is missing by its number is asked for by the hash that its child has for it, since
// there are gateways that remember for seconds that a block was missing. byHash has all but the
// newest asked for so, one after the other: they are of one branch then, whichever endpoint answers.
func (r *reader) askHeaders(ctx context.Context, missing []uint64, have map[uint64]Header, top place,
	byHash bool) error {
	above := Header{Number: top.number + 1, Parent: top.hash} // as far as it is known
	for _, some := range slices.Backward(slices.Collect(slices.Chunk(missing, headersAtOnce))) {
		err := r.pool.ask(ctx, some[len(some)-1], nil, func(ctx context.Context, e *endpoint.Node) error {
			numbers := lacking(some, have)
			if byHash {
				numbers = nil
			}

			list, err := e.Headers(ctx, numbers)
			for _, h := range list {
				if h.Number != top.number || h.Hash == top.hash {
					have[h.Number] = h
				}
			}

			if err == nil || errors.Is(err, ErrBehind) {
				have[above.Number] = above
				err = ancestors(ctx, e, lacking(some, have), have)
			}

			return err
		})
		delete(have, above.Number)
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

// lacking are the numbers without a header.
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

// readBlock reads the logs of a block. Where its header excludes logs, there are none to ask for; else its receipts
// prove which there are. Where they prove nothing, two endpoints have to show the same, unless one's word counts: never
// on a chain whose blocks have proved what is in them, which withholds receipts then.
func (r *reader) readBlock(ctx context.Context, h Header, f *Filter, avoid *endpoint.Node) (reading, error) {
	if excluded(h, f) {
		return reading{logs: []types.Log{}, proved: h.Proved}, nil
	}

	said, err := two(ctx, r, h.Number, avoid, func(ctx context.Context, n *endpoint.Node) (reading, bool, error) {
		logs, size, proved, err := n.ReadBlock(ctx, h, f)
		r.flight.landed(size, err)

		// A second reading is compared with the first by its reader.
		return reading{logs: logs, by: n, proved: proved}, proved || avoid != nil, err
	}, func(a, b reading) bool { return slices.EqualFunc(a.logs, b.logs, SameLog) },
		func(n *endpoint.Node) bool { return !r.laws.Demanded() && r.outlook.agreement.Counts(n) }, !r.laws.Demanded())
	if errors.Is(err, ErrDisagree) && r.laws.Demanded() {
		err = fmt.Errorf("%w, and none proves what is in it, as the receipts and transactions of other blocks of the chain "+
			"have: %s", err, endpoint.Remedy)
	}

	if err == nil && avoid == nil {
		r.unproved.Store(!said.proved)
	}

	return said, err
}

// excluded reports whether there are no logs that match: nothing is asked for, or a proved header says so, by
// the receipts root of the empty list or its bloom filter. What an unproved one does not list may still be there.
// A bloom filter without any bits says nothing: there are chains without bloom filters.
func excluded(h Header, f *Filter) bool {
	if f.Addresses != nil && len(f.Addresses) == 0 {
		return true
	}

	return h.Proved && (h.Receipts == types.EmptyReceiptsHash || h.Bloom != (types.Bloom{}) && !f.AllowedBy(&h.Bloom))
}
