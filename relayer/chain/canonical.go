package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

const (
	// deepest bounds how far below the newest head a block is linked to it: the headers may have to be
	// asked for.
	deepest = ringSize / 2
	// How often an endpoint is asked before it is believed that the chain has left a block, and how often
	// one whose answers have been seen to be of machines that are apart.
	leftTries, leftTriesApart = 8, 32
	// A machine that is more blocks behind the newest head than this may have yet to leave a branch: that it is
	// there says nothing.
	nearHead = 2
)

// Canonical returns the header at a height on which the endpoints agree that have it; those that have
// not, or do not answer, have no say. With three or more, a majority decides. What one endpoint alone
// says, and is not the block known, has to hang together with the newest head that is known, and no
// machine behind its URL that has that head may have the known block still. ErrBehind: none has it.
// ErrDisagree: no majority, or it does not hang together.
func (r *reader) Canonical(ctx context.Context, n uint64, known common.Hash) (Header, error) {
	if tip, trust := r.outlook.Tip(); trust == Agreed && n <= tip.number && tip.number-n <= deepest {
		h, err := r.below(ctx, n)
		if err != nil {
			return Header{}, fmt.Errorf("header of block %d: %w", n, err)
		}

		return h, nil
	}

	h, votes, err := r.pool.elect(ctx, n)
	if err == nil && votes == 1 && h.Hash != known {
		if err = r.left(ctx, n, known); err == nil {
			err = r.hangs(ctx, h)
		}
	}

	if err != nil {
		return Header{}, fmt.Errorf("header of block %d: %w", n, err)
	}

	return h, nil
}

// Prove returns the header at a height that is the chain's, and the logs of its block, proved by it. It takes two
// endpoints to say which block is there, or one whose word counts. ErrUnproved: the chain's blocks do not
// prove what is in them. ErrDisagree, ErrBehind: it is not decided yet which block is there.
func (r *reader) Prove(ctx context.Context, n uint64, f *Filter) (h Header, logs []types.Log, err error) {
	if h, err = r.agreed(ctx, n); err != nil {
		return h, nil, fmt.Errorf("header of block %d: %w", n, err)
	}

	if !h.Proved {
		err = fmt.Errorf("%w: block %d is none that hashes as Ethereum's do", ErrUnproved, n)
	}

	if err != nil || excluded(h, f) {
		return h, nil, err
	}

	err = r.pool.ask(ctx, n, nil, func(ctx context.Context, e *endpoint.Node) (err error) {
		logs, _, err = e.ReadProved(ctx, h, f)
		return err
	})

	return h, logs, err
}

// left makes sure that the chain has left a block. Behind one URL may be machines that are on two branches
// for hours: while one of them has the block, what was processed is not taken back. Several are asked at a
// time, since a balancer may give each connection its own machine.
func (r *reader) left(ctx context.Context, n uint64, known common.Hash) error {
	if known == (common.Hash{}) {
		return nil
	}

	tries := leftTries
	if slices.ContainsFunc(r.pool.nodes, (*endpoint.Node).Uneven) {
		tries = leftTriesApart
	}

	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(endpoint.RangesInFlight)
	for range tries {
		g.Go(func() error { return r.gone(ctx, n, known) })
	}

	return g.Wait()
}

// gone is ErrDisagree where an endpoint's answer is of a machine that has the newest head and still has a block.
func (r *reader) gone(ctx context.Context, n uint64, block common.Hash) error {
	var still error
	err := r.pool.ask(ctx, n, nil, func(ctx context.Context, e *endpoint.Node) error {
		keeps, head, err := e.Keeps(ctx, n, block)
		if keeps && head.Number+nearHead >= r.outlook.View().Head {
			e.SeenUneven()
			still = fmt.Errorf("%w: some of %s still have block %s", ErrDisagree, e.Name(), block)
		}

		return err
	})
	if errors.Is(err, ErrBehind) { // who has no such block has no say
		err = nil
	}

	return cmp.Or(still, err)
}

// hangs makes sure that a header leads to the newest head that is known. A machine that is behind may
// still be on a branch that the chain has left; after a reorganisation, the machines that are not
// behind have headers that link. Where the newest head was replaced by a lower one, that takes until
// the chain is as high again, or the View goes back.
func (r *reader) hangs(ctx context.Context, h Header) error {
	top := r.outlook.View().Head
	if top <= h.Number || top-h.Number > deepest {
		return nil
	}

	there, err := r.below(ctx, h.Number)
	switch {
	case err != nil:
		return fmt.Errorf("is it below block %d: %w", top, err)
	case there.Hash != h.Hash:
		return fmt.Errorf("%w: %s does not lead to block %d", ErrDisagree, h.Hash, top)
	}

	return nil
}

// Branch returns the headers of blocks on the branch of a later block, headersAtOnce of them at a time: as one
// answer of an endpoint has them and that block, if it takes so many requests in a batch; by its number alone
// where that block has no hash. ErrDisagree: who answers has another one there.
func (r *reader) Branch(ctx context.Context, tip Header, numbers ...uint64) (list []Header, err error) {
	for some := range slices.Chunk(numbers, headersAtOnce) {
		var headers []Header
		err := r.pool.ask(ctx, tip.Number, nil, func(ctx context.Context, e *endpoint.Node) (err error) {
			if headers, err = e.Headers(ctx, append(slices.Clone(some), tip.Number)); err != nil {
				return err
			}

			if has := headers[len(some)].Hash; tip.Hash != (common.Hash{}) && has != tip.Hash {
				return fmt.Errorf("%w: block %d is %s, and not %s", ErrDisagree, tip.Number, has, tip.Hash)
			}

			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("headers below block %d: %w", tip.Number, err)
		}

		list = append(list, headers[:len(some)]...)
	}

	return list, nil
}
