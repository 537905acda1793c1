package send

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// sight is what the newest looks at the chain have shown. looked, lookedAt, look, target and generation are of the
// newest look at everything and change together; with a new block look.Latest and head may change alone.
type sight struct {
	looked     View      // not Ready: there was no look yet
	lookedAt   time.Time // by the database's clock
	look       Look
	target     Block // on the ledger's branch: what answers rest on
	generation int64 // of the ledger, as of the target
	head       uint64
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

// mined is what the nonce was after a head.
type mined struct{ head, nonce uint64 }

// final fills in the final nonce where no node has the state after the target any more: the one that a look
// showed when the target, or a block below it, was the head. A restart forgets those.
func (o *observer) final(look *Look, head, target uint64) {
	for len(o.history) > 0 && o.history[len(o.history)-1].nonce > look.Latest { // a reorganisation
		o.history = o.history[:len(o.history)-1]
	}

	if n := len(o.history); n == 0 || o.history[n-1].nonce < look.Latest {
		o.history = append(o.history, mined{head, look.Latest})
	}

	for len(o.history) > 1 && o.history[1].head <= target {
		o.history = o.history[1:]
	}

	if look.Stateless && o.history[0].head <= target {
		look.Final = o.history[0].nonce
	}
}

// observer looks at the chain for the sender: what became final, and whether the key is used elsewhere.
type observer struct {
	shared
	sight
	missing map[uint64]int // nonces that are final, with no receipt of what was signed: at how many looks
	unnamed []ending       // what the newest look has shown with an event that the ledger has still to store
	resend  bool           // recorded bytes are to go out again: after a takeover

	history  []mined   // ascending; the first is that of the target, if there was a look by then
	unpooled time.Time // since when no node tells what waits in its pool; zero: some do
}

// watch brings what is known of the chain up to date with as few requests as there is reason for:
// none for a sender that has nothing to do; one per block while transactions wait to be mined; and
// everything, which is looked, when something may have become final, when nonces are to be given
// out, and every LookEvery, to notice another user of the key.
func (o *observer) watch(ctx context.Context, view View, a *account, flights []*flight) (looked bool, err error) {
	if !o.wantsLook(view, a, flights) && len(flights) > 0 && view.Head != o.head {
		nonce, err := o.cfg.Chain.Latest(ctx, o.address)
		if err != nil {
			return false, err
		}

		o.latest(nonce, view.Head, flights)
	}

	switch {
	case o.wantsLook(view, a, flights):
	case len(o.unnamed) > 0:
		return true, o.answer(ctx, o.unnamed)
	default:
		return false, nil
	}

	return true, o.observe(ctx, view, a, flights)
}

// wantsLook reports whether there is a reason to look at everything.
func (o *observer) wantsLook(view View, a *account, flights []*flight) bool {
	switch {
	case !o.looked.Ready || a.NextNonce == nil:
		return true
	case o.look.Doubtful && a.Now.Sub(o.lookedAt) >= o.cfg.LookEvery:
		return true
	case view == o.looked && a.target() == o.target && a.Generation == o.generation:
		return false
	case a.Due && a.State == "active", len(o.missing) > 0, len(o.unnamed) > 0, a.Now.Sub(o.lookedAt) >= o.cfg.LookEvery,
		o.look.Latest > *a.NextNonce:
		return true
	case len(flights) == 0 || flights[0].Nonce >= o.look.Latest:
		return false
	}

	// The oldest one is mined. It may be final if the target has come to where it was not yet.
	return a.target() != o.target && (o.unused.nonce != flights[0].Nonce || a.LedgerBlock > o.unused.head)
}

// observe looks at everything.
func (o *observer) observe(ctx context.Context, view View, account *account, flights []*flight) error {
	first := !o.looked.Ready
	target := account.target()
	look, err := o.cfg.Chain.Look(ctx, o.address, target.Number, first)
	if err != nil {
		return err
	}

	if !first {
		look.Delegated = o.look.Delegated // is asked for once
	}

	switch {
	case !look.Unpooled:
		o.unpooled = time.Time{}
	case o.unpooled.IsZero():
		o.unpooled = account.Now
	}

	o.final(&look, view.Head, target.Number)
	look.Doubtful = look.Unpooled && account.Now.Sub(o.unpooled) < o.cfg.PoolPatience

	if account.NextNonce == nil && look.Doubtful {
		return nil
	}

	if account.NextNonce == nil {
		if err := o.store.adoptFirst(ctx, max(look.Latest, look.Pending)); err != nil {
			return err
		}
	} else if err := o.checkForeign(ctx, account, look); err != nil {
		return err
	}

	o.unnamed, o.target, o.generation = nil, target, account.Generation
	if err := o.settle(ctx, look, flights); err != nil {
		o.target = Block{} // the next round looks again
		return err
	}

	if len(o.unnamed) == 0 {
		if err := o.store.checked(ctx, target.Number, look.Balance); err != nil {
			return err
		}
	}

	o.looked, o.lookedAt, o.look = view, account.Now, look
	o.latest(look.Latest, view.Head, flights)

	return nil
}

// checkForeign halts the sender when the chain knows of nonces from elsewhere:
// the key is used elsewhere, or the database was restored to an earlier time. A node that lies
// about it can stop the sender, which is all.
func (o *observer) checkForeign(ctx context.Context, account *account, look Look) error {
	seen := max(look.Latest, look.Pending)
	if seen <= *account.NextNonce || account.State == "halted" {
		return nil
	}

	return o.halt(ctx, seen, "the chain knows nonces up to %d, but %d is the next one here: somebody else used the key, "+
		"or the database was restored to an earlier time", seen-1, *account.NextNonce)
}

// halt stops the sender, says why, and which nonce may be adopted.
func (o *observer) halt(ctx context.Context, adopt uint64, why string, args ...any) error {
	reason := fmt.Sprintf(why, args...) + fmt.Sprintf(". Look at the account in an explorer, then run "+
		"`escrow-relayer sender adopt-nonce --sender %s --nonce %d`", registry.Text(o.address), adopt)
	changed, err := o.store.halt(ctx, reason)
	if changed {
		o.log.ErrorContext(ctx, "sender halted", slog.String("reason", reason))
	}

	return err
}

// patience is how many looks a nonce may be final with no receipt of what was signed for it before
// the sender halts, or an operator's word that it was used elsewhere counts: nodes index receipts late.
const patience = 10

// settle answers the commands with a nonce that is used up in a final block, from the receipt of what was
// recorded. Without one it waits.
func (o *observer) settle(ctx context.Context, look Look, flights []*flight) error {
	var used []*flight
	for _, f := range flights {
		if f.Nonce < look.Final {
			used = append(used, f)
		} else {
			delete(o.missing, f.Nonce)
		}
	}

	receipts, err := receiptsOf(ctx, o.cfg.Chain, o.target, used)
	if err != nil {
		return err
	}

	var endings []ending
	var lost *flight
	for _, f := range used {
		if e, ok := outcomeOf(f, receipts); ok {
			endings = append(endings, o.explainVoid(e, f))
			delete(o.missing, f.Nonce)
		} else if o.missing[f.Nonce]++; o.missing[f.Nonce] < patience {
			continue
		} else if f.Abandoned {
			endings = append(endings, ending{id: f.CommandID, state: command.Superseded, code: command.CodeForeignNonce,
				detail: fmt.Sprintf("nonce %d was used by a transaction that was not signed here", f.Nonce)})
		} else if lost == nil {
			lost = f
		}
	}

	if err := o.answer(ctx, endings); err != nil || lost == nil {
		return err
	}

	return o.confirmForeign(ctx, lost)
}

// answer ends commands, but for those with an event that the ledger has still to store.
func (o *observer) answer(ctx context.Context, endings []ending) error {
	answers, err := o.end(ctx, endings, o.generation)
	if err != nil {
		return err
	}

	o.unnamed = slices.DeleteFunc(endings, func(e ending) bool {
		return e.event.tx == "" || slices.ContainsFunc(answers, func(a command.Answer) bool { return a.CommandID == e.id })
	})

	return nil
}

// explainVoid corrects the reason of a void that looks as if time had run out: a command that may not be signed
// any more is voided too.
func (o *observer) explainVoid(e ending, f *flight) ending {
	if e.code == command.CodeExpired && o.cfg.Signer != nil { // who has no key may have no policy
		if _, refused := o.permit(&f.request); refused != nil {
			e.code, e.detail = refused.code, refused.detail
		}
	}

	return e
}

// confirmForeign asks every node before it says that a nonce was used elsewhere.
func (o *observer) confirmForeign(ctx context.Context, f *flight) error {
	look, err := o.cfg.Chain.Look(ctx, o.address, o.target.Number, true)
	if err != nil {
		return err
	}

	if o.final(&look, o.head, o.target.Number); f.Nonce >= look.Final {
		return nil
	}

	return o.halt(ctx, max(look.Latest, look.Pending), "nonce %d is used up in a final block, but by none of the %d transactions "+
		"that were signed for command %s: somebody else used the key", f.Nonce, len(f.Attempts), f.CommandID)
}
