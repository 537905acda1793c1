package chain

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
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

// agreement is up to which block it is known which chain is the chain. A hash is the chain's when two
// endpoints (with one configured: one) have reported it for its height, or when parent links lead to it
// from such a block. The highest such block is the tip; what is read is linked to it.
type agreement struct {
	cfg  *Config
	laws *endpoint.Laws

	mu        sync.Mutex
	said      map[uint64]map[*endpoint.Node]Header // the newest report of each endpoint
	newest    uint64
	tip       place
	trust     Trust
	confirmed time.Time // when the tip was last reported by as many as it takes
	alone     time.Time // since when fewer than two endpoints are in use; zero: two are
	// Since when an endpoint has shown other blocks than those on which two others agree.
	apart map[*endpoint.Node]time.Time
}

func newAgreement(cfg *Config, laws *endpoint.Laws) *agreement {
	return &agreement{cfg: cfg, laws: laws, said: map[uint64]map[*endpoint.Node]Header{},
		apart: map[*endpoint.Node]time.Time{}}
}

// inUse notes how many endpoints are in use.
func (a *agreement) inUse(endpoints int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case endpoints > 1:
		a.alone = time.Time{}
	case a.alone.IsZero():
		a.alone = a.cfg.Now()
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
	return a.believes() && (len(a.cfg.URLs) == 1 || n.Fault() == nil)
}

// Counts reports whether the word of one endpoint alone counts: unless it has lied beside others.
func (a *agreement) Counts(n *endpoint.Node) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts(n)
}

// heard notes a head that an endpoint in use has reported, and its parent with it.
func (a *agreement) heard(ctx context.Context, n *endpoint.Node, h Header) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.compare(ctx)
	said := []Header{h}
	if h.Number > 0 {
		said = []Header{{Number: h.Number - 1, Hash: h.Parent}, h}
	}

	for _, h := range said {
		a.note(n, h)
		if trust := a.judge(n, h); trust != Undecided {
			a.moveTo(h, trust)
		}
	}

	a.newest = max(a.newest, h.Number)
	for number := range a.said {
		if number+ringSize < a.newest {
			delete(a.said, number)
		}
	}
}

// note remembers what an endpoint says of a height. Held: mu.
func (a *agreement) note(n *endpoint.Node, h Header) {
	at := a.said[h.Number]
	if at == nil {
		at = map[*endpoint.Node]Header{}
		a.said[h.Number] = at
	}

	if before := at[n]; before.Hash != h.Hash || h.Proved {
		at[n] = h
	}
}

// judge is why a block that an endpoint has just reported counts as the chain's. Held: mu.
func (a *agreement) judge(n *endpoint.Node, h Header) Trust {
	votes := 0
	for _, said := range a.said[h.Number] {
		if said.Hash == h.Hash {
			votes++
		}
	}

	switch {
	case votes >= 2:
		return Agreed
	case a.counts(n):
		return Believed
	}

	return Undecided
}

// moveTo makes a block that counts as the chain's the tip. A lower one than the tip is of a machine that is behind,
// unless the tip has lost its confirmation. Held: mu.
func (a *agreement) moveTo(h Header, trust Trust) {
	for _, said := range a.said[h.Number] {
		if said.Hash == h.Hash && said.Proved {
			a.laws.Headers.Kept()
		}
	}

	if now := a.cfg.Now(); h.Number >= a.tip.number || now.Sub(a.confirmed) >= viewHold {
		a.tip, a.trust, a.confirmed = place{h.Number, h.Hash}, trust, now
	}
}

// compare finds out which endpoints show another block at the height of the tip than two others. One that
// does so for longer than a reorganisation takes is on a chain of its own making. Held: mu.
func (a *agreement) compare(ctx context.Context) {
	if a.trust != Agreed {
		return
	}

	now := a.cfg.Now()
	for n, said := range a.said[a.tip.number] {
		since, apart := a.apart[n]
		switch {
		case said.Hash == a.tip.hash:
			delete(a.apart, n)
		case !apart:
			a.apart[n] = now
			n.Disagrees()
		case now.Sub(since) >= viewHold:
			delete(a.apart, n)
			n.Blame(ctx, fmt.Errorf("%w: it shows block %s at height %d, where two others agree on %s", rpc.ErrInvalid,
				said.Hash, a.tip.number, a.tip.hash))
		}
	}
}

// stuck is an error where endpoints have been in use for longer than a reorganisation takes and still differ.
func (a *agreement) stuck(patience time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.confirmed.IsZero() || !a.alone.IsZero() || a.newest <= a.tip.number || a.cfg.Now().Sub(a.confirmed) < patience {
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
