package send

import (
	"context"
	"sync"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// perView is what several senders want to know while the view is the same: the first one asks, and
// those that come meanwhile wait for its answer.
//
// A View does not say which branch it is of. So nothing is shared in this way that is compared with
// what is stored: a block's hash from before a reorganisation would hide it for ever.
type perView[V any] struct {
	mu   sync.Mutex
	view source.View
	cell *cell[V] // nil: nobody has asked yet
}

type cell[V any] struct {
	turn  chan struct{} // capacity 1: whoever has put a value into it asks, or reads what follows
	known bool
	value V
}

func (p *perView[V]) get(ctx context.Context, view source.View, ask func(context.Context) (V, error)) (v V, err error) {
	p.mu.Lock()
	if p.cell == nil || p.view != view {
		p.view, p.cell = view, &cell[V]{turn: make(chan struct{}, 1)}
	}

	c := p.cell
	p.mu.Unlock()

	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}

	if !c.known {
		if c.value, err = ask(ctx); err != nil {
			return v, err
		}

		c.known = true
	}

	return c.value, nil
}
