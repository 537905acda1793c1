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
	Head     uint64 // newest block that a healthy endpoint has
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

// tagsEvery is how long endpoints with different safe and final blocks are waited for, and the shortest
// pause between two looks at those blocks where something else decides what is processed.
const tagsEvery = 12 * time.Second

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
	// Since when tags that an endpoint told of wait for others to say the same; zero: all are agreed.
	waiting time.Time
	wanted  uint64 // what would be the target if it were agreed
}

// View says how far the chain may be read. Target and Final stand still when a node lags.
func (o *outlook) View() View {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view
}

// Changed returns a channel that is closed when the View changes next.
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

	if err := o.agreement.stuck(max(2*time.Minute, o.pace.patience())); err != nil {
		return err
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

// heads are those of the endpoints in use from a height on, the highest first.
func (o *outlook) heads(least uint64) (list []place) {
	for _, c := range o.claims() {
		if p := (place{c.Head.Number, c.Head.Hash}); p.number >= least && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}

	slices.SortFunc(list, func(a, b place) int { return cmp.Compare(b.number, a.number) })

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

// BlockTime is the mean time between blocks; zero while it is unknown.
func (o *outlook) BlockTime() time.Duration {
	mean, _ := o.rhythm()
	return mean
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
		o.agreement.inUse(0)
		return
	}

	next, head := o.derive(claims)
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

// takeTags has what endpoints say of safe and final blocks take effect at once, in one View. Where some
// are behind it waits for them, for tagsEvery at most, however often the tags move meanwhile: an
// endpoint that is always behind only delays the others.
func (o *outlook) takeTags(behind bool, take func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.cfg.Now()
	if behind && o.waiting.IsZero() {
		o.waiting = now
	}

	if behind && now.Sub(o.waiting) < tagsEvery {
		return // the next look asks again
	}

	o.waiting = time.Time{}
	take()
}

// derive is the View that claims make by themselves, and the head that it is of. Held: mu.
func (o *outlook) derive(claims []endpoint.Claim) (next View, head Header) {
	deep := o.pace.atLeast(deepBlocks, deepTime)
	head = claims[0].Head
	for i, c := range claims {
		if c.Head.Number > head.Number {
			head = c.Head
		}

		if c.Final == 0 { // of use below only
			claims[i].Final = c.Head.Number - min(c.Head.Number, deep)
		}

		tagged, at := c.Final, c.FinalTime
		if o.cfg.Finality == Safe {
			tagged, at = c.Safe, c.SafeTime
		}

		if o.cfg.tagsDecide() && tagged > next.Target {
			next.Target, next.TargetTime = tagged, time.Unix(int64(at), 0)
		}
	}

	next.Ready, next.Head, next.HeadTime = true, head.Number, time.Unix(int64(head.Time), 0)
	if !o.cfg.tagsDecide() {
		next.Target, next.TargetTime = head.Number-min(head.Number, o.depth()), next.HeadTime
	}

	o.wanted = next.Target
	vouch := 0 // one that is behind what could be processed, or is not to be asked, has no say in it
	for _, c := range claims {
		if c.Head.Number >= o.wanted && c.Serves {
			vouch++
		}
	}

	o.agreement.inUse(vouch)
	tip, trust := o.agreement.Tip()
	next.Target, next.Trust = min(next.Target, tip.number), trust

	// Final is what all say that are up to date: too low costs requests, too high the check of parents.
	next.Final = next.Target
	for _, c := range claims {
		if c.Head.Number >= next.Target {
			next.Final = min(next.Final, c.Final)
		}
	}

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

// atLeast is so many blocks, or as many as the chain makes in so much time, whichever is more.
func (p *pace) atLeast(blocks uint64, in time.Duration) uint64 {
	if p.seen < marksNeeded || p.mean <= 0 {
		return blocks
	}

	return max(blocks, uint64(in/p.mean))
}
