package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Limits. Each call takes milliseconds; a connection may swallow bytes for ever, and a process may
// be frozen with rows locked.
const (
	callTimeout = 5 * time.Second // of one statement
	// of a transaction up to its commit; it waits for its turn behind other claims and rollbacks
	transactTimeout = 10 * time.Second
	commitTimeout   = 2 * time.Second // of the wait for the answer to a commit
	// idleTimeout ends a transaction in whose middle nothing comes: the process is frozen, and the
	// whole fleet waits for the lock that it has.
	idleTimeout = time.Second
	// rowTimeout bounds the wait for a row that a commit has locked, since whoever waits holds that
	// lock. The next look tries again.
	rowTimeout = 500 * time.Millisecond
)

// transact runs f in a transaction. Until its end ctx may call it off; the commit itself is waited
// for, since one that was called off may have happened, and what is held would not be what the
// database says: a stop in that moment could not give the slots back.
func (c *Claimer) transact(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transactTimeout,
		fmt.Errorf("no answer from the database within %s", transactTimeout))
	defer cancel()
	tx, err := c.cfg.DB.Begin(ctx)
	if err != nil {
		return err
	}

	if err = lockOwnership(ctx, tx, c.cfg.ChainID); err == nil {
		err = f(ctx, tx)
	}

	ending, end := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer end()
	if err != nil {
		_ = tx.Rollback(ending) // err says what is wrong
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", cause, err)
		}

		return err
	}

	return tx.Commit(ending)
}

// lockOwnership makes claims, releases and rollbacks of a chain take turns: each locks several
// rows, and together they would deadlock.
func lockOwnership(ctx context.Context, tx pgx.Tx, chainID int64) error {
	batch := &pgx.Batch{}
	batch.Queue(`select set_config('idle_in_transaction_session_timeout', $1::bigint::text, true)`,
		idleTimeout.Milliseconds())
	batch.Queue(`select pg_advisory_xact_lock($1)`, LockKey(chainID))
	batch.Queue(`select set_config('lock_timeout', $1::bigint::text, true)`, rowTimeout.Milliseconds())
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("lock the ownership of chain %d: %w", chainID, err)
	}

	return nil
}

// LockKey is the advisory lock under which ownership rows of several instances change.
func LockKey(chainID int64) int64 { return 999997<<40 | chainID }
