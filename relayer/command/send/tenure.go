package send

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// shared is what all parts of a tenure use. Nothing of it changes.
type shared struct {
	cfg     *Config
	address common.Address
	store   *store
	log     *slog.Logger
}

// end stores final states, as of a generation of the ledger, and says so.
func (s *shared) end(ctx context.Context, endings []ending, generation int64) ([]command.Answer, error) {
	answers, err := s.store.finish(ctx, endings, generation)
	if err != nil {
		return nil, err
	}

	s.tell(ctx, answers)

	return answers, nil
}

// tell counts and logs answers that are committed.
func (s *shared) tell(ctx context.Context, answers []command.Answer) {
	s.cfg.Metrics.answers.Count(answers)
	for _, a := range answers {
		s.log.InfoContext(ctx, "command answered", slog.String("command", a.CommandID),
			slog.String("state", string(a.State)), slog.String("code", a.Code), slog.String("tx", a.Transaction))
	}
}

// budget is what one command may cost at most. Who follows a sender without its key has no limits, and signs nothing.
func (s *shared) budget(own *big.Int) *big.Int {
	if s.cfg.Limits.MaxFee == nil {
		return new(big.Int).Set(own)
	}

	return smaller(own, s.cfg.Limits.MaxFee)
}

// tenure is the time for which this instance owns the sender, under one epoch. It works in rounds, each of
// which begins with what the database and the chain say. One goroutine has all of it.
type tenure struct {
	shared
	observer observer
	out      map[common.Hash]departure // the last time that the newest bytes of each command left; empty after a takeover
	view     View                      // that the last round went by
	idle     bool                      // nothing is under way: new blocks are of no interest

	failed, unsigned logging.Repeats // why rounds, and signatures, failed
}

func newTenure(all shared) *tenure {
	return &tenure{shared: all, out: map[common.Hash]departure{},
		observer: observer{shared: all, missing: map[uint64]int{}}}
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
func (t *tenure) run(ctx context.Context, wake <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := t.cfg.Chain.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		case <-t.viewMoved(changed):
		}

		pause, err := t.work(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			t.cfg.Metrics.roundErrors.WithLabelValues(t.cfg.Name).Inc()
			if !t.failed.Lately(err, time.Now(), sayAgain) {
				t.log.WarnContext(ctx, "sender round failed, retrying", slog.Any("err", err))
			}

			pause = retryPause
		}

		timer.Reset(pause)
	}
}

// viewMoved is changed, or closed when the view has moved since the last round; never while the
// sender has nothing under way.
func (t *tenure) viewMoved(changed <-chan struct{}) <-chan struct{} {
	switch v := t.cfg.Chain.View(); {
	case t.idle:
		return nil
	case v.Ready && t.view.Ready && v != t.view:
		closed := make(chan struct{})
		close(closed)

		return closed
	}

	return changed
}

// work is one round: it does all that can be done now, and says when to come back at the latest.
func (t *tenure) work(ctx context.Context) (time.Duration, error) {
	account, flights, err := t.store.load(ctx)
	if err != nil {
		return 0, err
	}

	// Commands that expired or were cancelled are answered whatever the chain and the sender are in.
	dismissed, err := dismiss(ctx, t.cfg.DB, t.cfg.ChainID, lockDismissible, pgx.StrictNamedArgs{"sender": t.store.sender})
	if err != nil {
		return 0, err
	}

	t.tell(ctx, dismissed)
	t.view, t.idle = t.cfg.Chain.View(), false
	if !t.view.Ready || account.LedgerHash == "" {
		return idlePause, nil
	}

	looked, err := t.observer.watch(ctx, t.view, account, flights)
	if err != nil {
		return 0, err
	}

	if looked {
		if account, flights, err = t.store.load(ctx); err != nil {
			return 0, err
		}
	}

	if account.NextNonce == nil {
		return retryPause, nil
	}

	t.idle = len(flights) == 0
	maps.DeleteFunc(t.out, func(h common.Hash, _ departure) bool {
		return !slices.ContainsFunc(flights, func(f *flight) bool { return slices.Contains(f.hashes(), h) })
	})
	r := &round{shared: t.shared, view: t.view, sight: t.observer.sight, account: account, flights: flights, out: t.out,
		heard: &t.unsigned}
	if account.State != "halted" {
		if err := r.advance(ctx); err != nil {
			return 0, err
		}
	}

	if t.cfg.Signer == nil { // it only follows
		return t.soon(min(idlePause, t.cfg.LookEvery), flights), nil
	}

	if t.cfg.Keeper != nil {
		if err := t.cfg.Keeper.propose(ctx, &t.shared, r.sight.target.Time); err != nil {
			return 0, err
		}
	}

	return t.admit(ctx, r)
}

// admit has a round take waiting commands, and says when the next round is to be.
func (t *tenure) admit(ctx context.Context, r *round) (time.Duration, error) {
	room := r.room()
	more, err := r.admit(ctx, room)
	t.idle = t.idle && !r.launched
	if err != nil {
		return 0, err
	}

	if more {
		return minPause, nil
	}

	// Without room what waits is of interest only when it expires.
	longest := min(idlePause, t.cfg.LookEvery)
	if !t.idle {
		longest = min(longest, t.cfg.ResendEvery)
	}

	pause, err := t.store.due(ctx, room > 0, longest)

	return max(t.soon(pause, r.flights), minPause), err
}

// soon shortens a pause while answers wait for the ledger to come to a block, or to store an event.
func (t *tenure) soon(pause time.Duration, flights []*flight) time.Duration {
	mined := len(flights) > 0 && flights[0].Nonce < t.observer.look.Latest
	if len(t.observer.unnamed) > 0 || mined && t.observer.target.Number < t.view.Target {
		return min(pause, namePause)
	}

	return pause
}
