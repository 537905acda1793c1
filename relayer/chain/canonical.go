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
	// headersAtOnce bounds how many headers are asked for in one batch.
	headersAtOnce = 32
	// deepest bounds how far below the tip a block is linked to it: the headers may have to be asked for.
	deepest = ringSize / 2
	// leftTries is how often an endpoint is asked before its word that the chain has left a block counts alone.
	leftTries = 8
	// A machine that is more blocks behind the newest head than this may have yet to leave a branch: that it is
	// there says nothing.
	nearHead = 2
)

// vote is what an endpoint has shown at some heights already.
type vote struct {
	by      *endpoint.Node
	headers []Header
}

// shown are the headers at some heights that two endpoints show (one with a word that counts, or that alone still has
// the block; while another may have it again, that is one word). One may have cast its vote.
func (s *Source) shown(ctx context.Context, cast vote, numbers []uint64) (list []Header, oneWord bool, err error) {
	oneWord = len(s.nodes) > 1 && s.outlook.agreement.Believes()
	for some := range slices.Chunk(numbers, headersAtOnce) {
		headers, alone, err := two(ctx, s, some[0], nil, func(ctx context.Context, e *endpoint.Node) ([]Header, bool, error) {
			if e == cast.by {
				return cast.headers, false, nil
			}

			headers, err := e.Headers(ctx, some)

			return headers, false, err
		}, func(a, b []Header) bool {
			return slices.EqualFunc(a, b, func(a, b Header) bool { return a.Hash == b.Hash })
		}, s.outlook.agreement.Counts, func(e *endpoint.Node) (lost, forGood bool) { return e.Lost(some[0]) })
		if oneWord = oneWord || alone; err != nil {
			return nil, oneWord, fmt.Errorf("headers of blocks %d to %d: %w", some[0], some[len(some)-1], err)
		}

		list = append(list, headers...)
	}

	return list, oneWord, nil
}

// canonical returns the headers at some heights, in their order, that are the chain's: they lead to the tip, or, where
// they are far below it or final, two endpoints show them, if that takes fewer headers. cast is a vote on no more than
// headersAtOnce of them. ErrBehind: it is not agreed yet.
func (s *Source) canonical(ctx context.Context, cast vote, numbers ...uint64) (list []Header, oneWord bool, err error) {
	first, last := numbers[0], numbers[len(numbers)-1]
	tip, oneWord, err := s.outlook.agreement.Anchor(last)
	if err != nil {
		return nil, oneWord, fmt.Errorf("header of block %d: %w", last, err)
	}

	if tip.number > first+deepest || last <= s.outlook.View().Final &&
		len(s.ring.lacks(first, tip.number, s.usable)) > 2*len(numbers) {
		return s.shown(ctx, cast, numbers)
	}

	linked, err := s.chain(ctx, first, last, tip, tip)
	if err != nil {
		return nil, oneWord, fmt.Errorf("headers of blocks %d to %d: %w", first, last, err)
	}

	for _, n := range numbers {
		list = append(list, linked[n-first])
	}

	return list, oneWord, nil
}

// buried returns the headers of from..to, to be processed. Where depth decides that (CONFIRMATIONS), they are
// linked to a head that is as deep above them and leads through the tip: a head of another branch than the one
// that is agreed on leaves open how deep a block lies. Where a tag decides, the tip leads to them through a block that
// an endpoint calls so, or that block through the tip: a number is final on the branch of its block only.
func (s *Source) buried(ctx context.Context, from, to uint64) (list []Header, err error) {
	tip, _, err := s.outlook.agreement.Anchor(to)
	if err != nil {
		return nil, err
	}

	anchor, least := tip, to+s.outlook.depth()
	if tip.number > to+deepest {
		list, _, err := s.shown(ctx, vote{}, []uint64{to})
		if err != nil {
			return nil, err
		}

		anchor = place{to, list[0].Hash}
	}

	of := func(c endpoint.Claim) Header { return c.Head }
	switch {
	case tip == anchor && s.cfg.tagsDecide():
		of = s.outlook.tag
	case least <= tip.number:
		return s.chain(ctx, from, to, anchor, anchor)
	}

	err = fmt.Errorf("%w: no endpoint in use has block %d, or one after it, as FINALITY=%s asks for block %d", ErrBehind,
		least, s.cfg.Finality, to)
	for _, named := range s.outlook.places(least, of) {
		way, top := named, anchor
		if named.number > anchor.number {
			way, top = anchor, named
		}

		if list, err = s.chain(ctx, from, to, way, top); err == nil {
			return list, nil
		}
	}

	return nil, err
}

// chain returns the headers of from..to, along the hashes of parents from a block at the top down, by way of another
// one that is known to be the chain's. They are from the ring where it has them.
func (s *Source) chain(ctx context.Context, from, to uint64, anchor, top place) ([]Header, error) {
	list := make([]Header, top.number-from+1)
	child := Header{Number: top.number + 1, Parent: top.hash} // as far as it is known
	for reading := false; child.Number > from; {
		n := child.Number - 1
		if n == anchor.number && child.Parent != anchor.hash {
			return nil, fmt.Errorf("%w: they are not each other's parents, the chain is moving", ErrDisagree)
		}

		h, known := s.ring.headers.Get(n)
		if known = known && h.Hash == child.Parent && s.usable(h); !known && !reading {
			if s.headers.Acquire(ctx, 1) != nil { // readers that lack the same headers ask for them once
				return nil, context.Cause(ctx)
			}

			defer s.headers.Release(1)

			reading = true

			continue // what lacked may be there now
		}

		if !known {
			var err error
			if h, err = s.parent(ctx, child, from); err != nil {
				return nil, err
			}
		}

		list[n-from], child = h, h
	}

	return list[:to-from+1], nil
}

// usable reports whether a header proves itself, where the chain's do.
func (s *Source) usable(h Header) bool { return h.Proved || !s.laws.Headers.Holds() }

// parent asks for the block before another one, and with it for those before it down to a height that the ring lacks.
// These are asked for by their numbers, and the parent by its hash where that brings another block or none: machines
// behind one URL may be on two branches, and there are gateways that remember for seconds that a block was missing.
func (s *Source) parent(ctx context.Context, child Header, least uint64) (h Header, err error) {
	n := child.Number - 1
	err = s.ask(ctx, n, nil, func(ctx context.Context, e *endpoint.Node) error {
		numbers := s.ring.lacks(max(least, n-min(n, headersAtOnce-1)), n, s.usable)
		if slices.Contains(numbers, n) {
			list, err := e.Headers(ctx, numbers)
			s.ring.add(list...)
			if i := slices.IndexFunc(list, func(h Header) bool { return h.Hash == child.Parent }); i >= 0 {
				h = list[i]
				return nil
			}

			if err != nil && !errors.Is(err, ErrBehind) {
				return err
			}
		}

		if h, err = e.Parent(ctx, child); err == nil {
			s.ring.add(h)
		}

		return err
	})

	return h, err
}

// Canonical returns the header at a height that is the chain's. What takes the place of the known block lies as deep as
// what is processed: machines behind two endpoints may agree on a tip of a branch that the chain leaves. Where headers
// prove no parents, it is two endpoints' word. Where one endpoint is configured, each machine behind its URL with the
// newest head must have left that block; the word of one of several takes nothing back. ErrBehind, ErrDisagree: which
// block is there is open.
func (s *Source) Canonical(ctx context.Context, n uint64, known common.Hash) (Header, error) {
	list, oneWord, err := s.canonical(ctx, vote{}, n)
	if err == nil && list[0].Hash != known && !list[0].Proved && len(s.nodes) > 1 {
		list, oneWord, err = s.shown(ctx, vote{}, []uint64{n}) // its parents are one endpoint's word
	}

	if err != nil {
		return Header{}, err
	}

	h := list[0]
	switch {
	case known == (common.Hash{}) || h.Hash == known:
		return h, nil
	case oneWord:
		return h, fmt.Errorf("%w: the only endpoint that shows block %d now has %s there, and not %s: another one of "+
			"RPC_URLS has to say so too", ErrDisagree, n, h.Hash, known)
	case s.outlook.agreement.Believes():
		if err := s.left(ctx, n, known); err != nil {
			return h, err
		}
	}

	if list, err = s.buried(ctx, n, n); err == nil && list[0].Hash != h.Hash {
		err = fmt.Errorf("%w: block %d is %s and %s, the chain is moving", ErrDisagree, n, h.Hash, list[0].Hash)
	}

	return h, err
}

// two puts a question to one endpoint after the other until two answer the same. One answer is enough that is
// proved, and of an endpoint with a word that counts; and of one while every other has thrown away what is asked for:
// what it lacks says nothing. oneWord: one of them may have it again. ErrDisagree: no two say the same.
func two[T any](ctx context.Context, s *Source, need uint64, avoid *endpoint.Node,
	question func(context.Context, *endpoint.Node) (answer T, proved bool, err error), same func(a, b T) bool,
	counts func(*endpoint.Node) bool, lacks func(*endpoint.Node) (lost, forGood bool)) (found T, oneWord bool,
	err error) {
	var heard []T
	var by []*endpoint.Node
	err = s.ask(ctx, need, avoid, func(ctx context.Context, n *endpoint.Node) error {
		answer, proved, err := question(ctx, n)
		if err != nil {
			return err
		}

		found = answer
		seconded := slices.ContainsFunc(heard, func(other T) bool { return same(other, answer) })
		if proved || seconded || counts(n) {
			for i, other := range heard {
				if !same(other, answer) {
					by[i].Disagrees()
				}
			}

			return nil
		}

		heard, by = append(heard, answer), append(by, n)

		return fmt.Errorf("%w: no other endpoint says the same of block %d", ErrDisagree, need)
	})
	if err == nil || len(heard) != 1 || lacks == nil {
		return found, false, err
	}

	for _, n := range s.nodes {
		if lost, forGood := lacks(n); n != by[0] {
			if !lost {
				return found, false, err
			}

			oneWord = oneWord || !forGood
		}
	}

	return found, oneWord, nil
}

// Prove returns the header at a height that is the chain's, and the logs of its block, proved by it. ErrUnproved:
// the chain's blocks prove nothing. ErrWithheld: others of them do. ErrDisagree, ErrBehind: which
// block is there is open.
func (s *Source) Prove(ctx context.Context, n uint64, f *Filter) (h Header, logs []types.Log, err error) {
	list, oneWord, err := s.canonical(ctx, vote{}, n)
	if err != nil {
		return h, nil, err
	}

	if h = list[0]; oneWord {
		return h, nil, fmt.Errorf("%w: only one endpoint shows block %d now, and its word repairs nothing", ErrDisagree, n)
	}

	if !h.Proved {
		return h, nil, fmt.Errorf("%w: block %d is none that hashes as Ethereum's do", ErrUnproved, n)
	}

	said, err := s.readBlock(ctx, h, query{filter: f})
	if err == nil && !said.proved {
		unproved := ErrUnproved
		if s.laws.Demanded() {
			unproved = ErrWithheld
		}

		err = fmt.Errorf("no endpoint proves the receipts of block %d: %w", n, unproved)
	}

	return h, said.logs, err
}

// left makes sure that the chain has left a block. Behind one URL may be machines that are on two branches
// for hours: while one of them has the newest head and the block, what was processed stays. Several
// are asked at a time, since a balancer may give each connection its own machine.
func (s *Source) left(ctx context.Context, n uint64, known common.Hash) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(endpoint.RangesInFlight)
	for range leftTries {
		g.Go(func() error {
			var still error
			err := s.ask(ctx, n, nil, func(ctx context.Context, e *endpoint.Node) error {
				keeps, head, err := e.Keeps(ctx, n, known)
				if keeps && head.Number+nearHead >= s.outlook.View().Head {
					still = fmt.Errorf("%w: some of %s still have block %s", ErrDisagree, e.Name(), known)
				}

				return err
			})
			if errors.Is(err, ErrBehind) { // that one has no say
				err = nil
			}

			return cmp.Or(still, err)
		})
	}

	return g.Wait()
}

// Branch returns the headers of blocks on the branch of a later block, headersAtOnce of them at a time: as one
// answer of an endpoint has them and that block, if it takes so many requests in a batch; by its number alone
// where that block has no hash. ErrDisagree: the endpoint that answers has another one there.
func (s *Source) Branch(ctx context.Context, tip Header, numbers ...uint64) (list []Header, err error) {
	for some := range slices.Chunk(numbers, headersAtOnce) {
		var headers []Header
		err := s.ask(ctx, tip.Number, nil, func(ctx context.Context, e *endpoint.Node) (err error) {
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
