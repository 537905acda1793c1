package send

import (
	"context"
	"time"
)

// sight is what a sender knows of the chain. looked, lookedAt, look and branch are of the newest look at
// everything; look.Latest alone may be newer, as of head.
type sight struct {
	seen     View      // that the last round went by
	looked   View      // not Ready: there was no look yet
	lookedAt time.Time // by the database's clock
	look     Look
	branch   Block // of the witness of reorganisations, on which an answer may rest; zero: not known
	head     uint64
	// The newest head at which the nonce of the oldest command under way was not used: below, it cannot be final.
	unused struct{ nonce, head uint64 }
}

// latest notes the nonce after a head.
func (v *sight) latest(nonce, head uint64, flights []*flight) {
	v.look.Latest, v.head = nonce, head
	if len(flights) > 0 && flights[0].Nonce >= nonce {
		v.unused.nonce, v.unused.head = flights[0].Nonce, head
	}
}

// watch brings what is known of the chain up to date with as few requests as there is reason for:
// none for a sender that has nothing to do; one per block while transactions wait to be mined; and
// everything, which is looked, when something may have become final, when nonces are to be given
// out, and every LookEvery, for the sake of reorganisations and of whoever else may use the key.
func (s *Sender) watch(ctx context.Context, view View, a *account, flights []*flight) (looked bool, err error) {
	if !s.wantsLook(view, a, flights) && len(flights) > 0 && view.Head != s.sight.head {
		nonce, err := s.cfg.Chain.Latest(ctx, s.address)
		if err != nil {
			return false, err
		}

		s.sight.latest(nonce, view.Head, flights)
	}

	if !s.wantsLook(view, a, flights) {
		return false, nil
	}

	return true, s.observe(ctx, view, a, flights)
}

// wantsLook says whether there is a reason to look at everything.
func (s *Sender) wantsLook(view View, a *account, flights []*flight) bool {
	v := &s.sight
	switch {
	case !v.looked.Ready || a.NextNonce == nil:
		return true
	case view == v.looked:
		return false
	case a.Due && a.State == "active", len(s.missing) > 0, a.Now.Sub(v.lookedAt) >= s.cfg.LookEvery,
		v.look.Latest > uint64(*a.NextNonce):
		return true
	case len(flights) == 0 || flights[0].Nonce >= v.look.Latest:
		return false
	}

	// The oldest one is mined. It may be final if the target has come to where it was not yet.
	return view.Target > v.looked.Target && (v.unused.nonce != flights[0].Nonce || view.Target > v.unused.head)
}
