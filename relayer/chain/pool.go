package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// behindTries is how often an endpoint is asked at once for a block that it has told of and does not have.
const behindTries = 4

// pool is the endpoints, and the order in which they are asked. farBehind is how many blocks the
// machines behind one URL may be apart.
type pool struct {
	nodes     []*endpoint.Node
	farBehind func() uint64
}

// Endpoints says how each endpoint does.
func (p *pool) Endpoints() []EndpointStatus {
	list := make([]EndpointStatus, len(p.nodes))
	for i, n := range p.nodes {
		list[i] = n.Status()
	}

	return list
}

// claims are what the endpoints that are in use say of the chain.
func (p *pool) claims() []endpoint.Claim {
	list := make([]endpoint.Claim, 0, len(p.nodes))
	for _, n := range p.nodes {
		if c := n.Claim(); c.Up && c.Head.Hash != (common.Hash{}) {
			list = append(list, c)
		}
	}

	return list
}

// lead is the endpoint that is read from.
func (p *pool) lead() *endpoint.Node {
	for _, n := range p.nodes {
		if n.Serves() {
			return n
		}
	}

	return p.nodes[0]
}

// order is the endpoints that may be asked for a block now, best first: those that are in use and
// have the block; among equals, as configured. One to be avoided is not among them. Without any, it
// says how long until there is one.
func (p *pool) order(need uint64, avoid *endpoint.Node) (list []*endpoint.Node, wait time.Duration) {
	var ranks [4][]*endpoint.Node
	for _, n := range p.nodes {
		if n == avoid {
			continue
		}

		if pause := n.Pause(p.servedBut(n)); pause > 0 {
			if wait == 0 || pause < wait {
				wait = pause
			}

			continue
		}

		rank := 0
		if !n.Has(need) {
			rank++
		}

		if !n.Claim().Up {
			rank += 2
		}

		ranks[rank] = append(ranks[rank], n)
	}

	return slices.Concat(ranks[:]...), wait
}

// servedBut says whether an endpoint other than n serves.
func (p *pool) servedBut(n *endpoint.Node) bool {
	return slices.ContainsFunc(p.nodes, func(other *endpoint.Node) bool { return other != n && other.Serves() })
}

// ask puts a question about a block to one endpoint after the other until one answers. The error is all of theirs.
func (p *pool) ask(ctx context.Context, need uint64, avoid *endpoint.Node,
	question func(context.Context, *endpoint.Node) error) error {
	var errs []error
	left := endpoint.LongestWait
	for {
		list, wait := p.order(need, avoid)
		for _, n := range list {
			err := question(ctx, n)
			// Another machine behind its URL may have a block that it has told of.
			for tries := 1; errors.Is(err, ErrBehind) && n.Has(need) && tries < behindTries; tries++ {
				err = question(ctx, n)
			}

			if ctx.Err() != nil {
				return context.Cause(ctx)
			}

			if err == nil {
				return nil
			}

			if errors.Is(err, ErrBehind) {
				err = n.Lacks(ctx, need, p.farBehind(), err)
			}

			if rpc.Classify(err) == rpc.Invalid {
				n.Blame(ctx, err)
			}

			errs = append(errs, fmt.Errorf("%s: %w", n.Name(), err))
		}

		if len(list) > 0 || wait == 0 || wait > left {
			return cmp.Or(errors.Join(errs...), p.unavailable(wait))
		}

		left -= wait
		if err := endpoint.Wait(ctx, wait); err != nil {
			return err
		}
	}
}

// unavailable says why no endpoint is to be asked for a while.
func (p *pool) unavailable(wait time.Duration) error {
	return p.because(fmt.Errorf("%w for %s", ErrUnavailable, wait.Round(time.Millisecond)), time.Time{})
}

// because joins the endpoints' last errors to one, those that are not older than since.
func (p *pool) because(err error, since time.Time) error {
	errs := []error{err}
	for _, st := range p.Endpoints() {
		if st.LastError != "" && !st.Failed.Before(since) {
			errs = append(errs, fmt.Errorf("%s: %s", st.Name, st.LastError))
		}
	}

	return errors.Join(errs...)
}

// elect returns the header at a height on which the endpoints agree that have it, and how many
// those are.
func (p *pool) elect(ctx context.Context, n uint64) (h Header, votes int, err error) {
	list, wait := p.order(n, nil)
	type vote struct {
		h   Header
		err error
	}
	said := make([]vote, len(list))
	var wg sync.WaitGroup
	for i, e := range list {
		wg.Go(func() { said[i].h, said[i].err = p.vote(ctx, e, n) })
	}

	wg.Wait()
	if ctx.Err() != nil {
		return h, 0, context.Cause(ctx)
	}

	var errs []error
	count := map[common.Hash]int{}
	total := 0
	for i, v := range said {
		if v.err != nil {
			if rpc.Classify(v.err) == rpc.Invalid {
				list[i].Blame(ctx, v.err)
			}

			errs = append(errs, fmt.Errorf("%s: %w", list[i].Name(), v.err))

			continue
		}

		total++
		if count[v.h.Hash]++; count[v.h.Hash] > votes {
			h, votes = v.h, count[v.h.Hash]
		}
	}

	if total == 0 {
		return h, 0, cmp.Or(errors.Join(errs...), p.unavailable(wait))
	}

	for i, v := range said {
		if v.err == nil && v.h.Hash != h.Hash {
			list[i].Disagrees()
		}
	}

	if 2*votes > total {
		return h, votes, nil
	}

	return h, 0, fmt.Errorf("%w: %d hashes from %d endpoints", ErrDisagree, len(count), total)
}

// vote is the header at a height, from an endpoint whose answer may roll the chain back. An endpoint
// that has answered wrongly, and is asked only because no other is in use, must first show that it
// answers correctly again: a header alone cannot be validated.
func (p *pool) vote(ctx context.Context, e *endpoint.Node, n uint64) (Header, error) {
	doubtful := e.Doubtful()
	h, err := e.Header(ctx, n)
	if err != nil || !doubtful {
		return h, err
	}

	if !endpoint.Telling(&h.Bloom) { // a block without logs, or a chain without bloom filters
		_, err = e.ReadStanding(ctx, h, &Filter{})
	} else {
		_, _, err = e.ReadWhole(ctx, h, &Filter{Addresses: []common.Address{}}) // none need be kept
	}

	if errors.Is(err, ErrBehind) {
		err = fmt.Errorf("%w: it tells of block %d and does not show its logs", rpc.ErrInvalid, n)
	}

	return h, err
}
