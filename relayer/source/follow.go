package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
	// lookAround is how often an endpoint that is kept out, or in reserve, looks whether it is needed.
	// That costs no request.
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
	var looked time.Time // when the last look ended; zero: there was none
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}

		pause := n.Pause(s.servedBut(n))
		if pause > 0 {
			n.Retire() // one that is kept out only because others serve is not in use
		} else if subscribes {
			subscribes = s.listen(ctx, n)
		} else if pause = s.nextLook(n, looked).Sub(s.now()); pause <= 0 {
			s.poll(ctx, n)
			looked = s.now()
		}

		timer.Reset(min(max(pause, 0), lookAround)) // a pause ends early when the others end
	}
}

// nextLook is when to look at an endpoint's head again. Of the one that is read from, PollInterval
// is the longest pause once a block is to be expected, as the newest times between blocks say; where
// blocks come faster, it is a third of their mean time. One in reserve is looked at seldom, unless it failed.
func (s *Source) nextLook(n *node.Node, looked time.Time) time.Time {
	longest := s.cfg.PollInterval
	mean, due := s.outlook.rhythm()
	switch {
	case !n.Serves():
		return looked.Add(longest)
	case n != s.lead() && s.View().Ready:
		return looked.Add(min(max(2*longest, 2*mean), max(reserveSeldom, 2*longest)))
	case mean == 0:
		return looked.Add(longest)
	case s.decides():
		return looked.Add(max(longest, min(mean, tagsEvery))) // what is processed moves seldom
	}

	if soonest := looked.Add(min(max(mean/3, longest/4), longest)); soonest.After(due) {
		return soonest
	}

	return due
}

// decides says whether the endpoints' tags decide what is processed.
func (s *Source) decides() bool { return s.cfg.Finality == Safe || s.cfg.Finality == Finalized }

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
	if s.decides() && n == s.lead() || s.now().Sub(n.Claim().Tagged) >= s.tagsPause() {
		calls = append(calls, s.tagCalls()...)
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

// tagCalls ask for what is final, and for what is safe where that decides.
func (s *Source) tagCalls() []*rpc.Call {
	calls := []*rpc.Call{rpc.ByTag("finalized")}
	if s.cfg.Finality == Safe {
		calls = append(calls, rpc.ByTag("safe"))
	}

	return calls
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

	return head, s.tagged(ctx, n, calls[1:])
}

// tagged takes in the answers to tagCalls. Where the tags decide and have moved, the others that are
// in use are asked, and all take effect together, once all say so: blocks that only one calls final
// would be read one by one. They wait for tagsEvery at most, however often the tags move meanwhile:
// an endpoint that is always behind delays the others and does not stop them.
func (s *Source) tagged(ctx context.Context, n *node.Node, calls []*rpc.Call) error {
	now, err := s.tagsOf(ctx, n, calls)
	if err != nil {
		return err
	}

	said := []tags{now}
	if before := n.Claim(); s.decides() && (before.Final != now.final || before.Safe != now.safe) {
		said = append(said, s.askTags(ctx, n)...)
	}

	o := &s.outlook
	o.mu.Lock() // no View of a part of them
	defer o.mu.Unlock()
	behind := slices.ContainsFunc(said, func(t tags) bool { return t.final < now.final || t.safe < now.safe })
	if behind && o.waiting.IsZero() {
		o.waiting = s.now()
	}

	if behind && s.now().Sub(o.waiting) < tagsEvery {
		return nil // the next look asks again
	}

	o.waiting = time.Time{}
	for _, t := range said {
		t.of.Tags(t.final, t.safe)
	}

	return nil
}

// tags are what a node calls final and safe.
type tags struct {
	of          *node.Node
	final, safe uint64
}

// tagsOf reads the answers to tagCalls. A node that does not know a tag answers with an error or null.
func (s *Source) tagsOf(ctx context.Context, n *node.Node, calls []*rpc.Call) (tags, error) {
	var said [2]uint64
	for i, c := range calls {
		var h Header
		err := c.Decode(&h)
		said[i] = h.Number
		if err != nil && []string{Finalized, Safe}[i] == s.cfg.Finality {
			n.Blame(ctx, fmt.Errorf("it does not know the %s block: wait for it, or set FINALITY=confirmations: %w",
				s.cfg.Finality, err))
			return tags{}, err
		}
	}

	return tags{n, said[0], said[1]}, nil
}

// askTags asks all that are in use but n.
func (s *Source) askTags(ctx context.Context, n *node.Node) (said []tags) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, other := range s.nodes {
		if other == n || !other.Serves() {
			continue
		}

		wg.Go(func() {
			calls := s.tagCalls()
			if other.Do(ctx, calls...) != nil {
				return
			}

			if t, err := s.tagsOf(ctx, other, calls); err == nil {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, t)
			}
		})
	}

	wg.Wait()

	return said
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
			if calls := s.tagCalls(); s.tagsDue(n) && n.Do(ctx, calls...) == nil && s.tagged(ctx, n, calls) == nil {
				s.refresh(ctx)
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
	if s.decides() && n == s.lead() { // the others are asked when its tags have moved
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
