package send

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// latest notes the nonce after the newest head.
func (r *round) latest(nonce uint64) {
	r.seen.Latest, r.head = nonce, r.view.Head
	if len(r.flights) > 0 && r.flights[0].Nonce >= nonce {
		r.unused.nonce, r.unused.head = r.flights[0].Nonce, r.head
	}
}

// mined is what the nonce was after a head.
type mined struct{ head, nonce uint64 }

// final fills in the final nonce where no node has the state after the target any more: the one that a look
// showed when the target, or a block below it, was the head. A restart forgets those.
func (t *tenure) final(look *Look, head, target uint64) {
	for len(t.history) > 0 && t.history[len(t.history)-1].nonce > look.Latest { // a reorganisation
		t.history = t.history[:len(t.history)-1]
	}

	if n := len(t.history); n == 0 || t.history[n-1].nonce < look.Latest {
		t.history = append(t.history, mined{head, look.Latest})
	}

	for len(t.history) > 1 && t.history[1].head <= target {
		t.history = t.history[1:]
	}

	if look.Stateless && t.history[0].head <= target {
		look.Final = t.history[0].nonce
	}
}

// observe brings what is known of the chain up to date with as few requests as there is reason for:
// none for a sender that has nothing to do; one per block while transactions wait to be mined; and
// everything when something may have become final, when nonces are to be given out, and every LookEvery, to
// notice another user of the key. A look at everything changes what the database says, which is read again. Where it
// fails, what is under way goes on by what the one before has shown.
func (r *round) observe(ctx context.Context) (err error) {
	if !r.view.Ready || r.account.LedgerHash == "" {
		r.pause = idlePause
		return nil
	}

	if !r.wantsLook() && len(r.flights) > 0 && r.view.Head != r.head {
		var nonce uint64
		if nonce, err = r.cfg.Chain.Latest(ctx, r.address, r.seen.Latest, r.account.target()); err == nil {
			r.latest(nonce)
		}
	}

	changes := true // what the database says
	switch {
	case err != nil:
	case r.wantsLook():
		err = r.look(ctx)
	case len(r.unnamed) > 0:
		err = r.answer(ctx, r.unnamed)
	default:
		changes = false
	}

	if err == nil && changes {
		err = r.load(ctx)
	} else if err != nil && r.looked.Ready && !errors.Is(err, ErrFenced) { // what is recorded needs no look
		err = errors.Join(err, r.advance(ctx))
	}

	if !r.looked.Ready {
		r.pause = minPause
	}

	r.idle = len(r.flights) == 0
	maps.DeleteFunc(r.out, func(h common.Hash, _ departure) bool {
		return !slices.ContainsFunc(r.flights, func(f *flight) bool { return slices.Contains(f.hashes(), h) })
	})

	return err
}

// wantsLook reports whether there is a reason to look at everything.
func (r *round) wantsLook() bool {
	a := r.account
	switch moved, long := a.target() != r.target, a.Now.Sub(r.lookedAt) >= r.cfg.LookEvery; {
	case !r.looked.Ready, a.NextNonce == nil && a.Now.Sub(r.lookedAt) >= namePause, len(r.missing) > 0 && long:
		return true
	case a.NextNonce == nil || r.view == r.looked && !moved && a.Generation == r.generation:
		return false
	case a.Due <= 0 && a.State == "active", len(r.missing) > 0, len(r.unnamed) > 0, long,
		r.seen.Latest > *a.NextNonce:
		return true
	default: // the oldest one is mined, and may be final if the target has come to where it was not yet
		return moved && len(r.flights) > 0 && !r.open(r.flights[0]) &&
			(r.unused.nonce != r.flights[0].Nonce || a.LedgerBlock > r.unused.head)
	}
}

// look looks at everything.
func (r *round) look(ctx context.Context) error {
	everyone := !r.looked.Ready || r.account.NextNonce == nil || r.account.State == "halted"
	for _, looks := range r.missing {
		everyone = everyone || looks%patience == patience-1 // this one may say that no transaction has used it
	}

	target := r.account.target()
	look, err := r.cfg.Chain.Look(ctx, r.address, target.Number, everyone)
	if err != nil {
		return err
	}

	r.latest(look.Latest)
	r.final(&look, r.view.Head, target.Number)
	if r.account.NextNonce == nil {
		var known bool
		if known, err = r.store.fromChain(ctx, look); err == nil && !known {
			r.fails(ctx, errAdopts)
		}
	} else {
		err = r.checkForeign(ctx, look, target)
	}

	if err != nil {
		return err
	}

	r.unnamed, r.target, r.generation = nil, target, r.account.Generation
	err = r.settle(ctx, look)
	if err == nil && len(r.unnamed) == 0 {
		err = r.store.checked(ctx, target.Number, look.Balance)
	}

	if err != nil {
		r.target = Block{} // the next round looks again
		return err
	}

	r.looked, r.lookedAt, r.seen = r.view, r.account.Now, look

	return nil
}

// errAdopts means that fromChain waits.
var errAdopts = errors.New("the next nonce waits until all that the nodes know of the account is final, and, after " +
	"`sender adopt-nonce`, until each of RPC_URLS answers")

// checkForeign halts the sender while the chain knows of nonces from elsewhere: the key is used elsewhere, or the
// database was restored to an earlier time. Once a final block has the transaction the halt names it, and an operator
// has to look; before that it ends when every node has answered and none knows such a nonce any more. A node that lies
// about it can stop the sender, which is all.
func (r *round) checkForeign(ctx context.Context, look Look, target Block) error {
	account := r.account
	seen, next := look.known(), *account.NextNonce
	switch {
	case account.Stranger != "":
		return nil
	case seen > next && look.Final > next:
		found, err := r.cfg.Chain.Find(ctx, r.address, next, account.Checked, target)
		if err != nil { // it halts without a name, what is under way is answered, and the next look searches again
			r.fails(ctx, err)
		} else if found != nil && found.Hash != (common.Hash{}) {
			return r.halt(ctx, next, found)
		}
	case seen <= next && account.State == "halted" && !look.Silent:
		r.log.WarnContext(ctx, "sender goes on: no node knows a nonce of its account that was not given out here")
		return r.store.resume(ctx)
	}

	if seen <= next || account.State == "halted" {
		return nil
	}

	return r.stop(ctx, "", fmt.Sprintf("the chain knows nonces up to %d, but %d is the next one here: somebody else used the "+
		"key, the account's code did (EIP-7702), or the database was restored to an earlier time", seen-1, next))
}

// halt stops the sender for a transaction that somebody else has sent.
func (r *round) halt(ctx context.Context, nonce uint64, found *Transaction) error {
	return r.stop(ctx, found.Hash.Hex(), fmt.Sprintf("nonce %d is used by transaction %s in block %d (%s), which was not "+
		"signed here: somebody else used the key, or the database was restored to an earlier time", nonce, found.Hash,
		found.Block, found.BlockHash))
}

// stop halts the sender, and says why. Without a stranger's transaction that may end by itself.
func (r *round) stop(ctx context.Context, stranger, why string) error {
	why += ". Look at the account in an explorer, then run `escrow-relayer sender adopt-nonce --sender " +
		registry.Text(r.address) + "`"
	changed, err := r.store.halt(ctx, r.account.NextNonce, why, stranger)
	if changed {
		r.log.ErrorContext(ctx, "sender halted", slog.String("reason", why))
	}

	return err
}

// patience is for how many looks what one node says alone, or lacks, may still mend itself: another one may be
// behind, and nodes index receipts late. Then a nonce that is final without a receipt of what was signed for it is
// looked for in blocks.
const patience = 10

// settle answers the commands with a nonce that is used up in a final block, by a transaction that has a name: one
// that was recorded, from its receipt, or somebody else's, which a block shows; or by none (EIP-7702), if all endpoints
// say that the nonce is used and the blocks prove that nobody has sent it. Without any of these it waits.
func (r *round) settle(ctx context.Context, look Look) error {
	var used []*flight
	for _, f := range r.flights {
		if f.Nonce < look.Final {
			used = append(used, f)
		} else {
			delete(r.missing, f.Nonce)
		}
	}

	receipts, err := r.cfg.Chain.Receipts(ctx, r.target, hashesOf(used))
	if err != nil {
		return err
	}

	var endings []ending
	refuted := r.cfg.Chain.Confirm(ctx, r.target, receipts)
	for _, f := range used {
		e, ok := outcomeOf(f, receipts)
		if ok {
			ok = r.believes(ctx, f, &e, refuted[common.HexToHash(e.Transaction)])
		} else if r.missing[f.Nonce]++; r.missing[f.Nonce]%patience == 0 {
			e, ok, err = r.search(ctx, f, look)
		}

		if err != nil {
			return err
		}

		if ok {
			endings = append(endings, e)
		}
	}

	return r.answer(ctx, endings)
}

// believes reports whether a receipt counts: an event of the ledger bears it out, or every node does. For those that
// say nothing it waits a while.
func (r *round) believes(ctx context.Context, f *flight, e *ending, refuted error) bool {
	if e.Tx == "" && refuted != nil {
		if r.missing[f.Nonce]++; !errors.Is(refuted, errSilent) || r.missing[f.Nonce] < patience {
			r.fails(ctx, fmt.Errorf("command %s waits: %w", f.CommandID, refuted))
			return false
		}
	}

	delete(r.missing, f.Nonce)

	return true
}

// search looks for the transaction that has used a command's nonce, in blocks.
func (r *round) search(ctx context.Context, f *flight, look Look) (e ending, ok bool, err error) {
	found, err := r.cfg.Chain.Find(ctx, r.address, f.Nonce, f.begin(), r.target)
	switch {
	case err != nil, found == nil, slices.Contains(f.hashes(), found.Hash): // its receipt will come
		return e, false, err
	case found.Hash != (common.Hash{}):
		err = r.halt(ctx, f.Nonce, found)
	case !look.Agreed:
		return e, false, nil
	default:
		r.log.ErrorContext(ctx, "a nonce was used without a transaction", slog.String("command", f.CommandID),
			slog.Uint64("nonce", f.Nonce))
	}

	return supersededBy(f, found), err == nil, err
}

// answer ends commands, but for those with an event that the ledger has still to store.
func (r *round) answer(ctx context.Context, endings []ending) error {
	answers, err := r.end(ctx, endings, r.generation)
	if err != nil {
		return err
	}

	r.unnamed = slices.DeleteFunc(endings, func(e ending) bool {
		return e.Tx == "" ||
			slices.ContainsFunc(answers, func(a command.Answer) bool { return a.CommandID == e.CommandID })
	})

	return nil
}
