package chain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// What Config.Agreement may be: what counts while only one of several endpoints is in use.
const (
	Available = "available" // after believeAfter, the one endpoint's word
	Strict    = "strict"    // nothing
)

// believeAfter is how long the only endpoint of several that is in use waits to be believed.
const believeAfter = time.Minute

// Trust is why a block counts as the chain's, and what is in it as true.
type Trust string

// The reasons, from none to the best.
const (
	Undecided Trust = ""            // no block does yet
	Believed  Trust = "believed"    // one endpoint says which block it is, and no other is configured or in use
	Agreed    Trust = "agreed by 2" // two endpoints say so
	Proved    Trust = "proved"      // two say which block it is, and its hash proves what is in it (Source.Trust alone)
)

// place is a block and its hash.
type place struct {
	number uint64
	hash   common.Hash
}

// agreement is up to which block it is known which chain is the chain: by votes, since valid chains are not told
// apart otherwise. A hash is the chain's when two endpoints (with one configured: one) show it for its height, or
// when parent links lead to it from such a block. What one endpoint shows moves nothing while another is in use,
// however high it is; while it is the only one for believeAfter, it extends what two agreed on.
type agreement struct {
	cfg  *Config
	laws *endpoint.Laws

	mu        sync.Mutex
	said      map[*endpoint.Node]map[uint64]report // by height; what is older than viewHold is gone
	agreed    place                                // the highest block that two have shown; zero: none yet
	tip       place                                // the highest that counts: agreed, or one that a single word counts for
	trust     Trust                                // why the tip does
	confirmed time.Time                            // when the tip was last shown by as many as it takes
	sole      *endpoint.Node                       // the only one in use; nil: none is, or several are
	alone     time.Time                            // since when fewer than two are; zero: two are
	joined    map[*endpoint.Node]time.Time         // when it last showed the agreed block, or was first heard of
	apart     map[*endpoint.Node]time.Time         // since when it has shown another block at that height
}

// report is what an endpoint shows at a height.
type report struct {
	block Header
	at    time.Time
}

// maxReports bounds what is kept of one endpoint: more heights than any chain has in viewHold.
const maxReports = 2 * ringSize

func newAgreement(cfg *Config, laws *endpoint.Laws) *agreement {
	return &agreement{cfg: cfg, laws: laws, said: map[*endpoint.Node]map[uint64]report{},
		joined: map[*endpoint.Node]time.Time{}, apart: map[*endpoint.Node]time.Time{}}
}

// inUse notes which endpoints are.
func (a *agreement) inUse(used []endpoint.Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var sole *endpoint.Node
	if len(used) == 1 {
		sole = used[0].Of
	}

	switch {
	case len(used) > 1:
		a.alone = time.Time{}
	case a.alone.IsZero() || sole != nil && a.sole != nil && sole != a.sole:
		a.alone = a.cfg.Now()
	}

	if sole != nil || len(used) > 1 {
		a.sole = sole
	}
}

// believes reports whether one endpoint's word counts. Held: mu.
func (a *agreement) believes() bool {
	if len(a.cfg.URLs) == 1 {
		return true
	}

	return a.cfg.Agreement == Available && !a.alone.IsZero() && a.cfg.Now().Sub(a.alone) >= a.cfg.believeAfter
}

// Believes reports whether one endpoint's word counts now.
func (a *agreement) Believes() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.believes()
}

// counts reports whether the word of one endpoint alone counts. Held: mu.
func (a *agreement) counts(n *endpoint.Node) bool {
	return len(a.cfg.URLs) == 1 || a.believes() && n == a.sole && n.Fault() == nil
}

// Counts reports whether the word of one endpoint alone counts: it is the only one in use, and has not lied beside
// others.
func (a *agreement) Counts(n *endpoint.Node) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts(n)
}

// heard notes a block that an endpoint has shown, and its parent with it.
func (a *agreement) heard(ctx context.Context, n *endpoint.Node, h Header) {
	a.mu.Lock()
	defer a.mu.Unlock()
	shown := []Header{h}
	if h.Number > 0 {
		shown = []Header{{Number: h.Number - 1, Hash: h.Parent}, h}
	}

	for _, h := range shown {
		a.note(n, h)
		switch by := a.votes(h); {
		case len(by) > 1:
			a.agree(h)
		case a.counts(n):
			a.believe(n, h)
		}

		a.compare(ctx, h.Number)
	}
}

// note remembers what an endpoint shows at a height, for viewHold. Held: mu.
func (a *agreement) note(n *endpoint.Node, h Header) {
	now := a.cfg.Now()
	list := a.said[n]
	if list == nil {
		list = map[uint64]report{}
		a.said[n], a.joined[n] = list, now
	}

	for number, r := range list {
		if now.Sub(r.at) >= viewHold || len(list) >= maxReports {
			delete(list, number)
		}
	}

	if before := list[h.Number].block; before.Hash == h.Hash && before.Proved {
		h = before
	}

	list[h.Number] = report{h, now}
}

// votes are the endpoints that show a block, by name. Held: mu.
func (a *agreement) votes(h Header) (names []string) {
	var provers []string
	for n, list := range a.said {
		r, known := list[h.Number]
		if !known || r.block.Hash != h.Hash || a.cfg.Now().Sub(r.at) >= viewHold {
			continue
		}

		if names = append(names, n.Name()); r.block.Proved {
			provers = append(provers, n.Name())
		}
	}

	slices.Sort(names)
	for _, name := range provers {
		if len(names) > 1 {
			a.laws.Headers.Kept(name, h.Number)
		}
	}

	return names
}

// agree notes a block that two endpoints show. A lower one than before is of a machine that is behind, unless
// nothing has been agreed on for viewHold. What one endpoint said counts no more. Held: mu.
func (a *agreement) agree(h Header) {
	now := a.cfg.Now()
	if a.trust == Agreed && h.Number < a.agreed.number && now.Sub(a.confirmed) < viewHold {
		return
	}

	a.agreed = place{h.Number, h.Hash}
	a.tip, a.trust, a.confirmed = a.agreed, Agreed, now
}

// believe notes a block that one endpoint shows whose word counts. It is above what two agreed on: what is read below
// that is linked to it. Held: mu.
func (a *agreement) believe(n *endpoint.Node, h Header) {
	now := a.cfg.Now()
	if len(a.cfg.URLs) > 1 && h.Number <= a.agreed.number || h.Number < a.tip.number && now.Sub(a.confirmed) < viewHold {
		return
	}

	a.tip, a.trust, a.confirmed = place{h.Number, h.Hash}, Believed, now
	if h.Proved {
		a.laws.Headers.Kept(n.Name(), h.Number)
	}
}

// compare finds out which endpoints show another block at a height than two others. One that does so for longer than a
// reorganisation takes is on a chain of its own making. Held: mu.
func (a *agreement) compare(ctx context.Context, height uint64) {
	now := a.cfg.Now()
	var by []string
	var agreed common.Hash
	for _, list := range a.said {
		if r, known := list[height]; known && len(by) < 2 {
			by, agreed = a.votes(r.block), r.block.Hash
		}
	}

	if len(by) < 2 {
		return
	}

	for n, list := range a.said {
		r, shown := list[height]
		since, apart := a.apart[n]
		switch {
		case !shown:
		case r.block.Hash == agreed:
			a.joined[n] = now
			delete(a.apart, n)
		case !apart:
			a.apart[n] = now
			n.Disagrees()
		case now.Sub(since) >= viewHold && n.Fault() == nil:
			delete(a.apart, n)
			n.Blame(ctx, &endpoint.Forgery{
				What: fmt.Sprintf("it shows block %s at height %d, where %s agree on %s, and has been on a chain of its own for %s",
					r.block.Hash, height, strings.Join(by, " and "), agreed, now.Sub(since).Round(time.Second)),
				Evidence: fmt.Sprintf("block %d, %s, parent %s, time %d", height, r.block.Hash, r.block.Parent, r.block.Time)})
		}
	}
}

// Strays reports whether an endpoint, which has told of a block, is to be asked for its block at the agreed height:
// it has not shown the agreed one for a while.
func (a *agreement) Strays(n *endpoint.Node, told uint64) (height uint64, ask bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, shown := a.said[n][a.agreed.number]
	since, heard := a.joined[n]

	return a.agreed.number, a.trust == Agreed && told >= a.agreed.number && !shown && heard &&
		a.cfg.Now().Sub(since) >= viewHold/2
}

// stuck is an error where endpoints have been in use for longer than a reorganisation takes and still differ.
func (a *agreement) stuck(patience time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.confirmed.IsZero() || !a.alone.IsZero() || a.cfg.Now().Sub(a.confirmed) < patience {
		return nil
	}

	return fmt.Errorf("%w: no two endpoints show the same block above block %d: nothing above it is processed until they "+
		"do, or RPC_URLS names those that follow the chain", ErrDisagree, a.tip.number)
}

// Tip is the highest block that counts as the chain's, and why it does.
func (a *agreement) Tip() (place, Trust) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tip, a.trust
}

// Anchor is the block to which one at a height is linked: the tip, or below what two agreed on that; and whether one
// word of several endpoints decides. ErrBehind: it is not agreed yet.
func (a *agreement) Anchor(n uint64) (to place, oneWord bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	to, oneWord = a.tip, len(a.cfg.URLs) > 1 && a.trust == Believed
	if oneWord && n <= a.agreed.number {
		to, oneWord = a.agreed, false
	}

	if a.trust == Undecided || n > to.number {
		err = fmt.Errorf("%w: it is not agreed yet which block %d is the chain's", ErrBehind, n)
	}

	return to, oneWord, err
}
