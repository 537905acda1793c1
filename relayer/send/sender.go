// Package send carries commands out: it signs the transactions of one account, brings them to the
// nodes, replaces what is not mined, and answers each command once its outcome is final.
//
// One instance at a time owns an account, under an epoch that each of its statements names. Nothing
// is broadcast before its bytes are recorded, and nothing is answered but from a recorded hash.
package send

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/params"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Limits of one sender, in wei. They are walls: nothing is signed whose worst case exceeds one. A day
// begins at midnight UTC by the database's clock, and what is set apart with a nonce counts for the day on
// which it was: so within minutes around midnight as much as two days' limits can be paid.
type Limits struct {
	MaxInFlight int      // nonces under way; geth's pool guarantees an account 16
	MaxFee      *big.Int // of one command; a command's own may be lower
	DayFees     *big.Int // of all commands of a UTC day
	DayValue    *big.Int // that create may send along on a UTC day
}

// Config of a Sender. DB, ChainID, Factory, Chain, Signer, Limits and Metrics are required.
type Config struct {
	Name       string // of the sender, in metrics; empty: its address
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	Factory    common.Address
	Chain      Chain
	Signer     Signer
	Limits     Limits
	Policy     Policy  // who may ask for what; nil: only the keeper
	Keeper     *Keeper // nil: this sender releases nothing by itself
	// Valid says whether what is held through the session still holds. It is asked before bytes go out. Nil: always.
	Valid      func() bool
	BumpBlocks uint64        // an attempt that is not mined after so many blocks is replaced; 0 means 3
	LookEvery  time.Duration // the account is looked at so often also when nothing asks for it; 0 means 15 s
	SignWithin time.Duration // bound of one signature; 0 means 20 s
	HandOver   time.Duration // a sender is handed over that has been another instance's share for so long; 0 means 30 s
	Log        *slog.Logger
	Metrics    *Metrics
}

// Sender is one account while this instance owns it. It remembers nothing that matters: each round
// begins with what the database and the chain say.
type Sender struct {
	cfg     Config
	address common.Address
	store   *store
	log     *slog.Logger

	// Of Run's goroutine alone.
	sight     sight
	resend    bool           // recorded bytes are to go out again: after a takeover, and after a deep reorganisation
	missing   map[uint64]int // nonces that are final, with no receipt of what was signed: at how many looks
	delegated bool
	idle      bool // nothing is under way: new blocks are of no interest
	unsigned  bool // in this round a signature failed: no other one is asked for
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Sender, error) {
	l := cfg.Limits
	switch {
	case cfg.DB == nil || cfg.ChainID <= 0 || cfg.Chain == nil || cfg.Signer == nil || cfg.Metrics == nil ||
		cfg.Factory == (common.Address{}):
		return nil, errors.New("send: DB, ChainID, Factory, Chain, Signer and Metrics are required")
	case l.MaxInFlight < 1 || l.MaxFee == nil || l.DayFees == nil || l.DayValue == nil:
		return nil, errors.New("send: all limits are required")
	}

	if cfg.BumpBlocks == 0 {
		cfg.BumpBlocks = 3
	}

	if cfg.LookEvery == 0 {
		cfg.LookEvery = 15 * time.Second
	}

	if cfg.HandOver == 0 {
		cfg.HandOver = 30 * time.Second
	}

	if cfg.SignWithin == 0 {
		cfg.SignWithin = 20 * time.Second
	}

	if cfg.Valid == nil {
		cfg.Valid = func() bool { return true }
	}

	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	address := cfg.Signer.Address()
	if cfg.Name == "" {
		cfg.Name = text(address)
	}

	return &Sender{cfg: cfg, address: address, missing: map[uint64]int{},
		log: cfg.Log.With(slog.String("sender", text(address)))}, nil
}

// text is an address as tables have it.
func text(a common.Address) string { return "0x" + hex.EncodeToString(a[:]) }

// Pauses of Run's loop.
const (
	idlePause  = 5 * time.Second        // without any hint
	retryPause = 500 * time.Millisecond // after a round that failed
	minPause   = 10 * time.Millisecond
)

// Run takes the epoch of the sender, which fences whoever had it before, and works until ctx ends
// (nil) or another instance has taken it (ErrFenced). Trouble with the chain, the signer or the
// database never ends it. wake fires when commands may have come.
func (s *Sender) Run(ctx context.Context, wake <-chan struct{}) error {
	store, err := own(ctx, &s.cfg, s.address)
	if err != nil {
		return err
	}

	s.store, s.resend = store, true
	s.log.InfoContext(ctx, "sender taken over", slog.Int64("epoch", store.epoch))

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := s.cfg.Chain.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		case <-s.advanced(changed):
		}

		pause, err := s.round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			s.cfg.Metrics.roundErrors.WithLabelValues(s.cfg.Name).Inc()
			s.log.WarnContext(ctx, "sender round failed, retrying", slog.Any("err", err))
			pause = retryPause
		}

		timer.Reset(pause)
	}
}

// advanced is changed, or closed when the view has moved since the last round; never while the
// sender has nothing under way.
func (s *Sender) advanced(changed <-chan struct{}) <-chan struct{} {
	switch v := s.cfg.Chain.View(); {
	case s.idle:
		return nil
	case v.Ready && s.sight.seen.Ready && v != s.sight.seen:
		closed := make(chan struct{})
		close(closed)

		return closed
	}

	return changed
}

// round does all that can be done now, and says when to come back at the latest.
func (s *Sender) round(ctx context.Context) (time.Duration, error) {
	s.unsigned = false
	account, flights, err := s.store.load(ctx)
	if err != nil {
		return 0, err
	}

	// Commands that expired or were cancelled are answered whatever the chain and the sender are in.
	if err := s.dismiss(ctx); err != nil {
		return 0, err
	}

	view := s.cfg.Chain.View()
	s.sight.seen, s.idle = view, false
	if !view.Ready {
		return idlePause, nil
	}

	looked, err := s.watch(ctx, view, &account, flights)
	if err != nil {
		return 0, err
	}

	if looked {
		if account, flights, err = s.store.load(ctx); err != nil {
			return 0, err
		}
	}

	if account.NextNonce == nil {
		return retryPause, nil
	}

	s.idle = len(flights) == 0

	if account.State != "halted" {
		if err := s.care(ctx, flights); err != nil {
			return 0, err
		}

		s.resend = false
	}

	if s.cfg.Keeper != nil {
		if err := s.cfg.Keeper.propose(ctx, s); err != nil {
			return 0, err
		}
	}

	room := s.room(&account, flights)
	more, err := s.admit(ctx, room, flights)
	if err != nil {
		return 0, err
	}

	if more {
		return minPause, nil
	}

	return s.rest(ctx, room > 0)
}

// rest is how long to wait for a notification or a new block before the next round. Without room what waits
// is of interest only when it expires.
func (s *Sender) rest(ctx context.Context, room bool) (time.Duration, error) {
	longest := min(idlePause, s.cfg.LookEvery)
	pause, some, err := s.store.due(ctx, room)
	if err != nil || !some || pause > longest {
		return longest, err
	}

	return max(pause, minPause), nil
}

// observe looks at everything: what became final, what was taken back, and whether somebody else
// uses the key.
func (s *Sender) observe(ctx context.Context, view View, account *account, flights []*flight) error {
	first := !s.sight.looked.Ready
	checked := uint64(0)
	if account.CheckedBlock != nil {
		checked = uint64(*account.CheckedBlock)
	}

	look, err := s.cfg.Chain.Look(ctx, s.address, view.Target, checked, first)
	if err != nil {
		return err
	}

	if first {
		s.delegated = look.Delegated
	}

	if account.NextNonce == nil {
		if err := s.store.adoptFirst(ctx, max(look.Latest, look.Pending)); err != nil {
			return err
		}
	} else if err := s.checkForeign(ctx, account, look); err != nil {
		return err
	}

	// The block that was checked last is the only witness of a reorganisation below it. So it is
	// replaced only when it was compared, and never by a lower one, which a lagging node may show.
	reached := look.CheckedHash != (common.Hash{})
	moved := checked > 0 && reached && look.CheckedHash != common.HexToHash(deref(account.CheckedHash))
	if moved {
		if reached, err = s.takeBack(ctx, view.Target); err != nil {
			return err
		}

		if _, flights, err = s.store.load(ctx); err != nil {
			return err
		}
	}

	// The witness before the answers: were this process ended between the two, nobody would find out
	// that a block was replaced which lies above the witness and an answer rests on.
	if checked == 0 || reached && (view.Target > checked || moved && view.Target == checked) {
		if err := s.store.checked(ctx, view.Target, look.TargetHash, look.Balance); err != nil {
			return err
		}
	}

	// What was not compared with the witness may be of another branch, and its reorganisation the way back
	// to the witness': nobody would notice that an answer rests on it.
	s.sight.branch = Block{}
	if checked == 0 || reached {
		s.sight.branch = Block{view.Target, look.TargetHash}
		if err := s.settle(ctx, view, look, flights); err != nil {
			return err
		}
	}

	s.sight.looked, s.sight.lookedAt, s.sight.look = view, account.Now, look
	s.sight.latest(look.Latest, view.Head, flights)

	return nil
}

func deref(p *string) string {
	if p == nil {
		return ""
	}

	return *p
}

// checkForeign halts the sender when the chain knows of nonces that were never given out here:
// somebody else has the key, or the database was restored to an earlier time. A node that lies
// about it can stop the sender, and no more than that.
func (s *Sender) checkForeign(ctx context.Context, account *account, look Look) error {
	next := uint64(*account.NextNonce)
	seen := max(look.Latest, look.Pending)
	if seen <= next || account.State == "halted" {
		return nil
	}

	return s.halt(ctx, account,
		fmt.Sprintf("the chain knows nonces up to %d, but %d is the next one here: somebody else used the key, or the database was restored to an earlier time. "+
			"Look at the account in an explorer, then run `escrow-relayer sender adopt-nonce --sender %s --nonce %d`", seen-1,
			next, text(s.address), seen))
}

func (s *Sender) halt(ctx context.Context, account *account, reason string) error {
	changed, err := s.store.halt(ctx, reason)
	if err != nil {
		return err
	}

	account.State = "halted"
	if changed {
		s.log.ErrorContext(ctx, "sender halted", slog.String("reason", reason))
	}

	return nil
}

// takeBack reopens the answers whose blocks are not on the chain any more. Blocks are linked, so
// below the first one that still is, all are. What a node does not have it says nothing about: then
// nothing is reopened, and reached is false.
func (s *Sender) takeBack(ctx context.Context, target uint64) (reached bool, err error) {
	var void []string
	for below := uint64(math.MaxInt64); ; {
		blocks, err := s.store.answeredBelow(ctx, below)
		if err != nil {
			return false, err
		}

		numbers := make([]uint64, len(blocks))
		for i, b := range blocks {
			numbers[i] = b.Number
		}

		hashes, err := s.cfg.Chain.Hashes(ctx, numbers...)
		if err != nil {
			return false, err
		}

		if slices.Contains(hashes, common.Hash{}) {
			return false, nil
		}

		gone := 0
		for gone < len(blocks) && hashes[gone] != blocks[gone].Hash {
			void = append(void, blocks[gone].Hash.Hex())
			gone++
		}

		if gone < len(blocks) || gone == 0 {
			break
		}

		below = blocks[gone-1].Number
	}

	if len(void) == 0 {
		return true, nil
	}

	n, err := s.store.reopen(ctx, void)
	if err != nil {
		return false, err
	}

	s.resend = true
	s.cfg.Metrics.reopened.WithLabelValues(s.cfg.Name).Add(float64(n))
	s.log.ErrorContext(ctx, "a reorganisation took answers back", slog.Int("commands", n), slog.Uint64("target", target))

	return true, nil
}

// patience is how many looks a nonce may be final with no receipt of what was signed for it before
// the sender halts, or an operator's word that somebody else used it counts: nodes index receipts late.
const patience = 10

// settle answers the commands whose nonce is used up in a final block, from the receipt of what was
// recorded. Without one it never guesses.
func (s *Sender) settle(ctx context.Context, view View, look Look, flights []*flight) error {
	var hashes []common.Hash
	for _, f := range flights {
		if f.Nonce < look.Final {
			for _, a := range f.Attempts {
				hashes = append(hashes, a.Hash)
			}
		}
	}

	receipts := map[common.Hash]*Receipt{}
	if len(hashes) > 0 {
		found, err := s.cfg.Chain.Receipts(ctx, s.sight.branch, hashes)
		if err != nil {
			return err
		}

		for i, r := range found {
			if r != nil {
				receipts[hashes[i]] = r
			}
		}
	}

	var endings []ending
	var lost *flight
	for _, f := range flights {
		if f.Nonce >= look.Final {
			delete(s.missing, f.Nonce)
			continue
		}

		if e, ok := outcomeOf(f, receipts, s.cfg.Factory); ok {
			endings = append(endings, s.because(e, f))
			delete(s.missing, f.Nonce)
		} else if s.missing[f.Nonce]++; s.missing[f.Nonce] < patience {
			continue
		} else if f.Abandoned {
			endings = append(endings, ending{id: f.ID, state: command.Superseded, code: command.CodeForeignNonce,
				detail: fmt.Sprintf("nonce %d was used by a transaction that was not signed here", f.Nonce)})
		} else if lost == nil {
			lost = f
		}
	}

	named, err := s.store.name(ctx, endings)
	if err != nil {
		return err
	}

	if err := s.end(ctx, named); err != nil || lost == nil {
		return err
	}

	return s.confirmForeign(ctx, view, lost)
}

// outcomeOf is what the receipts say of a command.
func outcomeOf(f *flight, receipts map[common.Hash]*Receipt, factory common.Address) (e ending, ok bool) {
	for _, a := range f.Attempts {
		r := receipts[a.Hash]
		if r == nil {
			continue
		}

		block, hash := int64(r.Block), r.BlockHash.Hex()
		e = ending{id: f.ID, tx: r.Hash.Hex(), block: &block, blockHash: &hash, feePaid: r.FeePaid}
		switch {
		case a.Purpose == purposeVoid:
			e.state, e.code = command.Voided, f.whyVoid()
		case !r.Succeeded:
			e.state, e.code = command.Reverted, command.CodeReverts
		case !acted(r, f.Kind, f.Escrow, factory):
			e.state, e.code = command.Reverted, command.CodeNoEffect
			e.detail = "the transaction succeeded and the escrow emitted nothing: a reorganisation took the escrow away"
		default:
			e.state = command.Done
			if int64(r.Time) > f.ExpiresAt.Unix() {
				e.state = command.DoneLate
			}

			e.event = eventOf(r, f.Kind, f.Escrow, factory)
		}

		return e, true
	}

	return e, false
}

// because gives a void that nobody asked for its reason, where that was not the time.
func (s *Sender) because(e ending, f *flight) ending {
	if e.code == command.CodeExpired {
		if _, refused := s.permit(&f.request); refused != nil {
			e.code, e.detail = refused.code, refused.detail
		}
	}

	return e
}

// whyVoid is the reason why a command was given up.
func (f *flight) whyVoid() string {
	if f.CancelRequested {
		return command.CodeCancelled
	}

	for _, a := range f.Attempts {
		if a.Purpose == purposeCall && a.Refused {
			return command.CodeNodesRefuse
		}
	}

	return command.CodeExpired
}

// confirmForeign asks every node before it says that a nonce was used by somebody else.
func (s *Sender) confirmForeign(ctx context.Context, view View, f *flight) error {
	look, err := s.cfg.Chain.Look(ctx, s.address, view.Target, 0, true)
	if err != nil {
		return err
	}

	if f.Nonce >= look.Final {
		return nil
	}

	return s.halt(ctx, &account{},
		fmt.Sprintf("nonce %d is used up in a final block, but by none of the %d transactions that were signed for command %s: somebody else used the key. "+
			"Look at the account in an explorer, then run `escrow-relayer sender adopt-nonce --sender %s --nonce %d`", f.Nonce,
			len(f.Attempts), f.ID, text(s.address), max(look.Latest, look.Pending)))
}

// care brings what has a nonce on: signs, replaces, voids, broadcasts again. After the first signature that
// fails it signs no more: were each of many waited for, nothing would be answered or sent again meanwhile.
func (s *Sender) care(ctx context.Context, flights []*flight) error {
	open := flights[:0:0]
	for _, f := range flights {
		if f.Nonce >= s.sight.look.Latest { // the others are mined: their time comes
			open = append(open, f)
		}
	}

	var again []signed // recorded bytes
	var fresh []signed
	for _, f := range open {
		newest := f.newest()
		plan, err := s.plan(ctx, f)
		if err != nil {
			return err
		}

		switch {
		case plan == doNothing:
		case plan == doBroadcast:
			again = append(again, signed{f: f, attempt: *newest})
		case s.unsigned:
		default:
			x, err := s.renew(ctx, f, plan)
			switch {
			case errors.Is(err, errCap):
				again = append(again, signed{f: f, attempt: *newest})
			case errors.Is(err, errUnsigned):
			case err != nil:
				return err
			default:
				fresh = append(fresh, x)
			}
		}
	}

	if len(fresh) > 0 {
		stored, err := s.store.record(ctx, fresh, s.sight.head, s.cfg.Limits)
		if err != nil {
			return err
		}

		again = append(again, stored...)
		again = append(again, unreplaced(fresh, stored)...)
	}

	return s.broadcast(ctx, inOrder(open, again))
}

// inOrder sorts what is to be broadcast by nonce, and leaves out what is above a nonce for which nothing
// is signed. A pool would keep it for later and not count it, so a database that is restored to an earlier
// time would give its nonce out again, and nothing would tell (C1).
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

// errUnsigned means that signing failed: the command waits.
var errUnsigned = errors.New("not signed")

// renew makes the next attempt of a command, as planned. errCap means that nothing more may be paid for
// it, errUnsigned that there is no signature now; both have been told.
func (s *Sender) renew(ctx context.Context, f *flight, plan action) (x signed, err error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return x, err
	}

	var message *command.Signed // nil: a void
	if plan == doCall {
		message = s.permitted(ctx, f)
	}

	x, err = s.sign(ctx, f, fees, message)
	switch {
	case errors.Is(err, errCap):
		if err := s.underpriced(ctx, f); err != nil {
			return x, err
		}
	case err != nil:
		s.cfg.Metrics.signErrors.WithLabelValues(s.cfg.Name).Inc()
		s.log.WarnContext(ctx, "signing failed, the command waits", slog.String("command", f.ID), slog.Any("err", err))
		return x, errUnsigned
	}

	return x, err
}

// unreplaced are the newest attempts of those whose replacement was not stored, for want of budget
// say: pools may have forgotten them, so they are sent again.
func unreplaced(fresh, stored []signed) (again []signed) {
	replaced := map[uint64]bool{}
	for _, x := range stored {
		replaced[x.f.Nonce] = true
	}

	for _, x := range fresh {
		if newest := x.f.newest(); newest != nil && !replaced[x.f.Nonce] {
			again = append(again, signed{f: x.f, attempt: *newest})
		}
	}

	return again
}

type action int

const (
	doNothing action = iota
	doBroadcast
	doCall
	doVoid
)

// plan says what a command with a nonce needs now. Time is the database's, as of the load.
func (s *Sender) plan(ctx context.Context, f *flight) (action, error) {
	newest := f.newest()
	giveUp := f.CancelRequested || f.expired || newest != nil && newest.Refused
	switch {
	case newest == nil && giveUp:
		return doVoid, nil
	case newest == nil:
		return doCall, nil
	case s.resend:
		return doBroadcast, nil
	case giveUp && !f.voiding():
		return doVoid, nil
	case !newest.Broadcast:
		return doBroadcast, nil
	}

	replace := doCall
	if f.voiding() {
		replace = doVoid
	}

	since := s.sight.head - min(newest.BroadcastHead, s.sight.head)
	switch {
	case strings.Contains(newest.LastError, ErrUnderpriced.Error()):
		if since > 0 && f.Code != command.CodeUnderpriced || since >= s.cfg.BumpBlocks {
			return replace, nil
		}

	case newest.LastError != "" && since > 0: // nobody may have it: it is to be known first
		return doBroadcast, nil
	case since >= s.cfg.BumpBlocks:
		fees, err := s.cfg.Chain.Fees(ctx)
		if err != nil {
			return doNothing, err
		}

		if f.Nonce == s.sight.look.Latest || !fees.enough(newest.Fee) {
			return replace, nil
		}
	}

	return doNothing, nil
}

// permitted is the message of a command if it may be signed, and nil if its nonce is to be voided.
func (s *Sender) permitted(ctx context.Context, f *flight) *command.Signed {
	message, refused := s.permit(&f.request)
	if refused != nil {
		s.log.ErrorContext(ctx, "a command that has a nonce may not be signed, its nonce is voided",
			slog.String("command", f.ID), slog.Uint64("nonce", f.Nonce), slog.String("code", refused.code),
			slog.String("detail", refused.detail))
	}

	return message
}

// sign makes the next attempt for a command: the call that its message asks for, or a void without one.
func (s *Sender) sign(ctx context.Context, f *flight, fees Fees, message *command.Signed) (x signed, err error) {
	var c Call
	gas, purpose := f.Gas, purposeCall
	if message == nil {
		c, purpose = Call{From: s.address, To: s.address, Value: new(big.Int)}, purposeVoid
		tried, err := s.cfg.Chain.Simulate(ctx, s.sight.seen.Target, []Call{c})
		if err != nil {
			return x, err
		}

		gas = max(params.TxGas, tried[0].Gas)
	} else if c, err = call(&message.Command); err != nil {
		return x, fmt.Errorf("encode the call of command %s: %w", f.ID, err)
	}

	// What was set apart with the nonce is there whatever the day has cost since. A replacement may ask
	// for more, and gets it if the day's fees allow.
	budget, newest := s.budget(f.MaxFee), f.newest()
	if (newest == nil || message == nil) && f.Reserved.Cmp(budget) < 0 {
		budget = f.Reserved
	}

	fee := fees.first()
	if newest != nil {
		if fee, err = fees.raise(newest.Fee, gas, budget); err != nil {
			return x, err
		}
	}

	worst := fee.worst(gas)
	if worst.Cmp(budget) > 0 { // the first attempt, if fees have risen since its nonce was assigned
		fee.Cap = new(big.Int).Div(budget, new(big.Int).SetUint64(gas))
		if fee.Tip != nil && fee.Tip.Cmp(fee.Cap) > 0 {
			fee.Tip = new(big.Int).Set(fee.Cap)
		}

		worst = fee.worst(gas)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.SignWithin, fmt.Errorf("no signature within %s", s.cfg.SignWithin))
	defer cancel()
	raw, hash, err := build(ctx, s.cfg.Signer, uint64(s.cfg.ChainID), f.Nonce, gas, fee, c)
	if err != nil {
		s.unsigned = true
		return x, err
	}

	return signed{f: f, worst: worst, attempt: attempt{Number: len(f.Attempts) + 1, Purpose: purpose, Hash: hash,
		Raw: raw, Gas: gas, Fee: fee}}, nil
}

// budget is what one command may cost at most.
func (s *Sender) budget(own *big.Int) *big.Int {
	if own.Cmp(s.cfg.Limits.MaxFee) < 0 {
		return own
	}

	return s.cfg.Limits.MaxFee
}

func (s *Sender) underpriced(ctx context.Context, f *flight) error {
	changed, err := s.store.note(ctx, f.ID, command.CodeUnderpriced,
		"the fee cap is reached; the last transaction stays in the pools")
	if changed {
		s.cfg.Metrics.underpriced.WithLabelValues(s.cfg.Name).Inc()
		s.log.WarnContext(ctx, "fee cap reached", slog.String("command", f.ID), slog.Uint64("nonce", f.Nonce))
	}

	return err
}

// broadcast sends recorded bytes to every endpoint.
func (s *Sender) broadcast(ctx context.Context, all []signed) error {
	if len(all) == 0 || !s.cfg.Valid() {
		return nil
	}

	raws := make([][]byte, len(all))
	for i, x := range all {
		raws[i] = x.attempt.Raw
	}

	results := s.cfg.Chain.Broadcast(ctx, raws)
	heard := make([]told, len(all))
	for i, x := range all {
		heard[i] = told{nonce: x.f.Nonce, attempt: x.attempt.Number}
		heard[i].refused, heard[i].err = verdict(results[i])
	}

	s.cfg.Metrics.broadcasts.WithLabelValues(s.cfg.Name).Add(float64(len(all)))

	return s.store.broadcast(ctx, heard, s.sight.head)
}

// verdict sums up what the endpoints said. One that accepted is enough.
func verdict(results []error) (refused bool, words string) {
	refused = len(results) > 0
	var errs []string
	for _, err := range results {
		if err == nil {
			return false, ""
		}

		refused = refused && errors.Is(err, ErrRefused)
		errs = append(errs, err.Error())
	}

	words = strings.ToValidUTF8(strings.Join(errs, "; "), "?")

	return refused, words[:min(len(words), 500)]
}
