package chain

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// View is how far the chain may be read.
type View struct {
	Head     uint64 // newest block that two endpoints in use have by now; of one alone, while its word counts, that it has
	Target   uint64 // newest block that may be processed
	Final    uint64 // blocks up to here do not change any more, and may be read by range; at most Target
	HeadTime time.Time
	// TargetTime is of block Target where a tag of the chain decides (zero while it is unknown), else
	// of the head, which Target follows at a fixed distance.
	TargetTime time.Time
	Ready      bool  // false until the first head
	Trust      Trust // why the blocks up to Target count as the chain's; never Proved
}

// What cannot be said in blocks alone, since chains make them every 0.25 s or every 12 s: at least
// so many blocks, and at least those of so much time.
const (
	// The nodes behind one URL may be so far apart; a node that lacks what is further below its head has thrown it away.
	farBlocks, farTime = 64, time.Minute
	// Where the finalized tag is unknown, a block must lie so deep to be read by range.
	deepBlocks, deepTime = 128, time.Minute
)

// tagsEvery is the shortest pause between two looks at safe and final blocks where something else decides what is
// processed.
const tagsEvery = 12 * time.Second

// lateAtFirst is how old the head of an endpoint in use may be while the pace of the chain is unknown.
const lateAtFirst = 15 * time.Minute

// outlook is the View, and what it is derived with. view, headHash and moved change together, with
// what the endpoints claim; changed is closed and replaced each time view does. doubted is since
// when view lacks an endpoint that vouches for it.
type outlook struct {
	cfg       *Config
	agreement *agreement
	claims    func() []endpoint.Claim // what the endpoints that are in use say now

	mu       sync.Mutex
	view     View
	headHash common.Hash
	moved    time.Time // when the head last moved
	doubted  time.Time
	pace     pace
	changed  chan struct{}
	wanted   uint64 // what would be the target if it were agreed
}

func (o *outlook) View() View {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view
}

func (o *outlook) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// health reports whether the head is known and moves.
func (o *outlook) health() error {
	now := o.cfg.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.view.Ready {
		return fmt.Errorf("%w: the head of the chain is not known yet", ErrUnavailable)
	}

	if o.wanted > o.view.Target {
		if err := o.agreement.stuck(max(2*time.Minute, o.pace.patience())); err != nil {
			return err
		}
	}

	if patience := o.pace.patience(); patience > 0 {
		if still := now.Sub(o.moved); still > patience {
			return fmt.Errorf("no new block after %d for %s: the chain stands still, or the nodes behind RPC_URLS do",
				o.view.Head, still.Round(time.Second))
		}
	}

	return nil
}

// patience is how long the chain may stand still without alarm; zero: for ever.
func (o *outlook) patience() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pace.patience()
}

// depth is how many blocks have to be above one that is processed.
func (o *outlook) depth() uint64 {
	if o.cfg.Finality != Confirmations {
		return 0
	}

	return o.cfg.Confirmations
}

// places are blocks from a height on of which endpoints in use tell, as their heads or tags, the lowest first: it takes
// the fewest headers. One far above all that is known would take headers without end, if it was invented.
func (o *outlook) places(least uint64, of func(endpoint.Claim) Header) (list []place) {
	for _, c := range o.claims() {
		p := place{of(c).Number, of(c).Hash}
		if p.number >= least && !o.leaps(p.number) && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}

	slices.SortFunc(list, func(a, b place) int { return cmp.Compare(a.number, b.number) })

	return list
}

// farBehind is how many blocks the nodes behind one URL may be apart.
func (o *outlook) farBehind() uint64 { return o.atLeast(farBlocks, farTime) }

// leaps reports whether a head is far above all that is known.
func (o *outlook) leaps(head uint64) bool { return head > o.View().Head+o.farBehind() }

// waits reports whether blocks could be processed if only it were agreed that they are the chain's.
func (o *outlook) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wanted > o.view.Target
}

// rhythm is the mean time between blocks, zero while it is unknown, and how soon a block may be
// expected.
func (o *outlook) rhythm() (mean time.Duration, due time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pace.seen < marksNeeded {
		return 0, o.moved
	}

	return o.pace.mean, o.moved.Add(o.pace.least(o.cfg.PollInterval))
}

// refresh derives the View from what the endpoints say.
func (o *outlook) refresh(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	claims := o.claims()
	if len(claims) == 0 {
		o.agreement.inUse(nil)
		return
	}

	used := o.used(claims)
	o.agreement.inUse(used)
	if len(o.cfg.URLs) > 1 && len(used) == 1 && !o.agreement.Believes() {
		return // one word moves nothing yet
	}

	next, head := o.derive(used)
	now := o.cfg.Now()
	if head.Hash != o.headHash && next.Head >= o.view.Head {
		if o.view.Ready {
			o.pace.blocks(next.Head-o.view.Head, now.Sub(o.moved))
		}

		o.headHash, o.moved = head.Hash, now
	}

	if o.view.Ready {
		o.keep(ctx, &next, head, now)
	}

	if next == o.view {
		return
	}

	o.view = next
	close(o.changed)
	o.changed = make(chan struct{})
}

// used are those of the endpoints in use: that serve, and neither stand still nor are late by what they themselves
// say and the clock. What all have in common says nothing of one: it is the chain's. Held: mu.
func (o *outlook) used(claims []endpoint.Claim) []endpoint.Claim {
	now, patience := o.cfg.Now(), cmp.Or(o.pace.patience(), lateAtFirst)
	still := func(c endpoint.Claim) bool { return o.pace.patience() > 0 && now.Sub(c.Rose) >= patience }
	together := func(c endpoint.Claim) bool { // two that stand still at one block say that the chain does
		return still(c) && slices.ContainsFunc(claims, func(other endpoint.Claim) bool {
			return other.Of != c.Of && other.Head.Hash == c.Head.Hash
		})
	}
	for _, out := range []func(endpoint.Claim) bool{
		func(c endpoint.Claim) bool { return !c.Serves },
		func(c endpoint.Claim) bool { return o.cfg.tagsDecide() && o.tag(c).Number == 0 },
		func(c endpoint.Claim) bool { return still(c) && !together(c) },
		func(c endpoint.Claim) bool {
			return now.Sub(time.Unix(int64(c.Head.Time), 0)) >= patience && !together(c)
		},
	} {
		if rest := slices.DeleteFunc(slices.Clone(claims), out); len(rest) > 0 {
			claims = rest
		}
	}

	return claims
}

// tag is the block that decides what is processed, as an endpoint says it; zero: it has not said.
func (o *outlook) tag(c endpoint.Claim) Header {
	if o.cfg.Finality == Safe {
		return c.Safe
	}

	return c.Final
}

// secondOf returns the claim with the second highest number, of one alone that one: what two endpoints reach.
func secondOf(claims []endpoint.Claim, number func(endpoint.Claim) uint64) endpoint.Claim {
	sorted := slices.SortedFunc(slices.Values(claims), func(a, b endpoint.Claim) int {
		return cmp.Compare(number(b), number(a))
	})

	return sorted[min(len(sorted), 2)-1]
}

// derive is the View that the claims of the endpoints in use make, and the head that it is of. No number in it is one
// endpoint's word while there are several. Held: mu.
func (o *outlook) derive(used []endpoint.Claim) (next View, head Header) {
	number := func(c endpoint.Claim) uint64 { return c.Head.Number }
	second := secondOf(used, number)
	next.Ready, next.Head, head = true, second.Head.Number, second.Head
	highest := slices.MaxFunc(used, func(a, b endpoint.Claim) int { return cmp.Compare(number(a), number(b)) })
	if len(used) > 1 {
		// One that is looked at now and then has as many blocks more by now as the chain makes in the time since.
		next.Head = min(number(highest), next.Head+o.pace.within(o.cfg.Now().Sub(second.Heard)))
		if next.Head == number(highest) {
			head = highest.Head
		}
	}

	next.HeadTime = time.Unix(int64(head.Time), 0)
	next.Target, next.TargetTime = next.Head-min(next.Head, o.depth()), next.HeadTime
	if o.cfg.tagsDecide() {
		at := o.tag(secondOf(used, func(c endpoint.Claim) uint64 { return o.tag(c).Number }))
		next.Target, next.TargetTime = at.Number, time.Unix(int64(at.Time), 0)
	}

	o.wanted = next.Target
	tip, trust := o.agreement.Tip()
	next.Target, next.Trust = min(next.Target, tip.number), trust

	// Too low costs requests, too high the check of parents.
	deep := o.pace.atLeast(deepBlocks, deepTime)
	final := func(c endpoint.Claim) uint64 {
		if c.Final.Number == 0 { // of use below only
			return c.Head.Number - min(c.Head.Number, deep)
		}

		return c.Final.Number
	}
	next.Final = min(next.Target, final(secondOf(used, final)))

	return next, head
}

// keep holds what stood before for viewHold after the last endpoint vouched for it. Held: mu.
func (o *outlook) keep(ctx context.Context, next *View, head Header, now time.Time) {
	switch {
	case next.Head >= o.view.Head && next.Target >= o.view.Target:
		o.doubted = time.Time{}
	case o.doubted.IsZero() || now.Sub(o.doubted) < viewHold:
		if o.doubted.IsZero() {
			o.doubted = now
		}

		if next.Head < o.view.Head {
			next.Head, next.HeadTime = o.view.Head, o.view.HeadTime
			if !o.cfg.tagsDecide() {
				next.TargetTime = o.view.TargetTime
			}
		}
	default:
		o.cfg.Logger.WarnContext(ctx, "no endpoint has the newest block any more: going back",
			slog.Uint64("block", o.view.Head), slog.Uint64("head", next.Head), slog.Uint64("target", next.Target))
		o.doubted, o.headHash, o.moved = time.Time{}, head.Hash, now
		o.view.Target, o.view.Final = 0, 0
	}

	if next.Target < o.view.Target {
		next.Target, next.TargetTime = o.view.Target, o.view.TargetTime
	}

	next.Final = max(next.Final, o.view.Final)
}

// pace is how fast the chain makes blocks, as seen from here: the mean time between two of them, and
// the times between the newest ones. seen counts all that were noted.
type pace struct {
	mean   time.Duration
	newest [16]time.Duration
	seen   int
}

// marksNeeded is how many blocks have to be seen before their mean is gone by.
const marksNeeded = 4

func (p *pace) blocks(n uint64, took time.Duration) {
	if n == 0 || n > 1000 || took <= 0 {
		return
	}

	each := took / time.Duration(n)
	p.newest[p.seen%len(p.newest)] = each
	if p.seen++; p.seen == 1 {
		p.mean = each
	}

	p.mean += (each - p.mean) / 8
}

// least is for how long after a block a look for the next one is wasted, given the longest pause
// between looks; zero while too few have been seen. Times are of looks, which find a block late, and
// none that is shorter can be seen: so looks begin one pause before the shortest of the newest times
// would end, or at three quarters of what a few of them fall short of, whichever is later.
func (p *pace) least(pause time.Duration) time.Duration {
	if p.seen < len(p.newest) {
		return 0
	}

	sorted := p.newest
	slices.Sort(sorted[:])

	return max(sorted[0]-pause, sorted[len(sorted)/6]*3/4)
}

// patience is how long the chain may stand still without alarm; zero: for ever, as the pace is unknown.
func (p *pace) patience() time.Duration {
	if p.seen < 16 {
		return 0
	}

	return max(2*time.Minute, 30*p.mean)
}

// within is how many blocks the chain makes in a time, with a margin; zero while its pace is unknown.
func (p *pace) within(d time.Duration) uint64 {
	if p.seen < marksNeeded || p.mean <= 0 {
		return 0
	}

	return uint64(max(d, 0)/p.mean) + 2
}

// atLeast is so many blocks, or as many as the chain makes in so much time, whichever is more.
func (p *pace) atLeast(blocks uint64, in time.Duration) uint64 {
	if p.seen < marksNeeded || p.mean <= 0 {
		return blocks
	}

	return max(blocks, uint64(in/p.mean))
}
