// Package ledger owns every transaction on events: what an owner commits for its slots, what the leader commits for the
// factory, and the rollback of a reorganisation.
//
// One processed range is one transaction: the cursor advances, under the epoch of whoever holds the
// right, together with everything that the range brought. An event is (block hash, log index);
// those that are stored already change nothing. A commit therefore either happened as a whole or
// not at all, can be repeated, and fails with ErrMoved when somebody else took the right or moved
// the cursor: then nothing is written, and the caller looks again where it stands.
//
//	advance cursor (epoch, from) ─► events, outbox ─► records, registry ─► commit
//
// Outbox rows of a slot are written by its owner only, and one commit after the other, so seq order
// is the order in which they were committed and have to be published. What a replay or the verifier
// wants published it requests: see request.
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

// CommitSlots stores a range for the slots of this instance. ErrMoved: nothing was written.
func (l *Ledger) CommitSlots(ctx context.Context, c SlotCommit) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return commitSlots(ctx, t, c) })
	if err != nil {
		return r, fmt.Errorf("commit %d events of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
	}

	return r, nil
}

// CommitFactory stores a range of the factory watch, and registers the escrows. ErrMoved: nothing was written.
func (l *Ledger) CommitFactory(ctx context.Context, c FactoryCommit) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return commitFactory(ctx, t, c) })
	if err != nil {
		return r, fmt.Errorf("commit %d discoveries of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
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

// Renew has what is kept of the database in memory be read again. A tenure begins with it, since the
// server may be another one, or have forgotten its last commits.
func (l *Ledger) Renew() { l.names.forget() }

// Rollback takes the whole chain back to a fork, in one transaction: every cursor, the events above
// the fork (they become orphans, see there), the registry and the records. stale is the position
// whose block is not canonical any more; when no cursor has it, it is not remembered, and no event
// is stored under it, the rollback was done by somebody else. Everybody's next commit fails with
// ErrMoved, whether the cursor moved or not: the registry that it was computed with is void.
//
// It takes as long as it takes, up to rollbackTimeout, also when ctx ends: it holds the rows that
// heartbeats are written to, so that a long one would otherwise end the tenure that does it, and be
// begun again for ever.
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

// Repair makes the stored events of blocks that were read again, from v.From on, those of the chain,
// under the leader's epoch, and moves the verified block. Where only missing events are known, and there
// may be more, verified is v.From-1: it stays. ErrMoved when it is not where v says, or there was a
// rollback since Verifiable: what was read is void.
//
// missing are events that the first reading did not bring. The owners of their slots are asked to
// publish them, each deployment before the other events of its escrow. wrong are stored events that
// the chain has otherwise; they are retracted by the owners of their slots, and what the chain has
// in their place is among the missing.
func (l *Ledger) Repair(ctx context.Context, epoch int64, v Verifiable, verified int64, missing,
	wrong []contract.Event) (Result, error) {
	r, err := l.store(ctx, func(t *transaction) error { return repair(ctx, t, epoch, v, verified, missing, wrong) })
	if err != nil {
		return r, fmt.Errorf("repair %d missing and %d wrong events up to block %d: %w", len(missing),
			len(wrong), verified, err)
	}

	return r, nil
}

// FoundExtra remembers that stored events up to a block are not on the chain, or are there
// otherwise. Nothing else is changed.
func (l *Ledger) FoundExtra(ctx context.Context, block int64, events int) error {
	_, err := transact(ctx, &l.cfg, nil, func(t *transaction) error {
		return addFinding(ctx, t, ExtraEvent, block, events)
	})

	return err
}

// Replay requests that events are published once more, marked as a replay, in their order; the owners
// of the slots do so with their next commits. The requests are written in steps of whole escrows,
// and each reports how many events are requested so far.
func (l *Ledger) Replay(ctx context.Context, s Selection, progress func(events int)) (total int, err error) {
	return replay(ctx, &l.cfg, s, progress)
}
