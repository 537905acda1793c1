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
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// departure is when bytes left this process for the last time.
type departure struct {
	head uint64
	at   time.Time
}

// open reports whether no block has a command's nonce: it takes a place in the pools.
func (s *sender) open(f *flight) bool { return f.Nonce >= s.seen.Latest }

// advance takes every command that has a nonce a step further: replaces, voids, broadcasts again. After the
// first signature that fails it stops signing: if it waited for each of many, answers and broadcasts would wait too.
func (s *sender) advance(ctx context.Context) error {
	if s.account.State == "halted" {
		return nil
	}

	var again, fresh []signed // recorded bytes, and new ones
	var failed error          // of one command: the others go out, and so does what is recorded of it
	for _, f := range s.flights {
		if !s.open(f) { // it is mined: its time comes
			continue
		}

		plan, why, err := s.plan(ctx, f)
		if err == nil && plan > doBroadcast && s.signs {
			var x signed
			if x, err = s.renew(ctx, f, plan, why); err == nil {
				fresh = append(fresh, x)
				continue
			}
		}

		if err != nil && !errors.Is(err, evm.ErrCap) && !errors.Is(err, errUnsigned) {
			failed, plan = cmp.Or(failed, err), doBroadcast
		}

		// Without a signer the bytes that there are have to do.
		if plan != doNothing && (s.cfg.Signer != nil || !f.CancelRequested && !f.Expired) {
			again = append(again, f.recorded())
		}
	}

	stored, err := s.store.record(ctx, fresh, s.head, s.cfg.Limits)
	if err != nil {
		return err
	}

	// A replacement that was not stored, for lack of budget say, leaves the attempt before it: pools may have forgotten
	// that, so it is sent again.
	again = append(again, stored...)
	for _, x := range fresh {
		if !slices.ContainsFunc(stored, func(y signed) bool { return y.f == x.f }) {
			again = append(again, x.f.recorded())
		}
	}

	s.broadcast(ctx, again)

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
func (s *sender) plan(ctx context.Context, f *flight) (what action, why refusal, err error) {
	newest, why := f.newest(), f.givenUp()
	switch left, out := s.out[newest.Hash]; {
	case why.code != "" && !f.voiding():
		what = doVoid
	case !out:
		what = doBroadcast
	case s.since(left.head) < s.cfg.BumpBlocks && time.Since(left.at) < s.cfg.ResendEvery:
		what = doNothing
	case s.since(newest.Head) < s.cfg.BumpBlocks && newest.Age < s.cfg.BumpAfter:
		what = doBroadcast
	default:
		what, why, err = s.replace(ctx, f, why)
	}

	return what, why, err
}

// replace is plan for a transaction that has waited for long.
func (s *sender) replace(ctx context.Context, f *flight, why refusal) (what action, _ refusal, err error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	lowest := f.Nonce == s.seen.Latest
	switch {
	case err != nil:
	case f.voiding():
		what = doVoid
	case !lowest && fees.Enough(f.newest().fee()): // it waits for the ones below
		what = doBroadcast
	case lowest && !s.pays(f, fees) && s.holdsUp(f, fees):
		what, why = doVoid, refusal{command.CodeUnderpriced, "it could not pay what the chain asks for, and held up others"}
	default:
		what = doCall
	}

	return what, why, err
}

// pays reports whether a command may cost what its call costs in the next block.
func (s *sender) pays(f *flight, fees evm.Fees) bool {
	return fees.Least().Worst(f.Gas).Cmp(s.cfg.Limits.budget(f.MaxFee.Int)) <= 0
}

// holdsUp reports whether others can pay and wait for a nonce above, or for a place in flight.
func (s *sender) holdsUp(f *flight, fees evm.Fees) bool {
	waiting := slices.ContainsFunc(s.flights, func(g *flight) bool {
		return g.Nonce > f.Nonce && (g.voiding() || s.pays(g, fees))
	})

	return waiting || s.account.Due <= 0 && s.room() == 0
}

// since is how many blocks there have been after a head.
func (s *sender) since(head uint64) uint64 { return s.head - min(head, s.head) }

// errUnsigned means that signing failed: the command waits.
var errUnsigned = errors.New("not signed")

// renew makes the next attempt of a command, as planned. errCap means that its fee is at the cap, errUnsigned
// that signing failed; both have been told.
func (s *sender) renew(ctx context.Context, f *flight, plan action, why refusal) (x signed, err error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return x, err
	}

	c, gas, purpose := evm.Call{}, f.Gas, purposeCall
	if plan == doCall {
		message, refused := s.cfg.permit(s.address, &f.request)
		if refused != nil {
			s.cfg.Log.ErrorContext(ctx, "a command that has a nonce may not be signed, its nonce is voided",
				slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce), slog.String("code", refused.code),
				slog.String("detail", refused.detail))
			plan, why = doVoid, *refused
		} else {
			c, err = evm.CallOf(&message.Command)
		}
	}

	if plan == doVoid {
		c, purpose = evm.Call{From: s.address, To: s.address, Value: new(big.Int)}, purposeVoid
		gas, err = s.voidGas(ctx, c)
	}

	if err != nil {
		return x, fmt.Errorf("renew command %s: %w", f.CommandID, err)
	}

	fee, err := s.offer(f, fees, gas, plan)
	if errors.Is(err, evm.ErrCap) && !f.voiding() {
		err = cmp.Or(s.underpriced(ctx, f), err)
	}

	if err == nil {
		x, err = s.sign(ctx, f, c, gas, fee)
		x.attempt.Purpose, x.why = purpose, why
	}

	return x, err
}

// voidGas is what a void needs: an account may have code (EIP-7702).
func (s *sender) voidGas(ctx context.Context, void evm.Call) (uint64, error) {
	tried, err := s.cfg.Chain.Simulate(ctx, s.target, []evm.Call{void})
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
func (s *sender) offer(f *flight, fees evm.Fees, gas uint64, plan action) (evm.Price, error) {
	most, old := s.cfg.Limits.budget(f.MaxFee.Int), f.newest().fee()
	if plan == doVoid {
		if fee, err := fees.Raise(old, gas, evm.Smaller(most, f.Reserved.Int)); err == nil {
			return fee, nil
		}
	}

	return fees.Raise(old, gas, most)
}

// sign makes the next transaction of a command. errUnsigned means that it failed, which has been told.
func (s *sender) sign(ctx context.Context, f *flight, c evm.Call, gas uint64, fee evm.Price) (x signed, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.SignWithin, fmt.Errorf("no signature within %s", s.cfg.SignWithin))
	defer cancel()
	raw, hash, err := evm.Sign(ctx, s.cfg.Signer, uint64(s.cfg.ChainID), f.Nonce, gas, fee, c)
	if err != nil {
		s.signs = false
		if !s.unsigned.Lately(err, time.Now(), sayAgain) {
			s.cfg.Log.WarnContext(ctx, "signing failed, the command waits", slog.String("command", f.CommandID),
				slog.Any("err", err))
		}

		return x, errUnsigned
	}

	return signed{f: f, worst: fee.Worst(gas), attempt: attempt{Number: len(f.Attempts) + 1, Purpose: purposeCall,
		Hash: hash, Raw: raw, Gas: gas, FeeCap: wei{fee.Cap}, TipCap: wei{fee.Tip}}}, nil
}

func (s *sender) underpriced(ctx context.Context, f *flight) error {
	changed, err := s.store.note(ctx, f.CommandID, command.CodeUnderpriced,
		"the fee cap is reached; the last transaction stays in the pools")
	if changed {
		s.cfg.Log.WarnContext(ctx, "fee cap reached", slog.String("command", f.CommandID), slog.Uint64("nonce", f.Nonce))
	}

	return err
}

// broadcast sends recorded bytes to every endpoint, in the order of their nonces.
func (s *sender) broadcast(ctx context.Context, all []signed) {
	if len(all) == 0 || !s.cfg.Valid() {
		return
	}

	slices.SortFunc(all, func(a, b signed) int { return cmp.Compare(a.f.Nonce, b.f.Nonce) })
	raws := make([][]byte, len(all))
	for i, x := range all {
		raws[i] = x.attempt.Raw
	}

	said := s.cfg.Chain.Broadcast(ctx, raws)
	s.cfg.Metrics.broadcasts.WithLabelValues(s.cfg.Name).Add(float64(len(all)))
	for i, x := range all {
		s.out[x.attempt.Hash] = departure{s.head, time.Now()}
		if err := said[i]; err != nil && !s.unsigned.Lately(err, time.Now(), sayAgain) {
			s.cfg.Log.WarnContext(ctx, "no endpoint has taken a transaction yet, it is sent again",
				slog.String("command", x.f.CommandID), slog.String("tx", x.attempt.Hash.Hex()), slog.Any("err", err))
		}
	}
}
