package send

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// sender is an account for as long as this instance owns it, under one epoch. It works in rounds, each of which begins
// with what the database and the chain say. One goroutine has all of it.
type sender struct {
	cfg     Config // its log names the account
	address common.Address
	store   *store

	// What the newest looks at the chain have shown. The first five are of the newest look at everything and change
	// together; with a new block seen.Latest and head may change alone.
	looked     evm.View  // not Ready: there was no look yet
	lookedAt   time.Time // by the database's clock
	seen       evm.Look
	target     evm.Block // on the ledger's branch: what answers rest on
	generation int64     // of the ledger, as of the target
	head       uint64
	nonces     []spell // ascending, without gaps; the first is that of the target, if there was a look by then

	missing map[uint64]int            // nonces that are final, with no receipt of what was signed: at how many looks
	unnamed []ending                  // what the newest look has shown with an event that the ledger has still to store
	out     map[common.Hash]departure // when the newest bytes of each command left last; empty after a takeover

	failed, unsigned logging.Repeats // why rounds, and signatures, failed

	// What the newest round goes by.
	view    evm.View
	account *account
	flights []*flight
	signs   bool // no signature has failed: else no other one is asked for
	idle    bool // nothing is under way: new blocks are of no interest
}

func newSender(cfg Config, address common.Address, store *store) *sender {
	return &sender{cfg: cfg, address: address, store: store, missing: map[uint64]int{},
		out: map[common.Hash]departure{}}
}

// sayAgain is how often the log repeats why a round or a signature fails.
const sayAgain = time.Minute

// Pauses between two rounds.
const (
	idlePause  = 5 * time.Second        // without any hint
	retryPause = 500 * time.Millisecond // after a round that failed
	namePause  = 250 * time.Millisecond // until the ledger may have come to a block, or stored an event
	minPause   = 10 * time.Millisecond
)

// run works in rounds until ctx ends (nil) or the epoch is another's (ErrFenced).
func (s *sender) run(ctx context.Context, wake <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := s.cfg.Chain.Changed()
		if s.idle {
			changed = nil
		} else if v := s.cfg.Chain.View(); v.Ready && s.view.Ready && v != s.view { // during the round
			timer.Reset(0)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		case <-changed:
		}

		pause, err := s.round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			s.fails(ctx, err)
			pause = retryPause
		}

		timer.Reset(pause)
	}
}

// fails tells of a round that failed.
func (s *sender) fails(ctx context.Context, err error) {
	s.cfg.Metrics.roundErrors.WithLabelValues(s.cfg.Name).Inc()
	if !s.failed.Lately(err, time.Now(), sayAgain) {
		s.cfg.Log.WarnContext(ctx, "sender round failed, retrying", slog.Any("err", err))
	}
}

// round does all that can be done now, and says when to come back at the latest. Where the chain cannot be looked at,
// what is under way goes on by what an earlier look has shown: recorded bytes need none.
func (s *sender) round(ctx context.Context) (pause time.Duration, err error) {
	s.view, s.signs, s.idle = s.cfg.Chain.View(), s.cfg.Signer != nil, false
	if err := s.load(ctx); err != nil {
		return 0, err
	}

	if !s.view.Ready || s.account.LedgerHash == "" {
		return idlePause, nil
	}

	err = s.observe(ctx)
	if s.looked.Ready && !errors.Is(err, ErrFenced) {
		err = errors.Join(err, s.advance(ctx))
	}

	if err == nil {
		err = s.cfg.Keeper.propose(ctx, s)
	}

	if err == nil {
		err = s.admit(ctx)
	}

	return s.rest(), err
}

// load reads the database's side of the round.
func (s *sender) load(ctx context.Context) error {
	account, flights, err := s.store.load(ctx)
	if err != nil {
		return err
	}

	s.account, s.flights = account, flights
	maps.DeleteFunc(s.out, func(h common.Hash, _ departure) bool {
		return !slices.ContainsFunc(flights, func(f *flight) bool { return f.newest().Hash == h })
	})

	return nil
}

// rest is in what time the next round is to be. Without room what waits is of no interest.
func (s *sender) rest() time.Duration {
	pause := min(idlePause, s.cfg.LookEvery)
	if s.idle = len(s.flights) == 0; !s.idle {
		pause = min(pause, s.cfg.ResendEvery)
	}

	if s.room() > 0 {
		pause = min(pause, s.account.Due)
	}

	// Answers wait for the ledger to come to a block, or to store an event.
	mined := !s.idle && !s.open(s.flights[0])
	if len(s.unnamed) > 0 || mined && s.target.Number < s.view.Target {
		pause = min(pause, namePause)
	}

	return max(pause, minPause)
}
