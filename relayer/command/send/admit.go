package send

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// lookAhead is how many waiting commands are looked at beyond those that there is room for: some of
// them cannot be sent yet.
const lookAhead = 16

// admit takes waiting commands while there is room: what is done already or impossible is
// answered, what cannot be sent yet is held, the others are signed, get their nonces and are sent.
func (s *sender) admit(ctx context.Context) error {
	room := s.room()
	if room == 0 {
		return nil
	}

	// A nonce is given only after a look at what the nodes know of the account now: the next round's.
	all, err := s.store.waiting(ctx, room+lookAhead)
	if err != nil || len(all) == 0 || s.looked != s.view {
		return err
	}

	t, err := s.triage(ctx, all, room)
	if err != nil {
		return err
	}

	if _, err := s.end(ctx, t.endings); err != nil {
		return err
	}

	fresh := s.signAll(ctx, t)
	if err := s.store.hold(ctx, t.holds); err != nil {
		return err
	}

	stored, err := s.store.launch(ctx, fresh, s.head, s.cfg.Limits, s.seen)
	if err != nil {
		return err
	}

	for _, x := range stored {
		x.f.Attempts = []attempt{x.attempt}
		s.flights = append(s.flights, x.f)
	}

	s.broadcast(ctx, stored)

	return nil
}

// signAll signs what was picked for the nonces that are next. From the first signature that fails on the commands wait.
func (s *sender) signAll(ctx context.Context, t *triage) (fresh []signed) {
	for _, p := range t.picks {
		if s.signs {
			f := &flight{request: p.w.request, Nonce: *s.account.NextNonce + uint64(len(fresh)), Gas: p.gas}
			if x, err := s.sign(ctx, f, p.call, p.gas, p.fee); err == nil {
				fresh = append(fresh, x)
				continue
			}
		}

		t.hold(p.w, command.CodeSigner, "the signer of the sender's account does not sign now")
	}

	return fresh
}

// exposure is what the newest attempt may take out of the account.
func (f *flight) exposure() *big.Int {
	newest := f.newest()
	sum := newest.fee().Worst(newest.Gas)
	if newest.Purpose == purposeCall {
		sum.Add(sum, f.Value.Int)
	}

	return sum
}

// pick is a command that may get the next nonce, and the transaction that it asks for.
type pick struct {
	w    *waiting
	call evm.Call
	gas  uint64
	fee  evm.Price
}

// triage sorts waiting commands by what is to be done with them.
type triage struct {
	cfg     *Config
	address common.Address
	target  evm.Block
	fees    evm.Fees
	room    int

	// What has been decided so far: one goroutine fills all of it.
	funds             *big.Int // what the account has beyond what is under way and picked
	dayFees, dayValue *big.Int // what of the day's limits is left
	endings           []ending
	holds             []hold
	picks             []pick
}

// triage sorts commands by what the database, and then the chain, say of them.
func (s *sender) triage(ctx context.Context, all []*waiting, room int) (*triage, error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return nil, err
	}

	t := &triage{cfg: &s.cfg, address: s.address, target: s.target, fees: fees, room: room,
		funds:    new(big.Int).Set(s.seen.Balance),
		dayFees:  new(big.Int).Sub(s.cfg.Limits.DayFees, s.account.SpentFees.Int),
		dayValue: new(big.Int).Sub(s.cfg.Limits.DayValue, s.account.SpentValue.Int),
	}
	for _, f := range s.flights {
		if s.open(f) { // what is mined has left the balance
			t.funds.Sub(t.funds, f.exposure())
		}
	}

	return t, t.sort(ctx, all)
}

// sort asks the database first, and the chain for the rest.
func (t *triage) sort(ctx context.Context, all []*waiting) error {
	var try []*waiting
	var calls []evm.Call
	for _, w := range all {
		message, refused := t.cfg.permit(t.address, &w.request)
		if refused != nil {
			t.refuse(w, refused.code, refused.detail)
			continue
		}

		if int64(message.NotBefore) > w.Now.Unix() {
			t.holdUntil(w, time.Unix(int64(message.NotBefore), 0), w.Now, "not_before has not come")
			continue
		}

		if t.known(w, message.Args) {
			continue
		}

		if w.Winner != "" {
			t.refuse(w, command.CodeConflict, "another command was first").Winner = w.Winner
			continue
		}

		if w.Rival != "" {
			t.hold(w, command.CodeConflict, "it waits for what comes of another command: "+w.Rival)
			continue
		}

		if w.Value.Cmp(t.funds) > 0 {
			t.hold(w, command.CodeBalance, "the sender's account lacks the value")
			continue
		}

		c, err := evm.CallOf(&message.Command)
		if err != nil {
			return fmt.Errorf("encode the call of command %s: %w", w.CommandID, err)
		}

		fee := t.fees.First()
		c.Cap, c.Tip = fee.Cap, fee.Tip
		if len(try) < t.room+lookAhead/2 {
			try, calls = append(try, w), append(calls, c)
		}
	}

	if len(try) == 0 {
		return nil
	}

	results, err := t.cfg.Chain.Simulate(ctx, t.target, calls)
	if err != nil {
		return err
	}

	for i, w := range try {
		t.tried(w, calls[i], results[i])
	}

	return nil
}

// refuse ends a command that can never take effect.
func (t *triage) refuse(w *waiting, code, detail string) *ending {
	t.endings = append(t.endings, ending{Answer: command.Answer{CommandID: w.CommandID, State: command.Refused,
		Code: code, Detail: detail}})

	return &t.endings[len(t.endings)-1]
}

// refuseAt is refuse for what the contracts say at the target.
func (t *triage) refuseAt(w *waiting, code, detail string) {
	e := t.refuse(w, code, detail)
	e.Block, e.BlockHash = int64(t.target.Number), t.target.Hash.Hex()
}

// known decides what the events that are stored decide.
func (t *triage) known(w *waiting, args *command.CreateArgs) bool {
	self := registry.Text(t.address)
	settled := w.Status == "released" || w.Status == "refunded"
	done, other := false, false // other: the escrow exists, and is not the one that is asked for
	switch w.Kind {
	case command.Create:
		done = w.Registered && strings.EqualFold(w.Payer, self) && strings.EqualFold(w.Payee, registry.Text(args.Payee)) &&
			w.Amount.Cmp(args.Amount) == 0 && w.Required == int(args.ApprovalsRequired) &&
			(w.Arbiter == "" || strings.EqualFold(w.Arbiter, registry.Text(args.Arbiter))) &&
			(w.Delay.Int == nil || w.Delay.Cmp(args.ReleaseDelay) == 0)
		other = w.Registered && !done
	case command.Approve:
		done = slices.ContainsFunc(w.Approvers, func(a string) bool { return strings.EqualFold(a, self) })
	case command.Release:
		done = w.Status == "released"
	case command.Refund:
		done = w.Status == "refunded"
	}

	e := ending{command.Answer{CommandID: w.CommandID, State: command.Refused, Block: w.EventBlock,
		BlockHash: w.EventHash}, event{w.EventTx, w.EventName}}
	switch {
	case done:
		e.State = command.Already
	case other:
		e.Code, e.Detail = command.CodeWrongEscrow, "the escrow exists, with other parties or terms"
	case settled && w.Kind != command.Create:
		e.Code, e.Detail = command.CodeSettled, "the escrow was "+w.Status
	case w.Kind != command.Create && !w.Registered:
		t.hold(w, command.CodeUnknownEscrow, "the factory has deployed no such escrow in a final block")
		return true
	case w.Kind == command.Release && w.ReleaseTime > t.target.Time && t.target.Time > 0:
		t.holdUntil(w, time.Unix(w.ReleaseTime, 0), time.Unix(t.target.Time, 0), "the escrow's release time has not come")
		return true
	default:
		return false
	}

	t.endings = append(t.endings, e)

	return true
}

// tried decides what a simulation decides. One node's word ends no command, nor keeps it for ever: where another one
// says that it does not fail it waits, since either may be behind, and goes by that one once they have differed for
// some looks; those that say nothing are waited for as long.
func (t *triage) tried(w *waiting, c evm.Call, r evm.Simulation) {
	if r.Otherwise != nil {
		if w.Code != command.CodeDisputed || w.Holds < patience {
			t.hold(w, command.CodeDisputed, "the endpoints differ about what its call does: one says that it fails")
			return
		}

		r = *r.Otherwise
	}

	failed := w.Holds >= patience && (w.Code == command.CodeReverts || w.Code == command.CodeWrongEscrow)
	r.AtHead = r.AtHead || r.Doubted && !failed // neither is final
	made := common.BytesToAddress(r.Output)
	switch elsewhere := w.Kind == command.Create && made != w.Escrow; {
	case r.Failed != nil:
		t.hold(w, command.CodeReverts, storable("no node could try it: "+r.Failed.Error(), maxReason))
		return
	case r.Reverts != nil:
		t.reverts(w, r)
		return
	case r.Gas > evm.MaxGas:
		r.Reverts = &evm.Revert{Reason: fmt.Sprintf("it needs %d gas, and a transaction may have %d", r.Gas, evm.MaxGas)}
		t.reverts(w, r)
		return
	case elsewhere && len(r.Output) == 0:
		t.hold(w, command.CodeUnknownEscrow, "the factory is not deployed at the newest final block")
		return
	case elsewhere && r.AtHead:
		t.hold(w, command.CodeWrongEscrow, "the factory would deploy it at "+made.Hex())
		return
	case elsewhere:
		t.refuseAt(w, command.CodeWrongEscrow, "the factory would deploy it at "+made.Hex())
		return
	}

	// What the chain asks for now has to fit; beyond that the first offer is as high as it may be.
	gas, budget := gasLimit(w.Kind, r.Gas), t.cfg.Limits.budget(w.MaxFee.Int)
	fee, least := t.fees.First().Within(gas, budget), t.fees.Least().Worst(gas)
	worst := fee.Worst(gas)
	need := new(big.Int).Add(worst, w.Value.Int)
	switch {
	case least.Cmp(budget) > 0:
		t.hold(w, command.CodeUnderpriced, fmt.Sprintf("the chain asks for %s wei now, %d gas at %s wei each, and %s is the "+
			"most that may be paid", least, gas, t.fees.Least().Cap, budget))
	case need.Cmp(t.funds) > 0:
		t.hold(w, command.CodeBalance, fmt.Sprintf("the sender's account lacks up to %s wei",
			new(big.Int).Sub(need, t.funds)))
	case worst.Cmp(t.dayFees) > 0 || w.Value.Cmp(t.dayValue) > 0:
		t.hold(w, command.CodeBudget, "the sender's budget of the day is used up")
	case len(t.picks) < t.room:
		t.funds.Sub(t.funds, need)
		t.dayFees.Sub(t.dayFees, worst)
		t.dayValue.Sub(t.dayValue, w.Value.Int)
		t.picks = append(t.picks, pick{w: w, call: c, gas: gas, fee: fee})
	}
}

// reverts decides on a command with a call that fails. A keeper's ends at once, for the pause of selectDue: its answer
// is of use to no requester, and a payee that refuses ether must hold neither the escrow nor the keeper's budget. It
// waits where the account cannot pay: at the head a node tries it for its price, and says that in words of its own.
func (t *triage) reverts(w *waiting, r evm.Simulation) {
	reason := storable(r.Reverts.Reason, maxReason)
	poor := r.AtHead && t.funds.Cmp(t.fees.First().Worst(gasLimit(command.Release, 64_000))) < 0 // about its estimate
	switch {
	case w.Requester == KeeperName && !poor:
		t.refuse(w, command.CodeReverts, reason)
	case r.Reverts.Unauthorised && !r.AtHead:
		t.refuseAt(w, command.CodeUnauthorised, reason)
	default:
		t.hold(w, command.CodeReverts, reason)
	}
}

// gasLimit leaves room above an estimate: the last approval also releases if the time has come
// meanwhile, and a payee's contract may do more then.
func gasLimit(kind command.Kind, estimate uint64) uint64 {
	extra := map[command.Kind]uint64{command.Approve: 150_000, command.Release: 50_000, command.Refund: 50_000,
		command.Create: 100_000}[kind]
	return min(estimate+estimate/4+extra, evm.MaxGas)
}

// Pauses between two looks at a command that has to wait: they double from HoldFor.
const (
	maxPause      = time.Minute
	maxPauseSoon  = 15 * time.Second // for what may change any moment: an escrow becomes final, a signer answers
	maxPauseKnown = time.Hour        // for a time that is known
)

func (t *triage) hold(w *waiting, code, detail string) {
	most := maxPause
	if code == command.CodeUnknownEscrow || code == command.CodeSigner {
		most = maxPauseSoon
	}

	t.holds = append(t.holds, hold{w.CommandID, code, detail, min(t.cfg.HoldFor<<min(w.Holds, 20), most)})
}

// holdUntil has a command wait for a time, as of now by the same clock.
func (t *triage) holdUntil(w *waiting, at, now time.Time, detail string) {
	t.holds = append(t.holds, hold{w.CommandID, command.CodeNotYet, detail,
		min(max(at.Sub(now), time.Second), maxPauseKnown)})
}

// maxReason bounds, in bytes, what a contract can put into our database.
const maxReason = 200

// storable makes words of a node or a contract fit for a column of text: at most so many bytes, and neither
// a zero byte nor what is not UTF-8, which Postgres refuses.
func storable(words string, most int) string {
	words = strings.ReplaceAll(words[:min(len(words), most)], "\x00", "?")

	return strings.ToValidUTF8(words, "?")
}
