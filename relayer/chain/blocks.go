package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// blocks yields from..to block by block.
func (s *Source) blocks(ctx context.Context, from, to uint64, q query, yield func(Batch, error) bool) bool {
	var parent common.Hash
	for from <= to {
		last := min(to, from+headersAtOnce-1)
		chain, err := s.buried(ctx, from, last)
		if err == nil && parent != (common.Hash{}) && chain[0].Parent != parent {
			err = fmt.Errorf("%w: block %d is not the parent of block %d any more", ErrDisagree, from-1, from)
		}

		if err != nil {
			yield(Batch{}, fmt.Errorf("read the headers of blocks %d to %d: %w", from, last, err))
			return false
		}

		i := 0
		if !pipeline(ctx, s.flight.width, func() (func(context.Context) (Batch, error), bool) {
			if i == len(chain) {
				return nil, false
			}

			h := chain[i]
			i++

			return func(ctx context.Context) (Batch, error) {
				said, err := s.logsOf(ctx, h, q)
				if err != nil {
					return Batch{}, fmt.Errorf("read block %d: %w", h.Number, err)
				}

				return Batch{From: h.Number, To: h.Number, ByHash: true, Parent: h.Parent, Logs: said.logs, Last: h,
					Filter: q.filter, By: said.by}, nil
			}, true
		}, yield) {
			return false
		}

		parent, from = chain[len(chain)-1].Hash, last+1
	}

	return true
}

// logsOf returns the logs of a block. Readers of the same block by the same filter share one request.
func (s *Source) logsOf(ctx context.Context, h Header, q query) (reading, error) {
	if q.avoid != nil {
		return s.readBlock(ctx, h, q)
	}

	return s.memo.get(ctx, memoKey{h.Hash, q.filter}, func() (reading, error) { return s.readBlock(ctx, h, q) })
}

// readBlock reads the logs of a block. Where its header excludes logs, there are none to ask for; else its receipts
// prove which there are. Where they prove nothing, two endpoints have to show the same, unless one's word counts: never
// on a chain whose blocks have proved what is in them, which withholds receipts then.
func (s *Source) readBlock(ctx context.Context, h Header, q query) (reading, error) {
	if excluded(h, q.filter) {
		return reading{logs: []types.Log{}, proved: h.Proved}, nil
	}

	lacks := func(n *endpoint.Node) (lost, forGood bool) { return n.Never(h.Number, q.filter), true }
	if s.laws.Demanded() {
		lacks = nil
	}

	said, _, err := two(ctx, s, h.Number, q.avoid, func(ctx context.Context, n *endpoint.Node) (reading, bool, error) {
		logs, size, proved, err := n.ReadBlock(ctx, h, q.filter)
		s.flight.landed(size, err)

		// A second reading is compared with the first by its reader.
		return reading{logs: logs, by: n, proved: proved}, proved || q.avoid != nil, err
	}, func(a, b reading) bool { return slices.EqualFunc(a.logs, b.logs, SameLog) },
		func(n *endpoint.Node) bool { return lacks != nil && s.outlook.agreement.Counts(n) }, lacks)
	if errors.Is(err, ErrDisagree) && s.laws.Demanded() {
		err = fmt.Errorf("%w, and none proves what is in it, as the receipts and transactions of other blocks of the chain "+
			"have: %s", err, endpoint.Remedy)
	}

	if err == nil && q.avoid == nil {
		s.unproved.Store(!said.proved)
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
