package source

import (
	"context"
	"fmt"
)

// deepest bounds how far below the newest head a block is linked to it: the headers may have to be
// asked for.
const deepest = ringSize / 2

// Canonical returns the header at a height on which the endpoints agree that have it; those that
// have not, or do not answer, have no say. With three or more, a majority decides. What one endpoint
// alone says, and is new, has to hang together with the newest head that is known. ErrBehind: none
// has it. ErrDisagree: no majority, or it does not hang together.
func (r *reader) Canonical(ctx context.Context, n uint64) (Header, error) {
	h, votes, err := r.pool.elect(ctx, n)
	if told, _ := r.told.Get(n); err == nil && votes == 1 && told != h.Hash {
		err = r.hangs(ctx, h)
	}

	if err != nil {
		return Header{}, fmt.Errorf("header of block %d: %w", n, err)
	}

	r.told.Add(n, h.Hash)

	return h, nil
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

	list, err := r.chain(ctx, h.Number, h.Number)
	switch {
	case err != nil:
		return fmt.Errorf("is it below block %d: %w", top, err)
	case list[0].Hash != h.Hash:
		return fmt.Errorf("%w: %s does not lead to block %d", ErrDisagree, h.Hash, top)
	}

	return nil
}
