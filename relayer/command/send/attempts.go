package send

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/params"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// round is one round's work on commands, by the view and the sight with which it began.
type round struct {
	shared
	view   View
	sight  sight
	resend bool             // recorded bytes are to go out again
	heard  *logging.Repeats // why signatures failed

	unsigned bool // a signature failed: no other one is asked for
	launched bool // commands got nonces
}

// advance takes every command that has a nonce a step further: signs, replaces, voids, broadcasts
// again. After the first signature that fails it stops signing: if it waited for each of many,
// answers and broadcasts would wait too.
func (r *round) advance(ctx context.Context, flights []*flight) error {
	open := flights[:0:0]
	for _, f := range flights {
		if f.Nonce >= r.sight.look.Latest { // the others are mined: their time comes
			open = append(open, f)
		}
	}

	var again []signed // recorded bytes
	var fresh []signed
	for _, f := range open {
		plan, err := r.plan(ctx, f)
		if err != nil {
			return err
		}

		switch {
		case plan == doNothing:
		case plan != doBroadcast && r.cfg.Signer == nil: // nothing is signed: the bytes that there are have to do
			if f.newest() != nil && !f.CancelRequested && !f.Expired {
				again = append(again, signed{f: f, attempt: *f.newest()})
			}
		case plan == doBroadcast:
			again = append(again, signed{f: f, attempt: *f.newest()})
		case r.unsigned:
		default:
			x, err := r.renew(ctx, f, plan)
			switch {
			case errors.Is(err, errCap):
				again = append(again, signed{f: f, attempt: *f.newest()})
			case errors.Is(err, errUnsigned):
			case err != nil:
				return err
			default:
				fresh = append(fresh, x)
			}
		}
	}

	if len(fresh) > 0 {
		stored, err := r.store.record(ctx, fresh, r.sight.head, r.cfg.Limits)
		if err != nil {
			return err
		}

		for _, x := range fresh {
			// A replacement that was not stored, for lack of budget say, leaves the attempt before it: pools may
			// have forgotten that, so it is sent again.
			if !slices.ContainsFunc(stored, func(s signed) bool { return s.f == x.f }) {
				if x.f.newest() == nil {
					continue
				}

				x.attempt = *x.f.newest()
			}

			again = append(again, x)
		}
	}

	return r.broadcast(ctx, inOrder(open, again))
}

// inOrder sorts what is to be broadcast by nonce, and leaves out what is above a nonce for which nothing
// is signed. A pool would keep it for later, uncounted, so a database that is restored to an earlier
// time would give its nonce out again unseen (C1).
func inOrder(open []*flight, all []signed) []signed {
	slices.SortFunc(all, func(a, b signed) int { return cmp.Compare(a.f.Nonce, b.f.Nonce) })
	next := 0
	for _, f := range open {
		switch {
		case next < len(all) && all[next].f == f:
			next++
		case f.newest() == nil:
			return all[:next]
		}
	}

	return all
}

type action int

const (
	doNothing action = iota
	doBroadcast
	doCall
	doVoid
)

// plan says what a command with a nonce needs now. Time decides, the database's, as of the load: what is
// waiting goes out again every few blocks or seconds, the lowest nonce for a higher fee, and a command
// that has expired or was cancelled is voided. What nodes say is for people.
func (r *round) plan(ctx context.Context, f *flight) (action, error) {
	newest := f.newest()
	giveUp := f.CancelRequested || f.Expired
	switch {
	case giveUp && !f.voiding():
		return doVoid, nil
	case newest == nil:
		return doCall, nil
	case r.resend || !newest.Broadcast:
		return doBroadcast, nil
	case r.since(newest.BroadcastHead) < r.cfg.BumpBlocks && newest.Silence < r.cfg.ResendEvery:
		return doNothing, nil
	case r.since(newest.Head) < r.cfg.BumpBlocks && newest.Age < r.cfg.BumpAfter:
		return doBroadcast, nil
	}

	fees, err := r.cfg.Chain.Fees(ctx)
	switch {
	case err != nil:
		return doNothing, err
	case f.Nonce != r.sight.look.Latest && fees.enough(newest.fee()):
		return doBroadcast, nil // it waits for the ones below
	case f.voiding():
		return doVoid, nil
	}

	return doCall, nil
}

// since is how many blocks there have been after a head.
func (r *round) since(head uint64) uint64 { return r.sight.head - min(head, r.sight.head) }

// errUnsigned means that signing failed: the command waits.
var errUnsigned = errors.New("not signed")

// renew makes the next attempt of a command, as planned. errCap means that its fee is at the cap,
// errUnsigned that signing failed; both have been told.
func (r *round) renew(ctx context.Context, f *flight, plan action) (x signed, err error) {
	fees, err := r.cfg.Chain.Fees(ctx)
	if err != nil {
		return x, err
	}

	var message *command.Signed // nil: a void
	if plan == doCall {
		message = r.permitted(ctx, f)
	}

	x, err = r.sign(ctx, f, fees, message)
	switch {
	case errors.Is(err, errCap):
		if err := r.underpriced(ctx, f); err != nil {
			return x, err
		}
	case err != nil:
		r.cfg.Metrics.signErrors.WithLabelValues(r.cfg.Name).Inc()
		if !r.heard.Lately(err, time.Now(), sayAgain) {
			r.log.WarnContext(ctx, "signing failed, the command waits", slog.String("command", f.CommandID),
				slog.Any("err", err))
		}

		return x, errUnsigned
	}

	return x, err
}

// permitted is the message of a command if it may be signed, and nil if its nonce is to be voided.
func (r *round) permitted(ctx context.Context, f *flight) *command.Signed {
	message, refused := r.permit(&f.request)
	if refused != nil {
		r.log.ErrorContext(ctx, "a command that has a nonce may not be signed, its nonce is voided",
			slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce), slog.String("code", refused.code),
			slog.String("detail", refused.detail))
	}

	return message
}

// sign makes the next attempt for a command: the call that its message asks for, or a void without one.
func (r *round) sign(ctx context.Context, f *flight, fees Fees, message *command.Signed) (x signed, err error) {
	var c Call
	gas, purpose := f.Gas, purposeCall
	if message == nil {
		c, purpose = Call{From: r.address, To: r.address, Value: new(big.Int)}, purposeVoid
		tried, err := r.cfg.Chain.Simulate(ctx, r.sight.target, []Call{c})
		if err != nil {
			return x, err
		}

		gas = max(params.TxGas, tried[0].Gas)
	} else if c, err = call(&message.Command); err != nil {
		return x, fmt.Errorf("encode the call of command %s: %w", f.CommandID, err)
	}

	// What was reserved with the nonce is there whatever the day has cost since. A replacement may ask
	// for more, and gets it if the day's fees allow.
	budget, newest := r.budget(f.MaxFee.Int), f.newest()
	if newest == nil || message == nil {
		budget = smaller(budget, f.Reserved.Int)
	}

	fee := fees.first()
	if newest != nil {
		fee, err = fees.raise(newest.fee(), gas, budget)
		if errors.Is(err, errCap) && message == nil { // a void that the reservation does not pay for is a replacement
			budget = r.budget(f.MaxFee.Int)
			fee, err = fees.raise(newest.fee(), gas, budget)
		}

		if err != nil {
			return x, err
		}
	}

	fee = fee.within(gas, budget) // the first attempt, if fees have risen since its nonce was assigned

	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.SignWithin, fmt.Errorf("no signature within %s", r.cfg.SignWithin))
	defer cancel()
	raw, hash, err := build(ctx, r.cfg.Signer, uint64(r.cfg.ChainID), f.Nonce, gas, fee, c)
	if err != nil {
		r.unsigned = true
		return x, err
	}

	return signed{f: f, worst: fee.worst(gas), attempt: attempt{Number: len(f.Attempts) + 1, Purpose: purpose, Hash: hash,
		Raw: raw, Gas: gas, FeeCap: wei{fee.Cap}, TipCap: wei{fee.Tip}}}, nil
}

func (r *round) underpriced(ctx context.Context, f *flight) error {
	changed, err := r.store.note(ctx, f.CommandID, command.CodeUnderpriced,
		"the fee cap is reached; the last transaction stays in the pools")
	if changed {
		r.cfg.Metrics.underpriced.WithLabelValues(r.cfg.Name).Inc()
		r.log.WarnContext(ctx, "fee cap reached", slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce))
	}

	return err
}

// broadcast sends recorded bytes to every endpoint.
func (r *round) broadcast(ctx context.Context, all []signed) error {
	if len(all) == 0 || !r.cfg.Valid() {
		return nil
	}

	raws := make([][]byte, len(all))
	for i, x := range all {
		raws[i] = x.attempt.Raw
	}

	said := r.cfg.Chain.Broadcast(ctx, raws)
	results := make([]broadcastResult, len(all))
	for i, x := range all {
		results[i] = broadcastResult{nonce: x.f.Nonce, attempt: x.attempt.Number, words: wordsOf(said[i])}
	}

	r.cfg.Metrics.broadcasts.WithLabelValues(r.cfg.Name).Add(float64(len(all)))

	return r.store.broadcast(ctx, results, r.sight.head)
}

// wordsOf is what the endpoints said, for people. Empty where one of them was silent: it has the transaction.
func wordsOf(said []error) string {
	var all []string
	for _, err := range said {
		if err == nil {
			return ""
		}

		all = append(all, err.Error())
	}

	return storable(strings.Join(all, "; "), 500)
}
