package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Forgery is an answer that is not what a block's hash vouches for, of a chain that has shown
// by other blocks that it hashes so. It counts as an invalid answer, and its endpoint gets a Fault.
type Forgery struct {
	What     string
	Evidence string // the answer, or its beginning
}

func (f *Forgery) Error() string { return "forged: " + f.What }

// Unwrap makes a Forgery an invalid answer.
func (f *Forgery) Unwrap() error { return rpc.ErrInvalid }

// upgradeAfter is for how long all endpoints have to give blocks that do not hash before the chain
// counts as one that hashes otherwise now.
const upgradeAfter = time.Minute

// Law is something that the hashes of a chain's blocks vouch for. An endpoint's answer about a block of the chain that
// keeps it is proof of that answer, and makes another endpoint's that breaks it, about a block that is no newer, a
// forgery. Until then the chain may have other rules from that block on, and the same answer of two is never a lie of
// either. Of a chain on which no answer has kept the law nothing is concluded. Its methods may be called concurrently.
type Law struct {
	about string
	chain *lawgiver

	mu     sync.Mutex
	holds  bool
	lapsed bool              // it held, and the chain has another law now
	kept   map[string]uint64 // the newest block about which an endpoint has kept it
	broken map[string]breach // the first of an endpoint, while none has kept it
}

// breach is an answer that breaks a law.
type breach struct {
	since  time.Time
	block  uint64
	accuse func() // of a forgery
}

// lawgiver is what the laws of a chain have in common.
type lawgiver struct {
	endpoints int // configured
	now       func() time.Time
	log       *slog.Logger
	shown     func() // the chain has shown one that it had not; nil: none is ever held to
}

// Laws of a chain: one set for all its endpoints.
type Laws struct {
	Headers  *Law // a block's hash is Ethereum's of its header
	Receipts *Law // the receipts root is that of the receipts
	Bodies   *Law // the transactions root is that of the transactions
}

// NewLaws returns the laws of an unknown chain. endpoints is how many are configured; shown is called
// when the chain shows a law for the first time. Without it, the chain is held to none.
func NewLaws(endpoints int, now func() time.Time, log *slog.Logger, shown func()) *Laws {
	common := &lawgiver{endpoints: endpoints, now: now, log: log, shown: shown}
	law := func(about string) *Law {
		return &Law{about: about, chain: common, kept: map[string]uint64{}, broken: map[string]breach{}}
	}

	return &Laws{Headers: law("headers hash"), Receipts: law("receipts prove"), Bodies: law("transactions prove")}
}

func (l *Laws) all() []*Law { return []*Law{l.Headers, l.Receipts, l.Bodies} }

// Shown are the laws that hold, as they are stored.
func (l *Laws) Shown() (list []string) {
	for _, law := range l.all() {
		if law.Holds() {
			list = append(list, law.about)
		}
	}

	return list
}

// Demand has the laws hold that the chain has shown to others, or before: an endpoint that keeps to none from the
// beginning is no proof that there is none.
func (l *Laws) Demand(stored []string) {
	for _, law := range l.all() {
		if slices.Contains(stored, law.about) {
			law.demand()
		}
	}
}

// Demanded reports whether what is in a block has to be proved: a block that has logs has been proved whole.
func (l *Laws) Demanded() bool { return l.Bodies.Holds() }

func (l *Law) demand() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = l.holds || l.chain.shown != nil && !l.lapsed
}

// Holds reports whether the chain has shown the law.
func (l *Law) Holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds
}

// Kept notes an answer about a block of the chain that keeps the law. What others have said of blocks that are no
// newer, and breaks it, is a forgery then.
func (l *Law) Kept(endpoint string, block uint64) {
	l.mu.Lock()
	if l.chain.shown != nil {
		if !l.holds {
			l.chain.shown()
		}

		l.holds, l.lapsed = true, false
	}

	l.kept[endpoint] = max(l.kept[endpoint], block)
	delete(l.broken, endpoint)
	var forged []breach
	for other, b := range l.broken {
		if b.block <= block {
			forged = append(forged, b)
			delete(l.broken, other)
		}
	}

	l.mu.Unlock()
	for _, b := range forged {
		b.accuse()
	}
}

// Seen notes an answer that keeps the law, about a block that need not be the chain's: it convicts nobody.
func (l *Law) Seen(endpoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.broken, endpoint)
}

// Broken notes an endpoint's answer that breaks the law. It reports whether that is a forgery, and else calls accuse
// once it turns out to be one. Where all of several endpoints have given nothing else for upgradeAfter, the chain has
// another law now: that is reported, and reading goes on without it. One that is configured alone cannot be told from a
// liar: Remedy is the way out.
func (l *Law) Broken(ctx context.Context, endpoint string, block uint64, accuse func()) (forgery bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds || l.chain.endpoints == 1 {
		return l.holds
	}

	for other, newest := range l.kept {
		if other != endpoint && newest >= block {
			return true
		}
	}

	now := l.chain.now()
	if _, known := l.broken[endpoint]; !known {
		l.broken[endpoint] = breach{now, block, accuse}
	}

	if len(l.broken) < l.chain.endpoints {
		return false
	}

	for _, b := range l.broken {
		if now.Sub(b.since) < upgradeAfter {
			return false
		}
	}

	l.holds, l.lapsed = false, true
	l.chain.log.ErrorContext(ctx, "no endpoint gives blocks that prove themselves any more: the chain's rules have "+
		"changed, and reading goes on without this proof. Update the relayer", slog.String("law", l.about))

	return false
}

// Remedy is what an operator can do about an endpoint that does not prove what others have proved.
const Remedy = "ask another endpoint too (RPC_URLS); if the chain itself hashes otherwise than it did, update the " +
	"relayer, or set PROOF=none until there is an update"

// authentic tests that a header is what its hash vouches for, where the chain's headers are. Headers that
// prove themselves are tested by what a reader knows of the chain, which makes the law hold.
func (n *Node) authentic(ctx context.Context, h rpc.Header, claim []byte) error {
	law := n.cfg.Laws.Headers
	if h.Proved {
		law.Seen(n.cfg.Name)
		return nil
	}

	err := n.breaks(ctx, law, h, "the header", "is not what its hash vouches for", claim)
	if errors.Is(err, ErrUnproved) {
		return nil
	}

	return err
}

// breaks is the error of an answer about a block that breaks a law: a Forgery where others show that the chain has that
// still, ErrDisagree while nobody shows it, ErrUnproved where the chain does not have it.
func (n *Node) breaks(ctx context.Context, law *Law, of rpc.Header, what, how string, claim []byte) error {
	f := &Forgery{What: fmt.Sprintf("%s of block %d (%s) %s: %s", what, of.Number, of.Hash, how, Remedy),
		Evidence: string(claim[:min(len(claim), maxEvidence)])}
	later := context.WithoutCancel(ctx)
	switch {
	case law.Broken(ctx, n.cfg.Name, of.Number, func() { n.Blame(later, f) }):
		return f
	case law.Holds():
		return fmt.Errorf("%w: %s", ErrDisagree, f.What)
	}

	return fmt.Errorf("%w: %s of block %d %s", ErrUnproved, what, of.Number, how)
}

// Authentic reports whether an announced header may be used as it is.
func (n *Node) Authentic(h rpc.Header) bool { return h.Proved || !n.cfg.Laws.Headers.Holds() }
