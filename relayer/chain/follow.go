package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
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
)

// errSilent means that a subscription counts as dead, and is made again over a new connection.
var errSilent = errors.New("it announces no blocks any more")

// errStill means that an endpoint answers and its head does not move.
var errStill = errors.New("it tells of no new block: asking over new connections")

// follower keeps up with the heads of the endpoints. It changes nothing but the ring, the outlook and
// what the nodes are known to claim.
type follower struct {
	cfg     *Config
	pool    *pool
	outlook *outlook
	ring    *ring
}

// follow keeps up with one endpoint's head until ctx ends: by its announcements where it makes them, and by
// looks. Looks at the head can wait for what is read at once.
func (f *follower) follow(ctx context.Context, n *endpoint.Node) {
	ctx = rpc.Later(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	subscribes, missed := n.WebSocket(), 0
	sub := &rpc.Subscription{} // announces nothing
	var heard time.Time        // when the last look ended, or a block was announced; zero: there was none
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-sub.Heads:
			if n.Authentic(h) {
				f.announced(ctx, n, h)
			} else {
				f.poll(ctx, n) // there are nodes whose announcements lack parts of the header
			}

			missed, heard = 0, f.cfg.Now()

			continue
		case <-sub.Done:
			n.Blame(ctx, sub.Err())
			f.outlook.refresh(ctx)
			sub = &rpc.Subscription{}
		case <-timer.C:
		}

		pause := n.Pause(f.pool.servedBut(n))
		if pause > 0 {
			n.Retire() // one that is kept out only because others serve is not in use
		} else if subscribes && sub.Done == nil {
			if sub, subscribes = f.subscribe(ctx, n); sub.Done != nil {
				missed, heard = 0, f.cfg.Now()
			}
		} else if pause = f.nextLook(n, sub.Done != nil, heard).Sub(f.cfg.Now()); pause <= 0 {
			before := n.Claim().Head.Number
			f.poll(ctx, n)
			heard = f.cfg.Now()
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
func (f *follower) nextLook(n *endpoint.Node, announces bool, looked time.Time) time.Time {
	longest := f.cfg.PollInterval
	mean, due := f.outlook.rhythm()
	switch {
	case announces && mean == 0:
		return looked.Add(4 * longest)
	case announces:
		return looked.Add(max(mean*3/2, longest))
	case !n.Serves():
		return looked.Add(longest)
	case n != f.pool.lead() && f.outlook.View().Ready && !f.outlook.waits():
		return looked.Add(min(max(2*longest, 2*mean), max(reserveSeldom, 2*longest)))
	case mean == 0:
		return looked.Add(longest)
	case f.cfg.tagsDecide():
		return looked.Add(max(longest, min(mean, tagsEvery))) // what is processed moves seldom
	}

	if soonest := looked.Add(min(max(mean/3, longest/4), longest)); soonest.After(due) {
		return soonest
	}

	return due
}

// poll asks for the head, and for the tags when they are due.
func (f *follower) poll(ctx context.Context, n *endpoint.Node) {
	calls := []*rpc.Call{rpc.ByTag("latest")}
	if f.tagsDue(n) {
		calls = append(calls, f.tagCalls()...)
	}

	head, err := f.head(ctx, n, calls)
	switch {
	case err == nil:
		f.arrived(ctx, n, head)
		if n.StandsStill(f.outlook.patience()) {
			n.Blame(ctx, errStill)
			n.Close() // its name may lead to another machine by now
		}
	case ctx.Err() == nil:
		f.outlook.refresh(ctx)
	}
}

// tagCalls ask for what is final, and for what is safe where that decides.
func (f *follower) tagCalls() []*rpc.Call {
	calls := []*rpc.Call{rpc.ByTag("finalized")}
	if f.cfg.Finality == Safe {
		calls = append(calls, rpc.ByTag("safe"))
	}

	return calls
}

// head sends the calls, the first for the head and the others for the tags, and notes those.
func (f *follower) head(ctx context.Context, n *endpoint.Node, calls []*rpc.Call) (head Header, err error) {
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

	return head, f.tagged(ctx, n, head.Number, calls[1:])
}

// tagged notes the answers to tagCalls. Where the tags decide and have moved, the others that are
// in use are asked too: it takes two. head is the node's.
func (f *follower) tagged(ctx context.Context, n *endpoint.Node, head uint64, calls []*rpc.Call) error {
	now, err := f.tagsOf(ctx, n, head, calls)
	if err != nil {
		return err
	}

	said := []tags{now}
	if before := n.Claim(); f.cfg.tagsDecide() &&
		(before.Final.Number != now.final.Number || before.Safe.Number != now.safe.Number) {
		said = append(said, f.askTags(ctx, n)...)
	}

	for _, t := range said {
		t.of.Tags(t.final, t.safe)
	}

	return nil
}

// tags are what a node calls final and safe.
type tags struct {
	of          *endpoint.Node
	final, safe Header
}

// tagsOf reads the answers to tagCalls. A node that does not know a tag answers with an error or null.
// Machines behind one URL may be apart, and what one calls final be above another's head; but not by far.
func (f *follower) tagsOf(ctx context.Context, n *endpoint.Node, head uint64, calls []*rpc.Call) (tags, error) {
	var said [2]Header
	for i, c := range calls {
		err := c.Decode(&said[i])
		if err != nil && []string{Finalized, Safe}[i] == f.cfg.Finality {
			n.Blame(ctx, fmt.Errorf("it does not know the %s block: wait for it, or set FINALITY=confirmations: %w",
				f.cfg.Finality, err))
			return tags{}, err
		}

		if said[i].Number > head+f.pool.farBehind() {
			err := fmt.Errorf("%w: it calls block %d %s, and its head is block %d", rpc.ErrInvalid, said[i].Number,
				[]string{Finalized, Safe}[i], head)
			n.Blame(ctx, err)

			return tags{}, err
		}
	}

	return tags{n, said[0], said[1]}, nil
}

// askTags asks all that are in use but n.
func (f *follower) askTags(ctx context.Context, n *endpoint.Node) []tags {
	said := make([]tags, len(f.pool.nodes))
	var wg sync.WaitGroup
	for i, other := range f.pool.nodes {
		head := other.Claim().Head.Number
		if other == n || head == 0 || !other.Serves() {
			continue
		}

		wg.Go(func() {
			if calls := f.tagCalls(); other.Do(ctx, calls...) == nil {
				said[i], _ = f.tagsOf(ctx, other, head, calls)
			}
		})
	}

	wg.Wait()

	return slices.DeleteFunc(said, func(t tags) bool { return t.of == nil })
}

// subscribe has an endpoint announce its head, and looks at it once. It reports whether to try that again:
// some nodes have no subscriptions.
func (f *follower) subscribe(ctx context.Context, n *endpoint.Node) (*rpc.Subscription, bool) {
	sub, err := n.Subscribe(ctx)
	if err == nil {
		f.poll(ctx, n)
		return sub, true
	}

	if refused, is := errors.AsType[*rpc.Error](err); is && rpc.Classify(err) != rpc.RateLimited {
		f.cfg.Logger.WarnContext(ctx, "endpoint has no subscriptions, polling instead", slog.String("endpoint", n.Name()),
			slog.Any("err", refused))
		return &rpc.Subscription{}, false
	}

	if ctx.Err() == nil {
		f.outlook.refresh(ctx)
	}

	return &rpc.Subscription{}, true
}

// announced notes a block that an endpoint has announced, and asks for the tags when they are due.
func (f *follower) announced(ctx context.Context, n *endpoint.Node, h Header) {
	f.arrived(ctx, n, h)
	if n.Pause(f.pool.servedBut(n)) > 0 || !f.tagsDue(n) {
		return // an endpoint that is not to be asked may announce blocks all the same
	}

	if calls := f.tagCalls(); n.Do(ctx, calls...) == nil && f.tagged(ctx, n, h.Number, calls) == nil {
		f.outlook.refresh(ctx)
	}
}

// tagsDue reports whether to ask an endpoint for the tags.
func (f *follower) tagsDue(n *endpoint.Node) bool {
	mean, _ := f.outlook.rhythm()
	pause := min(max(tagsBlocks*mean, tagsEvery), tagsSeldom)
	if f.cfg.tagsDecide() && n == f.pool.lead() { // the others are asked when its tags have moved
		pause = min(max(f.cfg.PollInterval, mean*3/4), tagsEvery)
	}

	return f.cfg.Now().Sub(n.Claim().Tagged) >= pause
}

// arrived notes an endpoint's head.
func (f *follower) arrived(ctx context.Context, n *endpoint.Node, h Header) {
	// A head far above all that is known, if it was invented, would have every block below it count as confirmed, and
	// final, for viewHold.
	leaps := f.outlook.leaps(h.Number)
	if leaps {
		if err := n.ShowsParent(ctx, h); err != nil {
			if rpc.Classify(err) == rpc.Invalid {
				n.Blame(ctx, err)
			}

			f.outlook.refresh(ctx)

			return
		}
	}

	// The ring first: another endpoint's refresh may make a View of this head, and its readers then look at the ring.
	if !f.outlook.View().Ready || !leaps {
		f.ring.add(h)
	}

	n.Claims(h)
	f.outlook.agreement.heard(ctx, n, h)
	f.outlook.refresh(ctx)
	if height, ask := f.outlook.agreement.Strays(n, h.Number); ask {
		f.asks(ctx, n, height)
	}

	f.meet(ctx, n, h)
}

// meet asks other endpoints for a block that one has reported, where blocks wait for two to say the same:
// endpoints that are looked at now and then report other heights.
func (f *follower) meet(ctx context.Context, n *endpoint.Node, h Header) {
	for _, other := range f.pool.nodes {
		if tip, _ := f.outlook.agreement.Tip(); !f.outlook.waits() || h.Number <= tip.number {
			return
		}

		if other != n && other.Serves() && other.Claim().Head.Number >= h.Number {
			f.asks(ctx, other, h.Number)
		}
	}
}

// asks has an endpoint show its block at a height.
func (f *follower) asks(ctx context.Context, n *endpoint.Node, height uint64) {
	if h, err := n.Header(ctx, height); err == nil {
		f.outlook.agreement.heard(ctx, n, h)
		f.outlook.refresh(ctx)
	}
}
