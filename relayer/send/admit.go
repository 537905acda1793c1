package send

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

const selectDismissed = `
	select command_id, cancel_requested
	  from commands
	 where chain_id = @chain and sender = @sender and state in ('accepted', 'held')
		and (expires_at <= clock_timestamp() or cancel_requested)
	 order by seq
	 limit 500`

// tooLate is what the answer to a command says that expired before it had a nonce.
const tooLate = "its time was over before it could be sent"

// dismiss answers what expired or was cancelled before anything was signed.
func (s *Sender) dismiss(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, _ := s.cfg.DB.Query(bounded, selectDismissed, s.store.args(pgx.StrictNamedArgs{}))
	endings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ending, err error) {
		var cancelled bool
		err = row.Scan(&e.id, &cancelled)
		e.state, e.code, e.detail = command.Expired, command.CodeExpired, tooLate
		if cancelled {
			e.state, e.code, e.detail = command.Cancelled, command.CodeCancelled, ""
		}

		return e, err
	})
	if err != nil {
		return fmt.Errorf("read what expired of sender %s: %w", s.store.sender, err)
	}

	return s.end(ctx, endings)
}

// end stores final states and says so.
func (s *Sender) end(ctx context.Context, endings []ending) error {
	answers, err := s.store.finish(ctx, endings)
	if err != nil {
		return err
	}

	s.cfg.Metrics.answers.Count(answers)
	for _, a := range answers {
		s.log.InfoContext(ctx, "command answered", slog.String("command", a.CommandID),
			slog.String("state", string(a.State)), slog.String("code", a.Code), slog.String("tx", a.Transaction))
	}

	return nil
}

// lookAhead is how many waiting commands are looked at beyond those that there is room for: some of
// them cannot be sent yet.
const lookAhead = 16

// room is how many commands may get nonces now.
func (s *Sender) room(account *account, flights []*flight) int {
	limit := s.cfg.Limits.MaxInFlight
	if s.delegated {
		limit = 1
	}

	if !account.ready(s.sight.look) {
		return 0
	}

	return max(limit-len(flights), 0)
}

// admit takes waiting commands as far as there is room: what is done already or impossible is
// answered, what cannot be sent yet is held, the others get nonces, are signed and sent. It says
// whether there may be more to do at once.
func (s *Sender) admit(ctx context.Context, room int, flights []*flight) (more bool, err error) {
	if room == 0 {
		return false, nil
	}

	all, err := s.store.waiting(ctx, room+lookAhead)
	if err != nil || len(all) == 0 {
		return false, err
	}

	// A nonce is given only after a look at what the nodes know of the account now.
	if s.sight.looked != s.sight.seen {
		return true, nil
	}

	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return false, err
	}

	t := &triage{sender: s, fees: fees, funds: new(big.Int).Set(s.sight.look.Balance), room: room}
	for _, f := range flights {
		t.funds.Sub(t.funds, s.exposure(f))
	}

	if err := t.sort(ctx, all); err != nil {
		return false, err
	}

	if err := t.confirm(ctx); err != nil {
		return false, err
	}

	if err := errors.Join(s.end(ctx, t.endings), s.store.hold(ctx, t.holds)); err != nil {
		return false, err
	}

	if len(t.picks) > 0 {
		if err := s.launch(ctx, t.picks); err != nil {
			return false, err
		}
	}

	return len(all) == room+lookAhead, nil
}

// exposure is what the newest attempt may take out of the account.
func (s *Sender) exposure(f *flight) *big.Int {
	newest := f.newest()
	if newest == nil {
		return s.budget(f.MaxFee)
	}

	sum := newest.Fee.worst(newest.Gas)
	if newest.Purpose == purposeCall && f.Value != nil {
		sum.Add(sum, f.Value)
	}

	return sum
}

// launch gives nonces to commands (T1), and signs, stores (T2) and broadcasts them.
func (s *Sender) launch(ctx context.Context, picks []pick) error {
	short, given, err := s.store.assign(ctx, picks, s.cfg.Limits, s.sight.look)
	if err != nil {
		return err
	}

	holds := make([]hold, len(short))
	for i, p := range short {
		holds[i] = hold{p.id, command.CodeBudget, "the sender's budget of the day is used up", time.Minute}
		s.cfg.Metrics.budget.WithLabelValues(s.cfg.Name).Inc()
	}

	if err := s.store.hold(ctx, holds); err != nil || given == 0 {
		return err
	}

	_, flights, err := s.store.load(ctx)
	if err != nil {
		return err
	}

	s.idle = false

	return s.care(ctx, slices.DeleteFunc(flights, func(f *flight) bool { return f.newest() != nil }))
}

// triage sorts waiting commands by what is to be done with them.
type triage struct {
	sender *Sender
	fees   Fees
	funds  *big.Int // what the account has beyond what is under way
	room   int

	endings []ending
	rests   []*waiting // whose endings rest on an event that is stored
	holds   []hold
	picks   []pick
}

// sort asks the database first, and the chain for the rest.
func (t *triage) sort(ctx context.Context, all []*waiting) error {
	s := t.sender
	var try []*waiting
	var calls []Call
	for _, w := range all {
		if w.Expired || w.Cancelled { // answered at the next round
			continue
		}

		message, refused := s.permit(&w.request)
		if refused != nil {
			t.endings = append(t.endings, ending{id: w.ID, state: command.Refused, code: refused.code, detail: refused.detail})
			continue
		}

		if int64(message.NotBefore) > w.Now.Unix() {
			t.hold(w, command.CodeNotYet, "")
			continue
		}

		if t.known(w, message.Args) {
			continue
		}

		c, err := call(&message.Command)
		if err != nil {
			return fmt.Errorf("encode the call of command %s: %w", w.ID, err)
		}

		if len(try) < t.room+lookAhead/2 {
			try, calls = append(try, w), append(calls, c)
		}
	}

	if len(try) == 0 {
		return nil
	}

	results, err := s.cfg.Chain.Simulate(ctx, s.sight.seen.Target, calls)
	if err != nil {
		return err
	}

	for i, w := range try {
		t.tried(w, results[i])
	}

	return nil
}

// known decides what the events that are stored decide.
func (t *triage) known(w *waiting, args *command.CreateArgs) bool {
	done, impossible := false, ""
	switch w.Kind {
	case command.Create:
		if w.Registered {
			s := t.sender
			done = strings.EqualFold(w.Payer, text(s.address)) && strings.EqualFold(w.Payee, text(args.Payee)) &&
				w.Amount.Cmp(args.Amount) == 0 &&
				w.Required == int(args.ApprovalsRequired) && (w.Arbiter == "" || strings.EqualFold(w.Arbiter, text(args.Arbiter)))
			if !done {
				impossible = command.CodeWrongEscrow
			}
		}
	case command.Approve:
		done = slices.ContainsFunc(w.Approvers, func(a string) bool { return strings.EqualFold(a, text(t.sender.address)) })
		if !done && (w.Status == "released" || w.Status == "refunded") {
			impossible = command.CodeSettled
		}
	case command.Release, command.Refund:
		did := map[command.Kind]string{command.Release: "released", command.Refund: "refunded"}[w.Kind]
		done = w.Status == did
		if !done && (w.Status == "released" || w.Status == "refunded") {
			impossible = command.CodeSettled
		}
	}

	switch {
	case done && w.EventBlock != nil:
		t.rests = append(t.rests, w)
	case done:
		t.endings = append(t.endings, ending{id: w.ID, state: command.Already})
	case impossible == command.CodeSettled:
		t.endings = append(t.endings, ending{id: w.ID, state: command.Refused, code: impossible, detail: "the escrow was " +
			w.Status})
	case impossible != "":
		t.endings = append(t.endings, ending{id: w.ID, state: command.Refused, code: impossible,
			detail: "the escrow exists, with other parties or terms"})
	case w.Kind != command.Create && !w.Registered:
		t.hold(w, command.CodeUnknownEscrow, "the factory has deployed no such escrow in a final block")
	default:
		return false
	}

	return true
}

// confirm answers what events have done already that are on the branch of the sender's witness. The others
// wait: the watches may not have followed a reorganisation yet which the sender has seen, and which nobody
// would find again when the answer is there.
func (t *triage) confirm(ctx context.Context) error {
	branch := t.sender.sight.branch
	for some := range slices.Chunk(t.rests, HashesAtOnce-1) {
		numbers := []uint64{branch.Number}
		for _, w := range some {
			numbers = append(numbers, uint64(*w.EventBlock))
		}

		hashes, err := t.sender.cfg.Chain.Hashes(ctx, numbers...)
		if err != nil {
			return err
		}

		for i, w := range some {
			if hashes[0] == branch.Hash && uint64(*w.EventBlock) <= branch.Number && hashes[i+1].Hex() == deref(w.EventHash) {
				t.endings = append(t.endings, ending{id: w.ID, state: command.Already, eventID: w.EventID, block: w.EventBlock,
					blockHash: w.EventHash})
			} else {
				t.hold(w, command.CodeReorg, "an event says that it is done, whose block is not, or not yet, the one of the chain")
			}
		}
	}

	return nil
}

// tried decides what a simulation decides.
func (t *triage) tried(w *waiting, r Simulation) {
	s := t.sender
	switch {
	case r.NoCode:
		t.hold(w, command.CodeUnknownEscrow, "nothing is deployed at the address at the newest final block")
		return
	case r.Reverts != nil && strings.Contains(strings.ToLower(r.Reverts.Reason), "insufficient funds"):
		t.hold(w, command.CodeBalance, "the sender's account cannot pay")
		return
	case r.Reverts != nil && unauthorised(r.Reverts.Reason) && !r.AtHead:
		t.endings = append(t.endings, ending{id: w.ID, state: command.Refused, code: command.CodeUnauthorised,
			detail: r.Reverts.Reason})
		return
	case r.Reverts != nil:
		t.hold(w, command.CodeReverts, r.Reverts.Reason)
		return
	case w.Kind == command.Create && common.BytesToAddress(r.Output) != w.Escrow:
		t.endings = append(t.endings, ending{id: w.ID, state: command.Refused, code: command.CodeWrongEscrow,
			detail: "the factory would deploy it at " + common.BytesToAddress(r.Output).Hex()})
		return
	}

	gas := gasLimit(w.Kind, r.Gas)
	worst := t.fees.first().worst(gas)
	need := new(big.Int).Add(worst, w.Value)
	switch {
	case worst.Cmp(s.budget(w.MaxFee)) > 0:
		t.hold(w, command.CodeUnderpriced, fmt.Sprintf("the chain asks for up to %s wei", worst))
		s.cfg.Metrics.underpriced.WithLabelValues(s.cfg.Name).Inc()
	case need.Cmp(t.funds) > 0:
		t.hold(w, command.CodeBalance, fmt.Sprintf("the sender's account lacks up to %s wei",
			new(big.Int).Sub(need, t.funds)))
	case len(t.picks) < t.room:
		t.funds.Sub(t.funds, need)
		t.picks = append(t.picks, pick{id: w.ID, gas: gas, worst: worst, value: w.Value})
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
	maxPause       = time.Minute
	maxPauseNew    = 15 * time.Second // for an escrow that may become final any moment
	maxPauseKeeper = 6 * time.Hour
)

func (t *triage) hold(w *waiting, code, detail string) {
	most := maxPause
	switch {
	case w.Requester == KeeperName:
		most = maxPauseKeeper
	case code == command.CodeUnknownEscrow:
		most = maxPauseNew
	}

	pause := min(time.Second<<min(w.Holds, 20), most)
	t.holds = append(t.holds, hold{w.ID, code, detail[:min(len(detail), 2*maxReason)], pause})
}
