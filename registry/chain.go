package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// callTimeout bounds a call that a person or a start waits for.
const callTimeout = 5 * time.Second

// ErrOtherFactory means that the configuration names a factory that the database does not follow, and leaves out one
// that it follows, or has no room for it.
var ErrOtherFactory = errors.New("another factory")

// Start returns the first block that is read of a chain, or ErrUnknown for a chain that is new to the database.
func Start(ctx context.Context, db *pgxpool.Pool, chainID int64) (block int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = db.QueryRow(ctx, `select start_block from leadership where chain_id = $1`, chainID).Scan(&block)
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

// Rewind moves the first block of a chain's factories back. What they deployed between it and the
// former one becomes their past, which the leader reads beside the factory watch: those escrows are
// registered and caught up, each from its deployment, in order; events already stored are
// deduplicated. It returns the latest of the former first blocks, with an error unless that was above block.
func Rewind(ctx context.Context, db *pgxpool.Pool, chainID, block int64) (was int64, err error) {
	if _, err = Start(ctx, db, chainID); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, db, Durable, func(tx pgx.Tx) error {
		if err := lookAgain(ctx, tx, chainID); err != nil {
			return err
		}

		// Behind the lock: another rewind may have been first.
		err := tx.QueryRow(ctx, `select coalesce(max(start_block), 0) from factories where chain_id = $1`, chainID).Scan(&was)
		if err == nil && was <= block {
			err = fmt.Errorf("it can only be moved back, and it is %d", was)
		}

		if err == nil {
			_, err = tx.Exec(ctx, rewind, chainID, block)
		}

		return err
	})
	if err != nil {
		return was, fmt.Errorf("move the first block of chain %d back to %d: %w", chainID, block, err)
	}

	return was, nil
}

// Durable is a transaction that survives a crash of the database, even where commits return before
// the disk has them (synchronous_commit = off): an operator is told that the change is made.
var Durable = pgx.TxOptions{BeginQuery: `begin; set local synchronous_commit = on`}

// Writers lock leadership before factories.
const rewind = `
	with held as (
		update leadership set start_block = least(start_block, $2::bigint) where chain_id = $1 returning chain_id)
	update factories f
	set start_block = $2, past_block = $2, until_block = coalesce(until_block, start_block)
	from held where f.chain_id = held.chain_id and f.start_block > $2`

// Beginner is a pool, or a transaction, in which the changes of Prepare may be taken back.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Prepare makes the database follow the factories of a configuration, and creates the leadership row of a chain
// that is new to it. Factories that it does not follow yet are added, with their past; what it follows and the
// configuration leaves out is followed on, and returned. A configuration that does both may be a mistake: that is
// ErrOtherFactory, unless no escrow is stored and no instance runs. Then its factories replace the others, as on
// a new database.
func Prepare(ctx context.Context, db Beginner, chainID int64, want []Factory) (left []common.Address, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		left, err = prepare(ctx, tx, chainID, want)
		return err
	})
	if err != nil && !errors.Is(err, ErrOtherFactory) {
		return nil, fmt.Errorf("prepare the factories of chain %d: %w", chainID, err)
	}

	return left, err
}

func prepare(ctx context.Context, tx pgx.Tx, chainID int64, want []Factory) ([]common.Address, error) {
	start := slices.MinFunc(want, func(a, b Factory) int { return cmp.Compare(a.Start, b.Start) }).Start
	if _, err := tx.Exec(ctx, prepareChain, chainID, start); err != nil {
		return nil, err
	}

	var empty bool // no escrow, and no instance
	if err := tx.QueryRow(ctx, lockChain, chainID).Scan(&empty); err != nil {
		return nil, err
	}

	known, err := Factories(ctx, tx, chainID)
	if err != nil {
		return nil, err
	}

	var left []common.Address
	for _, k := range known {
		if k.Retired == 0 && !slices.ContainsFunc(want, func(f Factory) bool { return f.Address == k.Address }) {
			left = append(left, k.Address)
		}
	}

	brought := slices.DeleteFunc(slices.Clone(want), func(f Factory) bool {
		return slices.ContainsFunc(known, func(k Factory) bool { return f.Address == k.Address })
	})
	switch {
	case len(brought) == 0:
		return left, nil
	case len(left) > 0 && !empty:
		return nil, fmt.Errorf("%w: FACTORY_ADDRESS names %s, which this database does not follow on chain %d, and leaves out %s, "+
			"which it follows: name all of them to add one, retire a factory with `escrow-relayer factory retire`, or use another "+
			"database; if one was a mistake and no escrow is stored, stop every instance that has it first",
			ErrOtherFactory, brought[0].Address, chainID, left[0])
	case len(left) > 0:
		if _, err := tx.Exec(ctx, restart, chainID, start); err != nil {
			return nil, err
		}

		return nil, PutFactories(ctx, tx, chainID, want)
	case len(known)+len(brought) > MaxFactories:
		return nil, fmt.Errorf("%w: chain %d has %d factories in this database, retired ones included, and FACTORY_ADDRESS "+
			"brings %d; %d are the most: follow the new ones in a database of their own",
			ErrOtherFactory, chainID, len(known), len(brought), MaxFactories)
	case len(known) == 0:
		return nil, PutFactories(ctx, tx, chainID, brought)
	}

	return nil, AddFactories(ctx, tx, chainID, brought)
}

const (
	prepareChain = `
	with lock as (insert into ownership_lock values ($1) on conflict do nothing)
	insert into leadership (chain_id, next_block, start_block, verified_block)
	values ($1, $2::bigint, $2::bigint, $2::bigint - 1)
	on conflict do nothing`

	lockChain = `
	select not exists (select from escrows where chain_id = $1)
	   and not exists (select from relayer_instances i join held_locks() h on h.key = i.lock_key where i.chain_id = $1)
	from leadership where chain_id = $1 for update`

	// The new epoch fences a leader of the wrong factory that is still running.
	restart = `
	with gone as (delete from factories where chain_id = $1)
	update leadership
	set start_block = $2, next_block = $2, verified_block = $2::bigint - 1, block_hash = null, block_time = null, epoch = epoch + 1
	where chain_id = $1`
)
