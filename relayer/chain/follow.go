package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

const (
	// Safe and finalized are asked for once in so many blocks where they do not decide what is
	// processed, an epoch of Ethereum's: at its end they move; but not more often than tagsEvery,
	// nor less than tagsSeldom.
	tagsBlocks = 32
	tagsSeldom = 10 * time.Minute
	// lookAround is how often an endpoint that is kept out, or in reserve, looks whether it is needed.
	// That costs no request.
	lookAround = 500 * time.Millisecond
	// silentLooks are looks in a row that found a block which was not announced, after which a
	// subscription counts as dead.
	silentLooks = 3
	// reserveSeldom bounds the pause between two looks at an endpoint in reserve.
	reserveSeldom = 30 * time.Second
	// subscribeSeldom bounds the pause, longer each time, after which an endpoint is asked again to announce its head,
	// where that has brought no block since the last time. It is looked at meanwhile.
	subscribeSeldom = 10 * time.Minute
	// sayDaily is how often the log repeats what an endpoint hardly changes.
	sayDaily = 24 * time.Hour
)

// errSilent means that a subscription counts as dead, and is made again over a new connection.
var errSilent = errors.New("it announces no blocks any more")

// errStill means that an endpoint answers and its head does not move.
var errStill = errors.New("it tells of no new block: asking over new connections")

// follow keeps up with one endpoint's head until ctx ends: by its announcements where it makes them, and by
// looks. Looks at the head can wait for what is read at once.
func (s *Source) follow(ctx context.Context, n *endpoint.Node) {
	ctx = endpoint.Later(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	sub, missed := &rpc.Subscription{}, 0 // announces nothing
	again := backoff.NewExponentialBackOff(backoff.WithInitialInterval(lookAround),
		backoff.WithMaxInterval(subscribeSeldom), backoff.WithMaxElapsedTime(0))
	var refused logging.Repeats
	var subscribes time.Time // when it may be asked to announce its head the next time
	var heard time.Time      // when the last look ended, or a block was announced; zero: there was none
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-sub.Heads:
			if n.Authentic(h) {
				s.announced(ctx, n, h)
			} else {
				s.poll(ctx, n) // there are nodes whose announcements lack parts of the header
			}

			again.Reset()
			missed, heard = 0, s.cfg.Now()

			continue
		case <-sub.Done:
			n.Blame(ctx, sub.Err())
			s.outlook.refresh(ctx)
			sub = &rpc.Subscription{}
		case <-timer.C:
		}

		pause := n.Pause(s.servedBut(n))
		if pause > 0 {
			n.Retire() // one that is kept out only because others serve is not in use
		} else if n.WebSocket() && sub.Done == nil && !s.cfg.Now().Before(subscribes) {
			if sub = s.subscribe(ctx, n, &refused); sub.Done != nil {
				missed, heard = 0, s.cfg.Now()
			}

			subscribes = s.cfg.Now().Add(again.NextBackOff())
		} else if pause = s.nextLook(n, sub.Done != nil, heard).Sub(s.cfg.Now()); pause <= 0 {
			before := n.Claim().Head.Number
			s.poll(ctx, n)
			heard = s.cfg.Now()
			if n.Claim().Head.Number > before {
				missed++
			}

			// Subscriptions have been seen to go silent without the connection breaking.
			if missed >= silentLooks && sub.Done != nil {
				n.Blame(ctx, errSilent)
				sub.End()
				sub = &rpc.Subscription{}
			}
		}

		timer.Reset(min(max(pause, 0), lookAround)) // a pause ends early when the others end
	}
}

// nextLook is when to look at an endpoint's head again. Of the one that is read from, PollInterval
// is the longest pause once a block is to be expected, as the newest times between blocks say; where
// blocks come faster, it is a third of their mean time. One in reserve is looked at seldom, unless it failed.
// Of one that announces blocks, silence is a cause to look: half as long again as blocks take, and twice
// as jittered.
func (s *Source) nextLook(n *endpoint.Node, announces bool, looked time.Time) time.Time {
	longest := s.cfg.PollInterval
	mean, due := s.outlook.rhythm()
	switch {
	case announces && mean == 0:
		return looked.Add(4 * longest)
	case announces:
		return looked.Add(max(mean*3/2, longest))
	case !n.Serves():
		return looked.Add(longest)
	case n != s.lead() && s.outlook.View().Ready && !s.outlook.waits():
		return looked.Add(min(max(2*longest, 2*mean), max(reserveSeldom, 2*longest)))
	case mean == 0:
		return looked.Add(longest)
	case s.cfg.tagsDecide():
		return looked.Add(max(longest, min(mean, tagsEvery))) // what is processed moves seldom
	}

	if soonest := looked.Add(s.betweenLooks(mean)); soonest.After(due) {
		return soonest
	}

	return due
}

// betweenLooks is how long an endpoint is not looked at after a look, given the mean time between blocks.
func (s *Source) betweenLooks(mean time.Duration) time.Duration {
	return min(max(mean/3, s.cfg.PollInterval/4), s.cfg.PollInterval)
}

// poll asks for the head, and for the tags when they are due.
func (s *Source) poll(ctx context.Context, n *endpoint.Node) {
	calls := []*rpc.Call{rpc.ByTag("latest")}
	if s.tagsDue(n) {
		calls = append(calls, s.tagCalls()...)
	}

	var head Header
	err := n.Do(ctx, calls...)
	if err == nil {
		if err = calls[0].Decode(&head); err != nil {
			n.Blame(ctx, err)
		}
	}

	if err == nil && len(calls) > 1 {
		err = s.tagged(ctx, n, head.Number, calls[1:])
	}

	switch {
	case err == nil:
		s.arrived(ctx, n, head)
		if n.StandsStill(s.outlook.patience()) {
			n.Blame(ctx, errStill)
			n.Close() // its name may lead to another machine by now
		}
	case ctx.Err() == nil:
		s.outlook.refresh(ctx)
	}
}

// tagCalls ask for what is final, and for what is safe where that decides.
func (s *Source) tagCalls() []*rpc.Call {
	calls := []*rpc.Call{rpc.ByTag("finalized")}
	if s.cfg.Finality == Safe {
		calls = append(calls, rpc.ByTag("safe"))
	}

	return calls
}

// tagged notes the answers to tagCalls. Where the tags decide and have moved, the others that are
// in use are asked too: it takes two. head is the node's.
func (s *Source) tagged(ctx context.Context, n *endpoint.Node, head uint64, calls []*rpc.Call) error {
	before := n.Claim()
	if err := s.noteTags(ctx, n, head, calls); err != nil {
		return err
	}

	if now := n.Claim(); !s.cfg.tagsDecide() || before.Final.Number == now.Final.Number &&
		before.Safe.Number == now.Safe.Number {
		return nil
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	for _, other := range s.nodes {
		head := other.Claim().Head.Number
		if other == n || head == 0 || !other.Serves() {
			continue
		}

		wg.Go(func() {
			if calls := s.tagCalls(); other.Do(ctx, calls...) == nil {
				_ = s.noteTags(ctx, other, head, calls)
			}
		})
	}

	return nil
}

// noteTags notes what a node calls final and safe. A node that does not know a tag answers with an error or null.
// Machines behind one URL may be apart, and what one calls final be above another's head; but not by far.
func (s *Source) noteTags(ctx context.Context, n *endpoint.Node, head uint64, calls []*rpc.Call) error {
	var said [2]Header
	for i, c := range calls {
		tag := []string{Finalized, Safe}[i]
		err := c.Decode(&said[i])
		switch {
		case err != nil && tag == s.cfg.Finality:
			err = fmt.Errorf("it does not know the %s block: wait for it, or set FINALITY=confirmations: %w", tag, err)
		case said[i].Number > head+s.outlook.farBehind():
			err = fmt.Errorf("%w: it calls block %d %s, and its head is %d", rpc.ErrInvalid, said[i].Number, tag, head)
		default:
			continue
		}

		n.Blame(ctx, err)

		return err
	}

	n.Tags(said[0], said[1])

	return nil
}

// subscribe has an endpoint announce its head, and looks at it once. Some nodes have no subscriptions.
func (s *Source) subscribe(ctx context.Context, n *endpoint.Node, refused *logging.Repeats) *rpc.Subscription {
	sub, err := n.Subscribe(ctx)
	if err == nil {
		s.poll(ctx, n)
		return sub
	}

	_, said := errors.AsType[*rpc.Error](err)
	switch {
	case ctx.Err() != nil:
	case !said:
		s.outlook.refresh(ctx)
	case !refused.Lately(err, s.cfg.Now(), sayDaily):
		s.cfg.Logger.WarnContext(ctx, "endpoint refuses to announce its head, polling instead",
			slog.String("endpoint", n.Name()), slog.Any("err", err))
	}

	return &rpc.Subscription{}
}

// announced notes a block that an endpoint has announced, and asks for the tags when they are due.
func (s *Source) announced(ctx context.Context, n *endpoint.Node, h Header) {
	s.arrived(ctx, n, h)
	if n.Pause(s.servedBut(n)) > 0 || !s.tagsDue(n) {
		return // an endpoint that is not to be asked may announce blocks all the same
	}

	if calls := s.tagCalls(); n.Do(ctx, calls...) == nil && s.tagged(ctx, n, h.Number, calls) == nil {
		s.outlook.refresh(ctx)
	}
}

// tagsDue reports whether to ask an endpoint for the tags.
func (s *Source) tagsDue(n *endpoint.Node) bool {
	mean, _ := s.outlook.rhythm()
	pause := min(max(tagsBlocks*mean, tagsEvery), tagsSeldom)
	if s.cfg.tagsDecide() && n == s.lead() { // the others are asked when its tags have moved
		pause = min(max(s.cfg.PollInterval, mean*3/4), tagsEvery)
	}

	return s.cfg.Now().Sub(n.Claim().Tagged) >= pause
}

// arrived notes an endpoint's head.
func (s *Source) arrived(ctx context.Context, n *endpoint.Node, h Header) {
	// A head far above all that is known, if it was invented, would have every block below it count as confirmed, and
	// final, for viewHold.
	leaps := s.outlook.leaps(h.Number)
	if leaps {
		if err := n.ShowsParent(ctx, h); err != nil {
			if rpc.Classify(err) == rpc.Invalid {
				n.Blame(ctx, err)
			}

			s.outlook.refresh(ctx)

			return
		}
	}

	// The ring first: another endpoint's refresh may make a View of this head, and its readers then look at the ring.
	if !s.outlook.View().Ready || !leaps {
		s.ring.add(h)
	}

	n.Claims(h)
	s.outlook.agreement.heard(ctx, n, h)
	s.outlook.refresh(ctx)
	if height, ask := s.outlook.agreement.Strays(n, h.Number); ask {
		s.asks(ctx, n, height)
	}

	s.meet(ctx, n, h)
}

// meet asks other endpoints for a block that one has reported, where blocks wait for two to say the same: endpoints
// that are looked at now and then report other heights. They are asked as often as they would be looked at, and not as
// often as that one reports blocks.
func (s *Source) meet(ctx context.Context, n *endpoint.Node, h Header) {
	for _, other := range s.nodes {
		if tip, _ := s.outlook.agreement.Tip(); !s.outlook.waits() || h.Number <= tip.number {
			return
		}

		if c := other.Claim(); other != n && c.Serves && c.Head.Number >= h.Number && s.mayMeet(other) {
			s.asks(ctx, other, h.Number)
		}
	}
}

// mayMeet reports whether to ask an endpoint for a block that another one has reported, and notes that it is asked.
func (s *Source) mayMeet(n *endpoint.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mean, _ := s.outlook.rhythm()
	if s.cfg.Now().Before(s.met[n].Add(s.betweenLooks(mean))) {
		return false
	}

	s.met[n] = s.cfg.Now()

	return true
}

// asks has an endpoint show its block at a height.
func (s *Source) asks(ctx context.Context, n *endpoint.Node, height uint64) {
	if h, err := n.Header(ctx, height); err == nil {
		s.outlook.agreement.heard(ctx, n, h)
		s.outlook.refresh(ctx)
	}
}
