// Package ledger stores events, and takes them back: what an owner commits for its slots, what the
// leader commits for the factory, the repairs of the second reading, and the rollback of a reorganisation.
// (Package outbox marks stored events apart; package retention removes those of ended escrows.)
//
// One processed range is one transaction: the cursor advances, under the epoch of the right's
// holder, together with everything found in the range. An event is (block hash, log index); stored
// events are skipped. So a commit is atomic and repeatable, and fails with ErrMoved when another
// instance has taken the right or moved the cursor: the database is unchanged, and the caller reads
// its position again.
//
//	advance cursor (epoch, from) ─► events, outbox ─► registry ─► commit
//
// Outbox rows of a slot are written by its owner only, one commit after the other, so seq order is
// the order of commits and of publishing. Replays and the verifier request what they want
// published: see request.
package ledger

import (
	"context"
	"fmt"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Ledger commits. It is safe for concurrent use; commits under one right are serial by nature.
type Ledger struct {
	cfg   Config
	names nameCache
}

// New returns a Ledger.
func New(cfg Config) *Ledger { return &Ledger{cfg: cfg} }

// CommitSlots stores a range for the slots of this instance. After ErrMoved the database is
// unchanged.
func (l *Ledger) CommitSlots(ctx context.Context, c SlotCommit) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return commitSlots(ctx, t, c) })
	if err != nil {
		return r, fmt.Errorf("commit %d events of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
	}

	return r, nil
}

// CommitFactory stores a range of the factory watch, and registers the escrows. After ErrMoved the
// database is unchanged.
func (l *Ledger) CommitFactory(ctx context.Context, c FactoryCommit) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return commitFactory(ctx, t, c) })
	if err != nil {
		return r, fmt.Errorf("commit %d discoveries of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
	}

	return r, nil
}

// CommitPast stores a range of a factory's past, and registers the escrows. After ErrMoved the
// database is unchanged.
func (l *Ledger) CommitPast(ctx context.Context, c PastCommit) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return commitPast(ctx, t, c) })
	if err != nil {
		return r, fmt.Errorf("commit %d earlier discoveries of blocks %d to %d: %w", len(c.Events), c.From.Next,
			c.To.Next-1, err)
	}

	return r, nil
}

// store runs a transaction that stores events.
func (l *Ledger) store(ctx context.Context, f func(*transaction) error) (Result, error) {
	known, err := l.names.get(ctx, &l.cfg)
	if err != nil {
		return Result{}, err
	}

	r, err := transact(ctx, &l.cfg, known, f)
	if err != nil {
		l.names.forget()
	}

	return r, err
}

// Renew discards what is cached of the database. A tenure begins with it, since the server may have
// been replaced, or have lost its last commits.
func (l *Ledger) Renew() { l.names.forget() }

// Rollback takes the whole chain back to a fork, in one transaction: every cursor, the events above
// the fork (they become orphans, see orphans.go) and the registry. stale is the
// position of the orphaned block; if it is no cursor's, it is not remembered, and no event is
// stored under it, another instance has done the rollback. The next commit of every instance fails
// with ErrMoved, even if its cursor stays: the registry that it used is void.
//
// It ignores the end of ctx and runs up to rollbackTimeout: it locks the rows that heartbeats are
// written to, so a long one would otherwise end the tenure that runs it, and start over for ever.
func (l *Ledger) Rollback(ctx context.Context, stale, fork Position) (r Rolled, err error) {
	if err := ctx.Err(); err != nil {
		return Rolled{}, err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err = l.store(ctx, func(t *transaction) (err error) {
		r, err = rollback(ctx, t, stale, fork)
		return err
	}); err != nil {
		return Rolled{}, fmt.Errorf("roll chain %d back to block %d: %w", l.cfg.ChainID, fork.Next-1, err)
	}

	return r, nil
}

// Repair makes the stored events equal to the chain's, for blocks that were read again, from v.From
// on, under the leader's epoch, and moves the verified block. If only missing events are known, and
// there may be more, verified is v.From-1 and the verified block stays. ErrMoved: the verified
// block differs from v, or there was a rollback since Verifiable, so what was read is void.
//
// missing are events that the first reading lacked. The owners of their slots are asked to publish
// them, each deployment before the other events of its escrow. wrong are stored events that differ
// from the chain; the owners of their slots retract them, and the chain's events in their place are
// among the missing. What else was found is recorded.
func (l *Ledger) Repair(ctx context.Context, epoch int64, v Verifiable, verified int64, missing,
	wrong []contract.Event, found ...Finding) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return repair(ctx, t, epoch, v, verified, missing, wrong, found) })
	if err != nil {
		return r, fmt.Errorf("repair %d missing and %d wrong events up to block %d: %w", len(missing),
			len(wrong), verified, err)
	}

	return r, nil
}

// Replay requests that events are published once more, marked as a replay, in their order; the
// owners of the slots do so with their next commits. The requests are written in steps of whole
// escrows; progress gets the number of events requested so far after each.
func (l *Ledger) Replay(ctx context.Context, s Selection, progress func(events int)) (total int, err error) {
	return replay(ctx, &l.cfg, s, progress)
}
