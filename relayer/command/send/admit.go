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
)

// lookAhead is how many waiting commands are looked at beyond those that there is room for: some of
// them cannot be sent yet.
const lookAhead = 16

// room is how many commands may get nonces now.
func (r *round) room(account *account, flights []*flight) int {
	limit := r.cfg.Limits.MaxInFlight
	if r.sight.look.Delegated {
		limit = 1
	}

	if !account.ready(r.sight.look) {
		return 0
	}

	for _, f := range flights {
		if r.open(f) {
			limit--
		}
	}

	return max(limit, 0)
}

// open reports whether no block has a command's nonce: it takes a place in the pools.
func (r *round) open(f *flight) bool { return f.Nonce >= r.sight.look.Latest }

// admit takes waiting commands while there is room: what is done already or impossible is
// answered, what cannot be sent yet is held, the others get nonces, are signed and sent. It says
// whether there may be more to do at once.
func (r *round) admit(ctx context.Context, room int, flights []*flight) (more bool, err error) {
	if room == 0 {
		return false, nil
	}

	all, err := r.store.waiting(ctx, room+lookAhead)
	if err != nil || len(all) == 0 {
		return false, err
	}

	// A nonce is given only after a look at what the nodes know of the account now: the next round's.
	if r.sight.looked != r.view {
		return true, nil
	}

	fees, err := r.cfg.Chain.Fees(ctx)
	if err != nil {
		return false, err
	}

	t := &triage{shared: r.shared, target: r.sight.target, fees: fees, funds: new(big.Int).Set(r.sight.look.Balance),
		room: room}
	for _, f := range flights {
		if r.open(f) { // what is mined has left the balance
			t.funds.Sub(t.funds, r.exposure(f))
		}
	}

	if err := t.sort(ctx, all); err != nil {
		return false, err
	}

	if _, err := r.end(ctx, t.endings, r.sight.generation); err != nil {
		return false, err
	}

	if err := r.store.hold(ctx, t.holds); err != nil {
		return false, err
	}

	if len(t.picks) > 0 {
		if err := r.launch(ctx, t.picks); err != nil {
			return false, err
		}
	}

	return len(all) == room+lookAhead, nil
}

// exposure is what the newest attempt may take out of the account.
func (r *round) exposure(f *flight) *big.Int {
	newest := f.newest()
	if newest == nil {
		return r.budget(f.MaxFee.Int)
	}

	sum := newest.fee().worst(newest.Gas)
	if newest.Purpose == purposeCall {
		sum.Add(sum, f.Value.Int)
	}

	return sum
}

// launch gives nonces to commands (T1), and signs, stores (T2) and broadcasts them.
func (r *round) launch(ctx context.Context, picks []pick) error {
	overBudget, given, err := r.store.assign(ctx, picks, r.cfg.Limits, r.sight.look)
	if err != nil {
		return err
	}

	holds := make([]hold, len(overBudget))
	for i, p := range overBudget {
		holds[i] = hold{p.id, command.CodeBudget, "the sender's budget of the day is used up", time.Minute}
		r.cfg.Metrics.budget.WithLabelValues(r.cfg.Name).Inc()
	}

	if err := r.store.hold(ctx, holds); err != nil || given == 0 {
		return err
	}

	_, flights, err := r.store.load(ctx)
	if err != nil {
		return err
	}

	r.launched = true

	return r.advance(ctx, slices.DeleteFunc(flights, func(f *flight) bool { return f.newest() != nil }))
}

// triage sorts waiting commands by what is to be done with them.
type triage struct {
	shared
	target Block // at which calls are tried
	fees   Fees
	room   int

	// What has been decided so far: one goroutine fills all of it.
	funds   *big.Int // what the account has beyond what is under way and picked
	endings []ending
	holds   []hold
	picks   []pick
}

// sort asks the database first, and the chain for the rest.
func (t *triage) sort(ctx context.Context, all []*waiting) error {
	var try []*waiting
	var calls []Call
	for _, w := range all {
		if w.Expired || w.CancelRequested { // answered at the next round
			continue
		}

		message, refused := t.permit(&w.request)
		if refused != nil {
			t.refuse(w, refused.code, refused.detail)
			continue
		}

		if int64(message.NotBefore) > w.Now.Unix() {
			t.hold(w, command.CodeNotYet, "")
			continue
		}

		if t.known(w, message.Args) {
			continue
		}

		if w.Winner != "" {
			t.endings = append(t.endings, ending{id: w.CommandID, state: command.Refused, code: command.CodeConflict,
				detail: "another command was first", winner: w.Winner})
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

		c, err := call(&message.Command)
		if err != nil {
			return fmt.Errorf("encode the call of command %s: %w", w.CommandID, err)
		}

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
		t.tried(w, results[i])
	}

	return nil
}

// refuse ends a command that can never take effect.
func (t *triage) refuse(w *waiting, code, detail string) {
	t.endings = append(t.endings, ending{id: w.CommandID, state: command.Refused, code: code, detail: detail})
}

// refuseAt is refuse for what the contracts say at the target.
func (t *triage) refuseAt(w *waiting, code, detail string) {
	number, hash := int64(t.target.Number), t.target.Hash.Hex()
	t.endings = append(t.endings, ending{id: w.CommandID, state: command.Refused, code: code, detail: detail,
		block: &number, blockHash: &hash})
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
			(w.Arbiter == "" || strings.EqualFold(w.Arbiter, registry.Text(args.Arbiter)))
		other = w.Registered && !done
	case command.Approve:
		done = slices.ContainsFunc(w.Approvers, func(a string) bool { return strings.EqualFold(a, self) })
	case command.Release:
		done = w.Status == "released"
	case command.Refund:
		done = w.Status == "refunded"
	}

	e := ending{id: w.CommandID, state: command.Refused, block: w.EventBlock, blockHash: w.EventHash,
		event: event{w.EventTx, w.EventName}}
	switch {
	case done:
		e.state = command.Already
	case other:
		e.code, e.detail = command.CodeWrongEscrow, "the escrow exists, with other parties or terms"
	case settled && w.Kind != command.Create:
		e.code, e.detail = command.CodeSettled, "the escrow was "+w.Status
	case w.Kind != command.Create && !w.Registered:
		t.hold(w, command.CodeUnknownEscrow, "the factory has deployed no such escrow in a final block")
		return true
	default:
		return false
	}

	t.endings = append(t.endings, e)

	return true
}

// tried decides what a simulation decides.
func (t *triage) tried(w *waiting, r Simulation) {
	if r.Reverts != nil {
		t.reverts(w, r.Reverts, r.AtHead)
		return
	}

	switch made := common.BytesToAddress(r.Output); {
	case r.NoCode:
		t.hold(w, command.CodeUnknownEscrow, "nothing is deployed at the address at the newest final block")
		return
	case w.Kind == command.Create && made != w.Escrow && r.AtHead:
		t.hold(w, command.CodeWrongEscrow, "the factory would deploy it at "+made.Hex())
		return
	case w.Kind == command.Create && made != w.Escrow:
		t.refuseAt(w, command.CodeWrongEscrow, "the factory would deploy it at "+made.Hex())
		return
	}

	gas := gasLimit(w.Kind, r.Gas)
	worst := t.fees.first().worst(gas)
	need := new(big.Int).Add(worst, w.Value.Int)
	switch {
	case worst.Cmp(t.budget(w.MaxFee.Int)) > 0:
		t.hold(w, command.CodeUnderpriced, fmt.Sprintf("the chain asks for up to %s wei", worst))
		t.cfg.Metrics.underpriced.WithLabelValues(t.cfg.Name).Inc()
	case need.Cmp(t.funds) > 0:
		t.hold(w, command.CodeBalance, fmt.Sprintf("the sender's account lacks up to %s wei",
			new(big.Int).Sub(need, t.funds)))
	case len(t.picks) < t.room:
		t.funds.Sub(t.funds, need)
		t.picks = append(t.picks, pick{id: w.CommandID, gas: gas, worst: worst, value: w.Value.Int})
	}
}

// reverts decides on a command with a call that fails. A keeper's ends at once, for the pause of selectDue: its answer
// is of use to no requester, and a payee that refuses ether must hold neither the escrow nor the keeper's budget.
func (t *triage) reverts(w *waiting, r *Revert, atHead bool) {
	reason := storable(r.Reason, maxReason)
	switch {
	case w.Requester == KeeperName:
		t.refuse(w, command.CodeReverts, reason)
	case r.Unauthorised && !atHead:
		t.refuseAt(w, command.CodeUnauthorised, reason)
	default:
		t.hold(w, command.CodeReverts, reason)
	}
}

// gasLimit leaves room above an estimate: the last approval also releases if the time has come
// meanwhile, and a payee's contract may do more then. It stays below what one transaction may have
// (EIP-7825).
func gasLimit(kind command.Kind, estimate uint64) uint64 {
	extra := map[command.Kind]uint64{command.Approve: 150_000, command.Release: 50_000, command.Refund: 50_000,
		command.Create: 100_000}[kind]
	return min(estimate+estimate/4+extra, 1<<24)
}

// Pauses between two looks at a held command: they double from a second.
const (
	maxPause    = time.Minute
	maxPauseNew = 15 * time.Second // for an escrow that may become final any moment
)

func (t *triage) hold(w *waiting, code, detail string) {
	most := maxPause
	if code == command.CodeUnknownEscrow {
		most = maxPauseNew
	}

	pause := min(time.Second<<min(w.Holds, 20), most)
	t.holds = append(t.holds, hold{w.CommandID, code, detail, pause})
}
