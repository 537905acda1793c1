package send

import (
	"context"
	"errors"
	"log/slog"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// end stores final states, as of a generation of the ledger, and says so.
func (t *tenure) end(ctx context.Context, endings []ending, generation int64) ([]command.Answer, error) {
	answers, err := t.store.finish(ctx, endings, generation)
	if err != nil {
		return nil, err
	}

	t.tell(ctx, answers)

	return answers, nil
}

// tell counts and logs answers that are committed.
func (s *Sender) tell(ctx context.Context, answers []command.Answer) {
	for _, a := range answers {
		s.cfg.Metrics.answers.WithLabelValues(string(a.State)).Inc()
		s.log.InfoContext(ctx, "command answered", slog.String("command", a.CommandID),
			slog.String("state", string(a.State)), slog.String("code", a.Code), slog.String("tx", a.Transaction))
	}
}

// budget is what one command may cost at most. Who follows a sender without its key has no limits, and signs nothing.
func (s *Sender) budget(own *big.Int) *big.Int {
	if s.cfg.Limits.MaxFee == nil {
		return new(big.Int).Set(own)
	}

	return smaller(own, s.cfg.Limits.MaxFee)
}

// tenure is the time for which this instance owns the sender, under one epoch, and what it remembers meanwhile. It
// works in rounds, each of which begins with what the database and the chain say. One goroutine has all of it.
type tenure struct {
	*Sender
	store *store

	// What the newest looks at the chain have shown. The first five are of the newest look at everything and change
	// together; with a new block seen.Latest and head may change alone.
	looked     View      // not Ready: there was no look yet
	lookedAt   time.Time // by the database's clock
	seen       Look
	target     Block // on the ledger's branch: what answers rest on
	generation int64 // of the ledger, as of the target
	head       uint64
	// The newest head at which the nonce of the oldest command under way was not used: below, it cannot be final.
	unused struct{ nonce, head uint64 }

	history []mined                   // ascending; the first is that of the target, if there was a look by then
	missing map[uint64]int            // nonces that are final, with no receipt of what was signed: at how many looks
	unnamed []ending                  // what the newest look has shown with an event that the ledger has still to store
	out     map[common.Hash]departure // the last time that the newest bytes of each command left; empty after a takeover
	view    View                      // that the newest round goes by
	idle    bool                      // nothing is under way: new blocks are of no interest

	failed, unsigned logging.Repeats // why rounds, and signatures, failed
}

func newTenure(sender *Sender, store *store) *tenure {
	return &tenure{Sender: sender, store: store, out: map[common.Hash]departure{}, missing: map[uint64]int{}}
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
		if t.idle {
			changed = nil
		} else if v := t.cfg.Chain.View(); v.Ready && t.view.Ready && v != t.view { // during the round
			timer.Reset(0)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		case <-changed:
		}

		pause, err := t.work(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			t.fails(ctx, err)
			pause = retryPause
		}

		timer.Reset(pause)
	}
}

// fails tells of a round that failed.
func (t *tenure) fails(ctx context.Context, err error) {
	t.cfg.Metrics.roundErrors.WithLabelValues(t.cfg.Name).Inc()
	if !t.failed.Lately(err, time.Now(), sayAgain) {
		t.log.WarnContext(ctx, "sender round failed, retrying", slog.Any("err", err))
	}
}

// round is one round's work. It does all that can be done now.
type round struct {
	*tenure
	account *account
	flights []*flight

	signs bool          // no signature has failed: else no other one is asked for
	pause time.Duration // until the next round at the latest; above 0 the round is over
}

// steps of a round, in their order. The first that fails, or sets the pause, ends it.
var steps = []func(*round, context.Context) error{(*round).load, (*round).observe, (*round).advance, (*round).propose,
	(*round).admit}

// work is one round. It says when to come back at the latest.
func (t *tenure) work(ctx context.Context) (pause time.Duration, err error) {
	r := &round{tenure: t, signs: t.cfg.Signer != nil}
	t.view, t.idle = t.cfg.Chain.View(), false
	for i := 0; i < len(steps) && r.pause == 0 && err == nil; i++ {
		err = steps[i](r, ctx)
	}

	if err != nil || r.pause > 0 {
		return r.pause, err
	}

	return r.rest(), nil
}

// load reads the database's side of the round.
func (r *round) load(ctx context.Context) error {
	account, flights, err := r.store.load(ctx)
	if err == nil {
		r.account, r.flights = account, flights
	}

	return err
}

// propose has the keeper make commands.
func (r *round) propose(ctx context.Context) error {
	if r.cfg.Signer == nil { // it only follows
		r.pause = idlePause
	}

	if r.cfg.Keeper == nil {
		return nil
	}

	return r.cfg.Keeper.propose(ctx, r.tenure)
}

// rest is in what time the next round is to be. Without room what waits is of no interest.
func (r *round) rest() time.Duration {
	pause := min(idlePause, r.cfg.LookEvery)
	if !r.idle {
		pause = min(pause, r.cfg.ResendEvery)
	}

	if r.room() > 0 {
		pause = min(pause, r.account.Due)
	}

	return max(r.soon(pause), minPause)
}

// soon shortens a pause while answers wait for the ledger to come to a block, or to store an event.
func (r *round) soon(pause time.Duration) time.Duration {
	mined := len(r.flights) > 0 && !r.open(r.flights[0])
	if len(r.unnamed) > 0 || mined && r.target.Number < r.view.Target {
		return min(pause, namePause)
	}

	return pause
}
