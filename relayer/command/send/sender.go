// Package send carries commands out: it signs the transactions of one account, brings them to the
// nodes, replaces what is not mined, and answers each command once its outcome is final.
//
// One instance at a time owns an account, under an epoch that each of its statements names. Nothing
// is broadcast before its bytes are recorded, and nothing that was sent is answered as done but from a recorded hash.
package send

import (
	"cmp"
	"context"
	"log/slog"
	"math/big"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Limits of one sender, in wei: nothing is signed that may exceed one at worst. A day begins at
// midnight UTC by the database's clock. What is reserved with a nonce counts for the day on which it was
// reserved, so within minutes around midnight as much as two days' limits can be paid.
type Limits struct {
	MaxInFlight int      // nonces under way; geth's pool guarantees an account 16
	MaxFee      *big.Int // of one command; a command's own may be lower
	DayFees     *big.Int // of all commands of a UTC day
	DayValue    *big.Int // that create may send along on a UTC day
}

// Config of a sender. DB, ChainID, Chain, Signer, Limits and Metrics are required.
type Config struct {
	Name       string // of the sender, in metrics
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	Chain      Chain
	Signer     evm.Signer
	Limits     Limits
	Policy     Policy  // who may ask for what; nil: only the keeper
	Keeper     *Keeper // nil: this sender releases nothing by itself
	// Valid reports whether what is held through the session still holds. It is asked before bytes go out. Nil: always.
	Valid func() bool
	// What is not mined goes out again after BumpBlocks blocks (0 means 3) or ResendEvery (0 means 10 s), whichever
	// is first. The lowest nonce is replaced, for a higher fee, BumpBlocks blocks or BumpAfter (0 means a minute)
	// after it was signed: chains that make blocks on demand make none meanwhile.
	BumpBlocks  uint64
	ResendEvery time.Duration
	BumpAfter   time.Duration
	LookEvery   time.Duration // the longest pause between two looks at the account; 0 means 15 s
	SignWithin  time.Duration // how long one signature may take; 0 means 20 s
	HoldFor     time.Duration // the first pause of a command that has to wait; 0 means 1 s
	Log         *slog.Logger
	Metrics     *Metrics
}

// run takes the epoch of the signer's account, which fences the owner before, and works until ctx ends (nil) or another
// instance has taken it (ErrFenced). Trouble with the chain, the signer or the database never ends it. wake fires when
// commands may have come.
func (cfg *Config) run(ctx context.Context, wake <-chan struct{}) error {
	store, err := own(ctx, cfg, cfg.Signer.Address())
	if err != nil {
		return err
	}

	cfg.Log.InfoContext(ctx, "sender taken over", slog.Int64("epoch", store.epoch))

	return newSender(*cfg, cfg.Signer.Address(), store).run(ctx, wake)
}

func (cfg *Config) setDefaults() {
	cfg.BumpBlocks = cmp.Or(cfg.BumpBlocks, 3)
	cfg.ResendEvery = cmp.Or(cfg.ResendEvery, 10*time.Second)
	cfg.BumpAfter = cmp.Or(cfg.BumpAfter, time.Minute)
	cfg.LookEvery = cmp.Or(cfg.LookEvery, 15*time.Second)
	cfg.SignWithin = cmp.Or(cfg.SignWithin, 20*time.Second)
	cfg.HoldFor = cmp.Or(cfg.HoldFor, time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Signer != nil { // else it follows whichever sender has no owner
		cfg.Log = cfg.Log.With(slog.String("sender", registry.Text(cfg.Signer.Address())))
	}

	if cfg.Valid == nil {
		cfg.Valid = func() bool { return true }
	}
}

// tell counts and logs answers that are committed.
func (cfg *Config) tell(ctx context.Context, answers []command.Answer) {
	for _, a := range answers {
		cfg.Metrics.answers.WithLabelValues(string(a.State)).Inc()
		cfg.Log.InfoContext(ctx, "command answered", slog.String("command", a.CommandID),
			slog.String("state", string(a.State)), slog.String("code", a.Code), slog.String("tx", a.Transaction))
	}
}

// budget is what one command may cost at most. Who follows a sender without its key has no limits, and signs nothing.
func (l *Limits) budget(own *big.Int) *big.Int {
	if l.MaxFee == nil {
		return new(big.Int).Set(own)
	}

	return evm.Smaller(own, l.MaxFee)
}
