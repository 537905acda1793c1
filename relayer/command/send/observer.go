package send

import (
	"cmp"
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

	history []mined // ascending; the first is that of the target, if there was a look by then
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
	everyone := !o.looked.Ready || account.State == "halted"
	target := account.target()
	look, err := o.cfg.Chain.Look(ctx, o.address, target.Number, everyone)
	if err != nil {
		return err
	}

	if !everyone {
		look.Delegated = o.look.Delegated // is asked for with everyone
	}

	o.final(&look, view.Head, target.Number)
	if account.NextNonce == nil {
		if err := o.store.adoptFirst(ctx, max(look.Latest, look.Pending)); err != nil {
			return err
		}
	} else if err := o.checkForeign(ctx, account, look, target); err != nil {
		return err
	}

	o.unnamed, o.target, o.generation = nil, target, account.Generation
	if err := o.settle(ctx, account, look, flights); err != nil {
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

// checkForeign halts the sender while the chain knows of nonces from elsewhere: the key is used elsewhere, or the
// database was restored to an earlier time. Once a final block has the transaction the halt names it, and an operator
// has to look; before that it ends when every node has answered and none knows such a nonce any more. A node that lies
// about it can stop the sender, which is all.
func (o *observer) checkForeign(ctx context.Context, account *account, look Look, target Block) error {
	seen, next := max(look.Latest, look.Pending), *account.NextNonce
	switch {
	case account.Stranger != "":
		return nil
	case seen > next && look.Final > next:
		found, err := o.cfg.Chain.Find(ctx, o.address, next, account.Checked, target)
		if err != nil || found != nil {
			return cmp.Or(err, o.halt(ctx, account, seen, next, found))
		}
	case seen <= next && account.State == "halted" && !look.Silent:
		o.log.WarnContext(ctx, "sender goes on: no node knows a nonce of its account that was not given out here")
		return o.store.resume(ctx)
	}

	if seen <= next || account.State == "halted" {
		return nil
	}

	return o.halt(ctx, account, seen, next, nil)
}

// halt stops the sender, says why, and which nonce may be adopted: `nonce` was used elsewhere, as the transaction
// that was found tells; nil: the chain knows nonces up to adopt-1, which may end by itself.
func (o *observer) halt(ctx context.Context, account *account, adopt, nonce uint64, found *Transaction) error {
	why := fmt.Sprintf("the chain knows nonces up to %d, but %d is the next one here: somebody else used the key, "+
		"or the database was restored to an earlier time", adopt-1, nonce)
	stranger := ""
	if found != nil {
		stranger = found.Hash.Hex()
		why = fmt.Sprintf("nonce %d is used by transaction %s in block %d (%s), which was not signed here: somebody else "+
			"used the key, or the database was restored to an earlier time", nonce, stranger, found.Block, found.BlockHash)
	}

	why += fmt.Sprintf(". Look at the account in an explorer, then run `escrow-relayer sender adopt-nonce --sender %s "+
		"--nonce %d`", registry.Text(o.address), adopt)
	changed, err := o.store.halt(ctx, *account.NextNonce, why, stranger)
	if changed {
		o.log.ErrorContext(ctx, "sender halted", slog.String("reason", why))
	}

	return err
}

// patience is at how many looks a nonce may be final with no receipt of what was signed for it before blocks are
// searched for its transaction: nodes index receipts late.
const patience = 10

// settle answers the commands with a nonce that is used up in a final block, by a transaction that has a name: one
// that was recorded, from its receipt, or somebody else's, which a block shows. Without either it waits.
func (o *observer) settle(ctx context.Context, account *account, look Look, flights []*flight) error {
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
	for _, f := range used {
		if e, ok := outcomeOf(f, receipts); ok {
			endings = append(endings, e)
			delete(o.missing, f.Nonce)

			continue
		}

		if o.missing[f.Nonce]++; o.missing[f.Nonce]%patience != 0 {
			continue
		}

		found, err := o.cfg.Chain.Find(ctx, o.address, f.Nonce, f.begin(), o.target)
		if err != nil {
			return err
		}

		if found == nil || slices.Contains(f.hashes(), found.Hash) {
			continue // its receipt will come
		}

		adopt := max(look.Latest, look.Pending, *account.NextNonce)
		if err := o.halt(ctx, account, adopt, f.Nonce, found); err != nil {
			return err
		}

		endings = append(endings, supersededBy(f, found))
	}

	return o.answer(ctx, endings)
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
