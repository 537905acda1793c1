package send

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/params"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// departure is when bytes left this process for the last time.
type departure struct {
	head uint64
	at   time.Time
}

// open reports whether no block has a command's nonce: it takes a place in the pools.
func (r *round) open(f *flight) bool { return f.Nonce >= r.seen.Latest }

// advance takes every command that has a nonce a step further: replaces, voids, broadcasts again. After the
// first signature that fails it stops signing: if it waited for each of many, answers and broadcasts would wait too.
func (r *round) advance(ctx context.Context) error {
	if r.account.State == "halted" {
		return nil
	}

	var again, fresh []signed // recorded bytes, and new ones
	var failed error          // of one command: the others go out, and so does what is recorded of it
	for _, f := range r.flights {
		if !r.open(f) { // it is mined: its time comes
			continue
		}

		plan, why, err := r.plan(ctx, f)
		if err == nil && plan > doBroadcast && r.signs {
			var x signed
			if x, err = r.renew(ctx, f, plan, why); err == nil {
				fresh = append(fresh, x)
				continue
			}
		}

		if err != nil && !errors.Is(err, errCap) && !errors.Is(err, errUnsigned) {
			failed, plan = cmp.Or(failed, err), doBroadcast
		}

		// Without a signer the bytes that there are have to do.
		if plan != doNothing && (r.cfg.Signer != nil || !f.CancelRequested && !f.Expired) {
			again = append(again, f.recorded())
		}
	}

	stored, err := r.store.record(ctx, fresh, r.head, r.cfg.Limits)
	if err != nil {
		return err
	}

	// A replacement that was not stored, for lack of budget say, leaves the attempt before it: pools may have forgotten
	// that, so it is sent again.
	again = append(again, stored...)
	for _, x := range fresh {
		if !slices.ContainsFunc(stored, func(s signed) bool { return s.f == x.f }) {
			again = append(again, x.f.recorded())
		}
	}

	r.broadcast(ctx, again)

	return failed
}

// recorded are the newest bytes that are stored for a command.
func (f *flight) recorded() signed { return signed{f: f, attempt: *f.newest()} }

type action int

const (
	doNothing action = iota
	doBroadcast
	doCall
	doVoid
)

// plan says what a command with a nonce needs now, and why if it is given up. Time decides, the database's, as of the
// load: what is waiting goes out again every few blocks or seconds, the lowest nonce for a higher fee, and a command
// that has expired or was cancelled, or that cannot pay while others wait behind it, is voided. What nodes say is for
// people.
func (r *round) plan(ctx context.Context, f *flight) (what action, why refusal, err error) {
	newest, why := f.newest(), f.givenUp()
	switch left, out := r.out[newest.Hash]; {
	case why.code != "" && !f.voiding():
		what = doVoid
	case !out:
		what = doBroadcast
	case r.since(left.head) < r.cfg.BumpBlocks && time.Since(left.at) < r.cfg.ResendEvery:
		what = doNothing
	case r.since(newest.Head) < r.cfg.BumpBlocks && newest.Age < r.cfg.BumpAfter:
		what = doBroadcast
	default:
		what, why, err = r.replace(ctx, f, why)
	}

	return what, why, err
}

// replace is plan for a transaction that has waited for long.
func (r *round) replace(ctx context.Context, f *flight, why refusal) (what action, _ refusal, err error) {
	fees, err := r.cfg.Chain.Fees(ctx)
	lowest := f.Nonce == r.seen.Latest
	switch {
	case err != nil:
	case f.voiding():
		what = doVoid
	case !lowest && fees.enough(f.newest().fee()): // it waits for the ones below
		what = doBroadcast
	case lowest && !r.pays(f, fees) && r.holdsUp(f, fees):
		what, why = doVoid, refusal{command.CodeUnderpriced, "it could not pay what the chain asks for, and held up others"}
	default:
		what = doCall
	}

	return what, why, err
}

// pays reports whether a command may cost what its call costs in the next block.
func (r *round) pays(f *flight, fees Fees) bool {
	return fees.least().worst(f.Gas).Cmp(r.budget(f.MaxFee.Int)) <= 0
}

// holdsUp reports whether others can pay and wait for a nonce above, or for a place in flight.
func (r *round) holdsUp(f *flight, fees Fees) bool {
	waiting := slices.ContainsFunc(r.flights, func(g *flight) bool {
		return g.Nonce > f.Nonce && (g.voiding() || r.pays(g, fees))
	})

	return waiting || r.account.Due <= 0 && r.room() == 0
}

// since is how many blocks there have been after a head.
func (r *round) since(head uint64) uint64 { return r.head - min(head, r.head) }

// errUnsigned means that signing failed: the command waits.
var errUnsigned = errors.New("not signed")

// renew makes the next attempt of a command, as planned. errCap means that its fee is at the cap, errUnsigned
// that signing failed; both have been told.
func (r *round) renew(ctx context.Context, f *flight, plan action, why refusal) (x signed, err error) {
	fees, err := r.cfg.Chain.Fees(ctx)
	if err != nil {
		return x, err
	}

	c, gas, purpose := Call{}, f.Gas, purposeCall
	if plan == doCall {
		message, refused := r.permit(&f.request)
		if refused != nil {
			r.log.ErrorContext(ctx, "a command that has a nonce may not be signed, its nonce is voided",
				slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce), slog.String("code", refused.code),
				slog.String("detail", refused.detail))
			plan, why = doVoid, *refused
		} else {
			c, err = call(&message.Command)
		}
	}

	if plan == doVoid {
		c, purpose = Call{From: r.address, To: r.address, Value: new(big.Int)}, purposeVoid
		gas, err = r.voidGas(ctx, c)
	}

	if err != nil {
		return x, fmt.Errorf("renew command %s: %w", f.CommandID, err)
	}

	fee, err := r.offer(f, fees, gas, plan)
	if errors.Is(err, errCap) && !f.voiding() {
		err = cmp.Or(r.underpriced(ctx, f), err)
	}

	if err == nil {
		x, err = r.sign(ctx, f, c, gas, fee)
		x.attempt.Purpose, x.why = purpose, why
	}

	return x, err
}

// voidGas is what a void needs: an account may have code (EIP-7702).
func (r *round) voidGas(ctx context.Context, void Call) (uint64, error) {
	tried, err := r.cfg.Chain.Simulate(ctx, r.target, []Call{void})
	if err == nil {
		err = tried[0].Failed
	}

	if err != nil {
		return 0, err
	}

	return max(params.TxGas, tried[0].Gas), nil
}

// offer is the price of a command's next attempt. What was reserved with the nonce is there whatever the day has cost
// since. A replacement may ask for more, and gets it if the day's fees allow; so does a void that the reservation
// does not pay for.
func (r *round) offer(f *flight, fees Fees, gas uint64, plan action) (price, error) {
	most, old := r.budget(f.MaxFee.Int), f.newest().fee()
	if plan == doVoid {
		if fee, err := fees.raise(old, gas, smaller(most, f.Reserved.Int)); err == nil {
			return fee, nil
		}
	}

	return fees.raise(old, gas, most)
}

// sign makes the next transaction of a command. errUnsigned means that it failed, which has been told.
func (r *round) sign(ctx context.Context, f *flight, c Call, gas uint64, fee price) (x signed, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.SignWithin, fmt.Errorf("no signature within %s", r.cfg.SignWithin))
	defer cancel()
	raw, hash, err := build(ctx, r.cfg.Signer, uint64(r.cfg.ChainID), f.Nonce, gas, fee, c)
	if err != nil {
		r.signs = false
		if !r.unsigned.Lately(err, time.Now(), sayAgain) {
			r.log.WarnContext(ctx, "signing failed, the command waits", slog.String("command", f.CommandID),
				slog.Any("err", err))
		}

		return x, errUnsigned
	}

	return signed{f: f, worst: fee.worst(gas), attempt: attempt{Number: len(f.Attempts) + 1, Purpose: purposeCall,
		Hash: hash, Raw: raw, Gas: gas, FeeCap: wei{fee.Cap}, TipCap: wei{fee.Tip}}}, nil
}

func (r *round) underpriced(ctx context.Context, f *flight) error {
	changed, err := r.store.note(ctx, f.CommandID, command.CodeUnderpriced,
		"the fee cap is reached; the last transaction stays in the pools")
	if changed {
		r.log.WarnContext(ctx, "fee cap reached", slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce))
	}

	return err
}

// broadcast sends recorded bytes to every endpoint, in the order of their nonces.
func (r *round) broadcast(ctx context.Context, all []signed) {
	if len(all) == 0 || !r.cfg.Valid() {
		return
	}

	slices.SortFunc(all, func(a, b signed) int { return cmp.Compare(a.f.Nonce, b.f.Nonce) })
	raws := make([][]byte, len(all))
	for i, x := range all {
		raws[i] = x.attempt.Raw
	}

	said := r.cfg.Chain.Broadcast(ctx, raws)
	r.cfg.Metrics.broadcasts.WithLabelValues(r.cfg.Name).Add(float64(len(all)))
	for i, x := range all {
		r.out[x.attempt.Hash] = departure{r.head, time.Now()}
		if err := said[i]; err != nil && !r.unsigned.Lately(err, time.Now(), sayAgain) {
			r.log.WarnContext(ctx, "no endpoint has taken a transaction yet, it is sent again",
				slog.String("command", x.f.CommandID), slog.String("tx", x.attempt.Hash.Hex()), slog.Any("err", err))
		}
	}
}
