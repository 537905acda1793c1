package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/node"
	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

const (
	// Safe and finalized are asked for once in so many blocks where they do not decide what is
	// processed, an epoch of Ethereum's, at whose end they move; but not more often than tagsEvery,
	// nor less than tagsSeldom.
	tagsBlocks            = 32
	tagsEvery, tagsSeldom = 12 * time.Second, 10 * time.Minute
	// lookAround is how often an endpoint that is kept out looks whether it is needed. That costs no request.
	lookAround = 500 * time.Millisecond
	// silentLooks are looks in a row that found a block which was not announced, after which a
	// subscription counts as dead.
	silentLooks = 3
	// reserveSeldom bounds the pause between two looks at an endpoint in reserve.
	reserveSeldom = 30 * time.Second
)

// follow keeps up with one endpoint's head until ctx ends. Looks at the head can wait for what is read at once.
func (s *Source) follow(ctx context.Context, n *node.Node) {
	ctx = node.Later(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	subscribes := n.WebSocket()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}

		if pause := n.Pause(s.servedBut(n)); pause > 0 {
			n.Retire()                          // one that is kept out only because others serve is not in use
			timer.Reset(min(pause, lookAround)) // it ends early when the others end
			continue
		}

		if subscribes {
			subscribes = s.listen(ctx, n)
			timer.Reset(0)
			continue
		}

		s.poll(ctx, n)
		timer.Reset(s.nextLook(n))
	}
}

// nextLook is the pause until the next look at an endpoint's head. Of the one that is read from,
// PollInterval is the longest; where blocks come faster, it is a quarter of their mean time, once
// three quarters have passed since the last. One in reserve is looked at seldom.
func (s *Source) nextLook(n *node.Node) time.Duration {
	longest := s.cfg.PollInterval
	mean, since := s.outlook.rhythm()
	decides := s.cfg.Finality == Safe || s.cfg.Finality == Finalized
	switch {
	case n != s.lead() && s.View().Ready:
		return min(max(2*longest, 2*mean), max(reserveSeldom, 2*longest))
	case mean == 0:
		return longest
	case decides:
		return max(longest, min(mean, tagsEvery)) // what is processed moves seldom
	}

	step := min(max(mean/4, longest/4), longest)

	return min(max(step, mean*3/4-s.now().Sub(since)), longest)
}

// lead is the endpoint that is read from.
func (s *Source) lead() *node.Node {
	for _, n := range s.nodes {
		if n.Serves() {
			return n
		}
	}

	return s.nodes[0]
}

// poll asks for the head, and for the tags when they are due.
func (s *Source) poll(ctx context.Context, n *node.Node) {
	calls := []*rpc.Call{rpc.ByTag("latest")}
	decides := (s.cfg.Finality == Safe || s.cfg.Finality == Finalized) && n == s.lead()
	if decides || s.now().Sub(n.Claim().Tagged) >= s.tagsPause() {
		calls = append(calls, rpc.ByTag("finalized"))
		if s.cfg.Finality == Safe {
			calls = append(calls, rpc.ByTag("safe"))
		}
	}

	head, err := s.head(ctx, n, calls)
	switch {
	case err == nil:
		s.arrived(ctx, n, head)
	case ctx.Err() == nil:
		s.refresh(ctx)
	}
}

func (s *Source) tagsPause() time.Duration {
	mean, _ := s.outlook.rhythm()
	return min(max(tagsBlocks*mean, tagsEvery), tagsSeldom)
}

// head sends the calls, the first of which asks for the head and the others for the tags, and takes those in.
func (s *Source) head(ctx context.Context, n *node.Node, calls []*rpc.Call) (head Header, err error) {
	if err := n.Do(ctx, calls...); err != nil {
		return head, err
	}

	if err := calls[0].Decode(&head); err != nil {
		n.Blame(ctx, err)
		return head, err
	}

	if len(calls) == 1 {
		return head, nil
	}

	// A node that does not know the tags answers with an error or null.
	var tags [2]uint64
	for i, c := range calls[1:] {
		var h Header
		err := c.Decode(&h)
		tags[i] = h.Number
		if err != nil && []string{Finalized, Safe}[i] == s.cfg.Finality {
			n.Blame(ctx, fmt.Errorf("it does not know the %s block: wait for it, or set FINALITY=confirmations: %w",
				s.cfg.Finality, err))
			return head, err
		}
	}

	n.Tags(tags[0], tags[1])

	return head, nil
}

// listen follows the head by subscription until the connection ends. It says whether to try that
// again: some nodes have no subscriptions.
func (s *Source) listen(ctx context.Context, n *node.Node) bool {
	sub, err := n.Subscribe(ctx)
	if refused, is := errors.AsType[*rpc.Error](err); is && rpc.Classify(err) != rpc.RateLimited {
		s.log.WarnContext(ctx, "endpoint has no subscriptions, polling instead", slog.String("endpoint", n.Name()),
			slog.Any("err", refused))
		return false
	}

	if err != nil {
		if ctx.Err() == nil {
			s.refresh(ctx)
		}

		return true
	}

	s.poll(ctx, n)
	look := time.NewTimer(s.quiet())
	defer look.Stop()
	for missed := 0; ; look.Reset(s.quiet()) {
		select {
		case <-ctx.Done():
			return true
		case <-sub.Done:
			n.Blame(ctx, rpc.ErrDisconnected)
			s.refresh(ctx)
			return true
		case h := <-sub.Heads:
			missed = 0
			s.arrived(ctx, n, h)
			if s.tagsDue(n) {
				s.poll(ctx, n)
			}
		case <-look.C:
			// Subscriptions have been seen to go silent without the connection breaking.
			before := n.Claim().Head
			s.poll(ctx, n)
			if n.Claim().Head.Number > before.Number {
				missed++
			}

			if missed == silentLooks {
				s.log.WarnContext(ctx, "endpoint announces no blocks any more, connecting again", slog.String("endpoint", n.Name()))
				sub.End()
				return true
			}
		}
	}
}

// tagsDue says whether to ask an endpoint that announces its head for the tags.
func (s *Source) tagsDue(n *node.Node) bool {
	mean, _ := s.outlook.rhythm()
	since := s.now().Sub(n.Claim().Tagged)
	if s.cfg.Finality == Safe || s.cfg.Finality == Finalized {
		return since >= min(max(s.cfg.PollInterval, mean*3/4), tagsEvery)
	}

	return since >= s.tagsPause()
}

// quiet is for how long no announcement of a block is no cause to look: half as long again as
// blocks take, and twice as jittered.
func (s *Source) quiet() time.Duration {
	mean, _ := s.outlook.rhythm()
	if mean == 0 {
		return 4 * s.cfg.PollInterval
	}

	return max(mean*3/2, s.cfg.PollInterval)
}

// arrived notes an endpoint's head.
func (s *Source) arrived(ctx context.Context, n *node.Node, h Header) {
	// The ring first: another endpoint's refresh may make a View of this head, whose readers then look at the ring.
	s.ring.head(h, n)
	if node.Telling(&h.Bloom) {
		s.blooms.Store(true)
	}

	n.Claims(h)
	s.refresh(ctx)
}
