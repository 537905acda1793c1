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
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// observe brings what is known of the chain up to date with as few requests as there is reason for:
// none for a sender that has nothing to do; one per block while transactions wait to be mined; and
// everything when something may have become final, when nonces are to be given out, and every LookEvery, to
// notice another user of the key. Whatever that changes in the database is read again.
func (s *sender) observe(ctx context.Context) error {
	if !s.wantsLook() && len(s.flights) > 0 && s.view.Head != s.head {
		nonce, err := s.cfg.Chain.Latest(ctx, s.address, s.seen.Latest, s.account.target())
		if err != nil {
			return err
		}

		s.latest(nonce)
	}

	var err error
	switch {
	case s.wantsLook():
		err = s.look(ctx)
	case len(s.unnamed) > 0:
		err = s.answer(ctx, s.unnamed)
	default:
		return nil
	}

	if err != nil {
		return err
	}

	return s.load(ctx)
}

// spell is between which heads the account had a nonce after the newest block.
type spell struct{ nonce, from, to uint64 }

// latest notes the nonce after the newest head.
func (s *sender) latest(nonce uint64) {
	s.seen.Latest, s.head = nonce, s.view.Head
	s.nonces = slices.DeleteFunc(s.nonces, func(x spell) bool { return x.nonce > nonce }) // a reorganisation
	if n := len(s.nonces); n == 0 || s.nonces[n-1].nonce < nonce {
		s.nonces = append(s.nonces, spell{nonce: nonce, from: s.head})
	}

	s.nonces[len(s.nonces)-1].to = s.head
}

// final fills in the final nonce where no node has the state after the target any more: the one that a look
// showed when the target, or a block below it, was the head. A restart forgets those.
func (s *sender) final(look *evm.Look, target uint64) {
	for len(s.nonces) > 1 && s.nonces[1].from <= target {
		s.nonces = s.nonces[1:]
	}

	if look.Stateless && s.nonces[0].from <= target {
		look.Final = s.nonces[0].nonce
	}
}

// unused reports whether a nonce was not used yet when a block was the newest: it is not final with that block.
func (s *sender) unused(nonce, block uint64) bool {
	return slices.ContainsFunc(s.nonces, func(x spell) bool { return x.nonce <= nonce && block <= x.to })
}

// wantsLook reports whether there is a reason to look at everything.
func (s *sender) wantsLook() bool {
	a := s.account
	switch moved, long := a.target() != s.target, a.Now.Sub(s.lookedAt) >= s.cfg.LookEvery; {
	case !s.looked.Ready, a.NextNonce == nil && a.Now.Sub(s.lookedAt) >= namePause, len(s.missing) > 0 && long:
		return true
	case a.NextNonce == nil || s.view == s.looked && !moved && a.Generation == s.generation:
		return false
	case a.Due <= 0 && a.State == "active", len(s.missing) > 0, len(s.unnamed) > 0, long,
		s.seen.Latest > *a.NextNonce:
		return true
	default: // the oldest one is mined, and may be final if the target has come to where it was not yet
		return moved && len(s.flights) > 0 && !s.open(s.flights[0]) && !s.unused(s.flights[0].Nonce, a.LedgerBlock)
	}
}

// look looks at everything.
func (s *sender) look(ctx context.Context) error {
	next := s.account.NextNonce
	everyone := !s.looked.Ready || next == nil || s.account.State == "halted" || s.seen.Known() > *next
	for _, looks := range s.missing {
		everyone = everyone || looks%patience == patience-1 // this one may say that no transaction has used it
	}

	target := s.account.target()
	look, err := s.cfg.Chain.Look(ctx, s.address, target.Number, everyone)
	if err != nil {
		return err
	}

	s.latest(look.Latest)
	s.final(&look, target.Number)
	// Who says nothing takes nothing back. A halt in whose place an operator has paused has no other memory.
	if look.Silent && next != nil {
		look.Pending = max(look.Pending, s.seen.Known())
	}

	if next == nil {
		var known bool
		if known, err = s.store.fromChain(ctx, look); err == nil && !known {
			s.fails(ctx, errAdopts)
		}
	} else {
		err = s.checkForeign(ctx, look, target)
	}

	if err != nil {
		return err
	}

	s.unnamed, s.target, s.generation = nil, target, s.account.Generation
	err = s.settle(ctx, look)
	if err == nil && len(s.unnamed) == 0 {
		err = s.store.checked(ctx, target.Number, look)
	}

	if err != nil {
		s.target = evm.Block{} // the next round looks again
		return err
	}

	s.looked, s.lookedAt, s.seen = s.view, s.account.Now, look

	return nil
}

// errAdopts means that fromChain waits.
var errAdopts = errors.New("the next nonce waits until all that the nodes know of the account is final, and, after " +
	"`sender adopt-nonce`, until each of RPC_URLS answers")

// checkForeign halts the sender while the chain knows of nonces from elsewhere: the key is used elsewhere, or the
// database was restored to an earlier time. Once a final block has the transaction the halt names it, and an operator
// has to look; before that it ends when every node has answered and none knows such a nonce any more. A node that lies
// about it can stop the sender, which is all.
func (s *sender) checkForeign(ctx context.Context, look evm.Look, target evm.Block) error {
	account := s.account
	seen, next := look.Known(), *account.NextNonce
	switch {
	case account.Stranger != "":
		return nil
	case seen > next && look.Final > next:
		found, err := s.cfg.Chain.Find(ctx, s.address, next, account.Checked, target)
		if err != nil { // it halts without a name, what is under way is answered, and the next look searches again
			s.fails(ctx, err)
		} else if found != nil && found.Hash != (common.Hash{}) {
			return s.halt(ctx, next, found)
		}
	case seen <= next && account.State == "halted" && !look.Silent:
		s.cfg.Log.WarnContext(ctx, "sender goes on: no node knows a nonce of its account that was not given out here")
		return s.store.resume(ctx)
	}

	if seen <= next || account.State == "halted" {
		return nil
	}

	return s.stop(ctx, "", fmt.Sprintf("the chain knows nonces up to %d, but %d is the next one here: somebody else used "+
		"the key, the account's code did (EIP-7702), or the database was restored to an earlier time", seen-1, next))
}

// halt stops the sender for a transaction that somebody else has sent.
func (s *sender) halt(ctx context.Context, nonce uint64, found *evm.Transaction) error {
	return s.stop(ctx, found.Hash.Hex(), fmt.Sprintf("nonce %d is used by transaction %s in block %d (%s), which was not "+
		"signed here: somebody else used the key, or the database was restored to an earlier time", nonce, found.Hash,
		found.Block, found.BlockHash))
}

// stop halts the sender, and says why. Without a stranger's transaction that may end by itself.
func (s *sender) stop(ctx context.Context, stranger, why string) error {
	why += ". Look at the account in an explorer, then run `escrow-relayer sender adopt-nonce --sender " +
		registry.Text(s.address) + "`"
	changed, err := s.store.halt(ctx, s.account.NextNonce, why, stranger)
	if changed {
		s.cfg.Log.ErrorContext(ctx, "sender halted", slog.String("reason", why))
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
func (s *sender) settle(ctx context.Context, look evm.Look) error {
	used := slices.DeleteFunc(slices.Clone(s.flights), func(f *flight) bool { return f.Nonce >= look.Final })
	maps.DeleteFunc(s.missing, func(nonce uint64, _ int) bool { // it is answered, or not final any more
		return !slices.ContainsFunc(used, func(f *flight) bool { return f.Nonce == nonce })
	})
	receipts, err := s.cfg.Chain.Receipts(ctx, s.target, hashesOf(used))
	if err != nil {
		return err
	}

	var endings []ending
	refuted := s.cfg.Chain.Confirm(ctx, s.target, receipts)
	for _, f := range used {
		e, ok := outcomeOf(f, receipts)
		if ok {
			ok = s.believes(ctx, f, &e, refuted[common.HexToHash(e.Transaction)])
		} else if s.missing[f.Nonce]++; s.missing[f.Nonce]%patience == 0 {
			e, ok, err = s.search(ctx, f, look)
		}

		if err != nil {
			return err
		}

		if ok {
			endings = append(endings, e)
		}
	}

	return s.answer(ctx, endings)
}

// believes reports whether a receipt counts: an event of the ledger bears it out, or every node does. For those that
// say nothing it waits a while.
func (s *sender) believes(ctx context.Context, f *flight, e *ending, refuted error) bool {
	if e.Tx == "" && refuted != nil {
		if s.missing[f.Nonce]++; !errors.Is(refuted, evm.ErrSilent) || s.missing[f.Nonce] < patience {
			s.fails(ctx, fmt.Errorf("command %s waits: %w", f.CommandID, refuted))
			return false
		}
	}

	delete(s.missing, f.Nonce)

	return true
}

// search looks for the transaction that has used a command's nonce, in blocks.
func (s *sender) search(ctx context.Context, f *flight, look evm.Look) (e ending, ok bool, err error) {
	found, err := s.cfg.Chain.Find(ctx, s.address, f.Nonce, f.begin(), s.target)
	switch {
	case err != nil, found == nil, slices.Contains(f.hashes(), found.Hash): // its receipt will come
		return e, false, err
	case found.Hash != (common.Hash{}):
		err = s.halt(ctx, f.Nonce, found)
	case !look.Agreed:
		return e, false, nil
	default:
		s.cfg.Log.ErrorContext(ctx, "a nonce was used without a transaction", slog.String("command", f.CommandID),
			slog.Uint64("nonce", f.Nonce))
	}

	return supersededBy(f, found), err == nil, err
}

// end stores final states, as of the ledger's generation that they were decided by, and says so.
func (s *sender) end(ctx context.Context, endings []ending) ([]command.Answer, error) {
	answers, err := s.store.finish(ctx, endings, s.generation)
	if err == nil {
		s.cfg.tell(ctx, answers)
	}

	return answers, err
}

// answer ends commands, but for those with an event that the ledger has still to store.
func (s *sender) answer(ctx context.Context, endings []ending) error {
	answers, err := s.end(ctx, endings)
	if err != nil {
		return err
	}

	s.unnamed = slices.DeleteFunc(endings, func(e ending) bool {
		return e.Tx == "" ||
			slices.ContainsFunc(answers, func(a command.Answer) bool { return a.CommandID == e.CommandID })
	})

	return nil
}
