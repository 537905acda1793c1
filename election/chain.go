package election

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrOtherFactory means that the database follows another factory on this chain.
var ErrOtherFactory = errors.New("another factory")

// Start returns the first block that is read of a chain. It returns ErrUnknown for a chain that is
// new to the database, and for one that is bound to another factory without an escrow so far;
// factory may be empty.
func Start(ctx context.Context, db *pgxpool.Pool, chainID int64, factory string) (block int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = db.QueryRow(ctx, `select start_block from leadership
		where chain_id = $1 and ($2 in ('', factory) or exists (select from escrows where chain_id = $1))`, chainID, factory).
		Scan(&block)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: chain %d", ErrUnknown, chainID)
	}

	if err != nil {
		return 0, fmt.Errorf("read the first block of chain %d: %w", chainID, err)
	}

	return block, nil
}

// ErrUnknown means that the chain is new to the database.
var ErrUnknown = errors.New("this database has not followed the chain yet")

// Rewind moves the first block of a chain back, and the factory watch with it. The leader then
// reads the factory's events from there on: the escrows deployed before the former first block are
// registered and caught up, each from its deployment, in order; events already stored are
// deduplicated. It returns the former first block, with ErrNotBack unless that was above block.
func Rewind(ctx context.Context, db *pgxpool.Pool, chainID, block int64) (was int64, err error) {
	if was, err = Start(ctx, db, chainID, ""); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var moved int64
	err = pgx.BeginTxFunc(ctx, db, durable, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, rewind, chainID, block)
		moved = tag.RowsAffected()

		return err
	})
	if err != nil {
		return was, fmt.Errorf("move the first block of chain %d back to %d: %w", chainID, block, err)
	}

	if moved == 0 {
		return was, fmt.Errorf("%w: it is %d", ErrNotBack, was)
	}

	return was, nil
}

// ErrNotBack means that the chain is already read from that block, or from an earlier one.
var ErrNotBack = errors.New("the first block can only be moved back")

// durable is a transaction that survives a crash of the database, even where commits return before
// the disk has them (synchronous_commit = off): an operator is told that the change is made.
var durable = pgx.TxOptions{BeginQuery: `begin; set local synchronous_commit = on`}

// The epoch stays: the leader's next commit sees that the cursor has moved, and the leader reads it
// again.
const rewind = `
	update leadership
	set start_block = $2, next_block = $2, block_hash = null, verified_block = least(verified_block, $2 - 1)
	where chain_id = $1 and start_block > $2`

// Prepare creates the leadership row of a chain. The first stored escrow binds a database to its
// factory: until then, and while no instance runs, another factory replaces a wrong one, as on a
// new database. Later it returns ErrOtherFactory.
func Prepare(ctx context.Context, db *pgxpool.Pool, chainID, startBlock int64, factory string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := db.Exec(ctx, prepare, chainID, startBlock, factory)
	if err != nil {
		return fmt.Errorf("prepare the leadership row of chain %d: %w", chainID, err)
	}

	var known string
	if err := db.QueryRow(ctx, `select factory from leadership where chain_id = $1`, chainID).Scan(&known); err != nil {
		return fmt.Errorf("read the factory of chain %d: %w", chainID, err)
	}

	if known != factory {
		return fmt.Errorf("%w: FACTORY_ADDRESS=%s, but this database follows factory %s on chain %d: set it back, or use "+
			"another database; if %s was a mistake and no escrow is stored, stop every instance that has it first",
			ErrOtherFactory, factory, known, chainID, known)
	}

	return nil
}

// The new epoch fences a leader of the wrong factory that is still running.
const prepare = `
	with lock as (insert into ownership_lock values ($1) on conflict do nothing)
	insert into leadership as l (chain_id, next_block, start_block, factory, verified_block)
	values ($1, $2::bigint, $2::bigint, $3, $2::bigint - 1)
	on conflict (chain_id) do update
	set factory = excluded.factory, start_block = excluded.start_block, next_block = excluded.next_block,
	    verified_block = excluded.verified_block, block_hash = null, block_time = null, epoch = l.epoch + 1
	where l.factory <> excluded.factory and not exists (select from escrows where chain_id = $1)
	  and not exists (select from relayer_instances i join held_locks() h on h.key = i.lock_key where i.chain_id = $1)`
