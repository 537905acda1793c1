package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// behindTries is how often an endpoint is asked at once for a block that it has told of and does not have.
const behindTries = 4

// Endpoints says how each endpoint does.
func (s *Source) Endpoints() []EndpointStatus {
	list := make([]EndpointStatus, len(s.nodes))
	for i, n := range s.nodes {
		list[i] = n.Status()
	}

	return list
}

// claims are what the endpoints that are in use say of the chain.
func (s *Source) claims() []endpoint.Claim {
	list := make([]endpoint.Claim, 0, len(s.nodes))
	for _, n := range s.nodes {
		if c := n.Claim(); c.Up && c.Head.Hash != (common.Hash{}) {
			list = append(list, c)
		}
	}

	return list
}

// lead is the endpoint that is read from.
func (s *Source) lead() *endpoint.Node {
	for _, n := range s.nodes {
		if n.Serves() {
			return n
		}
	}

	return s.nodes[0]
}

// order is the endpoints that may be asked for a block now, best first: those that are in use and
// have the block; among equals, as configured. One to be avoided is not among them. Without any, it
// says how long until there is one.
func (s *Source) order(need uint64, avoid *endpoint.Node) (list []*endpoint.Node, wait time.Duration) {
	var ranks [4][]*endpoint.Node
	for _, n := range s.nodes {
		if n == avoid {
			continue
		}

		if pause := n.Pause(s.servedBut(n)); pause > 0 {
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

// servedBut reports whether an endpoint other than n serves.
func (s *Source) servedBut(n *endpoint.Node) bool {
	return slices.ContainsFunc(s.nodes, func(other *endpoint.Node) bool { return other != n && other.Serves() })
}

// ask puts a question about a block to one endpoint after the other until one answers. The error is all of theirs.
func (s *Source) ask(ctx context.Context, need uint64, avoid *endpoint.Node,
	question func(context.Context, *endpoint.Node) error) error {
	var errs []error
	left := endpoint.LongestWait
	for {
		list, wait := s.order(need, avoid)
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

			if errors.Is(err, ErrBehind) || rpc.Classify(err) == rpc.Pruned && !errors.Is(err, ErrNoHistory) {
				err = n.Lacks(ctx, need, s.outlook.farBehind(), err)
			}

			if rpc.Classify(err) == rpc.Invalid {
				n.Blame(ctx, err)
			}

			errs = append(errs, fmt.Errorf("%s: %w", n.Name(), err))
		}

		if len(list) > 0 || wait == 0 || wait > left {
			return cmp.Or(errors.Join(errs...), s.unavailable(wait))
		}

		left -= wait
		if err := s.cfg.wait(ctx, wait); err != nil {
			return err
		}
	}
}

// unavailable says why no endpoint is to be asked for a while.
func (s *Source) unavailable(wait time.Duration) error {
	return s.because(fmt.Errorf("%w for %s", ErrUnavailable, wait.Round(time.Millisecond)), time.Time{})
}

// because joins the endpoints' last errors to one, those that are not older than since.
func (s *Source) because(err error, since time.Time) error {
	errs := []error{err}
	for _, st := range s.Endpoints() {
		if st.LastError != "" && !st.Failed.Before(since) {
			errs = append(errs, fmt.Errorf("%s: %s", st.Name, st.LastError))
		}
	}

	return errors.Join(errs...)
}
