package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// longestWait is how long a question waits for an endpoint that is paused. Longer is up to the caller, who knows what else there is to do.
const longestWait = 5 * time.Second

// order is the endpoints that may be asked for a block now, best first: those that are up, have the block, and are not to be avoided; among
// equals, as configured. Without any, it says how long until there is one.
func (s *Source) order(need uint64, avoid *endpoint) (list []*endpoint, wait time.Duration) {
	type candidate struct {
		e    *endpoint
		rank int
	}
	var found []candidate
	now := s.now()
	for _, e := range s.endpoints {
		pause := e.pause(now, s.servedBut(e, now))
		e.mu.Lock()
		c := candidate{e: e}
		if e == avoid {
			c.rank += 1
		}
		if e.head.Number < need {
			c.rank += 2
		}
		if !e.up {
			c.rank += 4
		}
		e.mu.Unlock()
		if pause > 0 {
			if wait == 0 || pause < wait {
				wait = pause
			}
			continue
		}
		found = append(found, c)
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	for _, c := range found {
		list = append(list, c.e)
	}
	return list, wait
}

// ask puts a question about a block to one endpoint after the other until one answers. The error is all of theirs.
func (s *Source) ask(ctx context.Context, need uint64, avoid *endpoint, question func(context.Context, *endpoint) error) error {
	var errs []error
	waited := false
	for {
		list, wait := s.order(need, avoid)
		for _, e := range list {
			err := question(ctx, e)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil {
				return nil
			}
			if errors.Is(err, ErrBehind) {
				err = e.claimed(need, err)
			}
			if classify(err) == rejected {
				e.failed(ctx, s.secrets.Error(err))
			}
			errs = append(errs, fmt.Errorf("%s: %w", e.name, err))
		}
		if len(list) > 0 || waited || wait == 0 || wait > longestWait {
			if len(errs) == 0 {
				return s.unavailable(wait)
			}
			return errors.Join(errs...)
		}
		waited = true
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// unavailable says why no endpoint is to be asked for a while.
func (s *Source) unavailable(wait time.Duration) error {
	errs := []error{fmt.Errorf("%w for %s", ErrUnavailable, wait.Round(time.Millisecond))}
	for _, st := range s.Endpoints() {
		if st.LastError != "" {
			errs = append(errs, fmt.Errorf("%s: %s", st.Name, st.LastError))
		}
	}
	return errors.Join(errs...)
}

// farBehind is how many blocks the nodes behind one URL may be apart.
const farBehind = 64

// claimed judges that an endpoint does not have a block. Far below the head that it told, that is no lag: the head was invented, or the node has
// thrown its history away.
func (e *endpoint) claimed(n uint64, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.head.Number < n+farBehind {
		return err
	}
	return fmt.Errorf("%w: it told of block %d and does not have block %d", errInvalid, e.head.Number, n)
}

// Canonical returns the header at a height on which the endpoints agree that have it; those that have not, or do not answer, have no say. With three or
// more, a majority decides. ErrBehind: none has it. ErrDisagree: no majority.
func (s *Source) Canonical(ctx context.Context, n uint64) (Header, error) {
	list, wait := s.order(n, nil)
	type vote struct {
		h   Header
		err error
	}
	votes := make([]vote, len(list))
	var wg sync.WaitGroup
	for i, e := range list {
		wg.Go(func() { votes[i].h, votes[i].err = e.vote(ctx, n) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return Header{}, context.Cause(ctx)
	}
	var errs []error
	count := map[common.Hash]int{}
	total := 0
	var best Header
	for i, v := range votes {
		if v.err != nil {
			if classify(v.err) == rejected {
				list[i].failed(ctx, v.err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", list[i].name, v.err))
			continue
		}
		total++
		if count[v.h.Hash]++; count[v.h.Hash] > count[best.Hash] {
			best = v.h
		}
	}
	switch {
	case total == 0 && len(errs) == 0:
		return Header{}, fmt.Errorf("header of block %d: %w", n, s.unavailable(wait))
	case total == 0:
		return Header{}, fmt.Errorf("header of block %d: %w", n, errors.Join(errs...))
	case len(count) == 1:
		return best, nil
	}
	for i, v := range votes {
		if v.err == nil && v.h.Hash != best.Hash {
			s.metrics.disagreements.WithLabelValues(list[i].name).Inc()
		}
	}
	if 2*count[best.Hash] > total {
		return best, nil
	}
	return Header{}, fmt.Errorf("header of block %d: %w: %d hashes from %d endpoints", n, ErrDisagree, len(count), total)
}

// vote is the header at a height, from an endpoint whose word may roll the chain back. One that has lied, and is asked only because no other
// serves, has to show first that it answers truly again: a header by itself cannot be tested.
func (e *endpoint) vote(ctx context.Context, n uint64) (Header, error) {
	asked := e.s.now()
	h, err := e.header(ctx, n)
	if err != nil || !e.doubtful(asked) {
		return h, err
	}
	if err := e.whole(ctx, known{Header: h}); err != nil {
		return Header{}, err
	}
	e.honest(asked)
	return h, nil
}

// header asks for the block at a height.
func (e *endpoint) header(ctx context.Context, n uint64) (Header, error) {
	q := byNumber(n)
	if err := e.do(ctx, q); err != nil {
		return Header{}, err
	}
	return q.block(n)
}

// block decodes a header and tests that it is the one that was asked for.
func (c *call) block(n uint64) (h Header, err error) {
	if err := c.decode(&h); err != nil {
		return h, c.meaning(err)
	}
	if h.Number != n {
		return h, fmt.Errorf("%w: block %d instead of %d", errInvalid, h.Number, n)
	}
	return h, nil
}

// meaning marks a node's words for not having a block.
func (c *call) meaning(err error) error {
	if err != nil && classify(err) == lagging && !errors.Is(err, ErrBehind) {
		return fmt.Errorf("%w: %w", ErrBehind, err)
	}
	return err
}

// served remembers which endpoint answered for which range, so that a second reading can be had from another.
type served struct {
	mu   sync.Mutex
	list []servedRange
}

type servedRange struct {
	from, to uint64
	by       *endpoint
}

// servedRanges bounds the memory: at 10,000 blocks a range, that is ten years of Ethereum. Neighbours are joined.
const servedRanges = 4096

func (s *served) note(from, to uint64, by *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.list); n > 0 {
		if last := &s.list[n-1]; last.by == by && from <= last.to+1 && to+1 >= last.from {
			last.from, last.to = min(last.from, from), max(last.to, to)
			return
		}
	}
	if len(s.list) == servedRanges {
		s.list = slices.Delete(s.list, 0, servedRanges/4)
	}
	s.list = append(s.list, servedRange{from, to, by})
}

// by returns who last answered for a range or part of it; nil: unknown.
func (s *served) by(from, to uint64) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range slices.Backward(s.list) {
		if r.from <= to && from <= r.to {
			return r.by
		}
	}
	return nil
}
