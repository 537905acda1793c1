package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Limits. Each call takes milliseconds, but a broken connection may stay silent for ever, and a
// process may freeze with rows locked.
const (
	callTimeout     = 5 * time.Second  // of one statement
	transactTimeout = 10 * time.Second // of a transaction up to its commit, with the wait for other claims and rollbacks
	commitTimeout   = 2 * time.Second  // of the wait for the answer to a commit
	// idleTimeout ends a transaction that sends no statement for this long: its process is frozen,
	// and the whole fleet waits for its ownership lock.
	idleTimeout = time.Second
	// rowTimeout bounds the wait for a row that a commit has locked, because the ownership lock is
	// held meanwhile. The next check tries again.
	rowTimeout = 500 * time.Millisecond
)

// transact runs f in a transaction. The end of ctx cancels f but spares the commit: a cancelled
// commit may still take effect, and Holding would then differ from the database, so that a stop
// could not release the slots.
func transact(ctx context.Context, cfg *Config, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transactTimeout,
		fmt.Errorf("no answer from the database within %s", transactTimeout))
	defer cancel()
	tx, err := cfg.DB.Begin(ctx)
	if err != nil {
		return err
	}

	if err = lockOwnership(ctx, tx, cfg.ChainID); err == nil {
		err = f(ctx, tx)
	}

	ending, end := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer end()
	if err != nil {
		_ = tx.Rollback(ending) // err is the cause
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", cause, err)
		}

		return err
	}

	return tx.Commit(ending)
}

// lockOwnership serializes claims, releases and rollbacks of a chain: each locks several rows, and
// two at once could deadlock.
func lockOwnership(ctx context.Context, tx pgx.Tx, chainID int64) error {
	batch := &pgx.Batch{}
	batch.Queue(`select set_config('idle_in_transaction_session_timeout', $1::bigint::text, true)`,
		idleTimeout.Milliseconds())
	batch.Queue(LockOwnership, chainID)
	batch.Queue(`select set_config('lock_timeout', $1::bigint::text, true)`, rowTimeout.Milliseconds())
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("lock the ownership of chain %d: %w", chainID, err)
	}

	return nil
}

// LockOwnership lets one transaction at a time change the ownership rows of a chain, $1: the others
// wait for its end.
const LockOwnership = `
	insert into ownership_lock (chain_id) values ($1)
	on conflict (chain_id) do update set chain_id = excluded.chain_id`
