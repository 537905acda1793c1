package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Block is a processed block whose hash is remembered.
type Block struct {
	Number int64
	Hash   common.Hash
}

// Blocks returns remembered blocks below a number, the highest first; at most limit.
func (l *Ledger) Blocks(ctx context.Context, below int64, limit int) ([]Block, error) {
	rows, _ := l.cfg.DB.Query(ctx,
		`select number, hash from chain_blocks where chain_id = $1 and number < $2 order by number desc limit $3`,
		l.cfg.ChainID, below, limit)
	blocks, err := pgx.CollectRows(rows, scanBlock)
	if err != nil {
		return nil, fmt.Errorf("read remembered blocks below %d: %w", below, err)
	}

	return blocks, nil
}

func scanBlock(row pgx.CollectableRow) (b Block, err error) {
	var h string
	err = row.Scan(&b.Number, &h)
	b.Hash = common.HexToHash(h)

	return b, err
}

// Rolled is what a rollback did.
type Rolled struct {
	Done     bool // false: somebody else had rolled back already
	Orphaned int  // events above the fork
	Escrows  int  // escrows whose records were folded again
	Depth    int64
}

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
	if _, err := l.names(ctx); err != nil {
		return Rolled{}, err
	}

	err = l.tx(ctx, func(tx pgx.Tx) error {
		r, err = l.rollback(ctx, tx, stale, fork)
		return err
	})
	if err != nil {
		return Rolled{}, fmt.Errorf("roll chain %d back to block %d: %w", l.cfg.ChainID, fork.Next-1, err)
	}

	return r, nil
}

// rollbackTimeout bounds a rollback: to START_BLOCK it takes back and folds again all that is
// stored, some ten thousand events per second.
const rollbackTimeout = 10 * time.Minute

func (l *Ledger) rollback(ctx context.Context, tx pgx.Tx, stale, fork Position) (r Rolled, err error) {
	chain := l.cfg.ChainID
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1), set_config('statement_timeout', $2, true)`,
		partition.LockKey(chain),
		strconv.FormatInt(rollbackTimeout.Milliseconds(), 10)); err != nil {
		return r, err
	}

	if err := lockHistory(ctx, tx, chain); err != nil {
		return r, err
	}

	// Rows are locked in the order leadership, cursors by id: a commit locks one of them.
	if _, err := tx.Exec(ctx, `select from leadership where chain_id = $1 for update`, chain); err != nil {
		return r, err
	}

	if _, err := tx.Exec(ctx, `select from cursors where chain_id = $1 order by instance_id for update`,
		chain); err != nil {
		return r, err
	}

	var held bool
	var highest int64
	if err := tx.QueryRow(ctx, rollbackScope, chain, stale.Next, hash(stale.Hash), stale.Hash[:]).Scan(&held,
		&highest); err != nil {
		return r, err
	}

	if !held {
		return r, nil
	}

	r.Done, r.Depth = true, highest-(fork.Next-1)
	if err := l.moveBack(ctx, tx, fork, highest); err != nil {
		return r, err
	}

	rows, _ := tx.Query(ctx, orphanEvents, chain, fork.Next, highest, l.cfg.Publishes(contract.Deployed))
	escrows, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return r, fmt.Errorf("orphan events: %w", err)
	}

	r.Orphaned = len(escrows)
	if err := l.unregister(ctx, tx, fork); err != nil {
		return r, err
	}

	if r.Escrows, err = l.refold(ctx, tx, escrows); err != nil {
		return r, err
	}

	if err := l.find(ctx, tx, DeepReorg, fork.Next-1, r.Orphaned); err != nil {
		return r, err
	}

	return r, l.notify(ctx, tx, partition.Channel, registry.Channel, OutboxChannel)
}

// notify tells the listeners of some channels.
func (l *Ledger) notify(ctx context.Context, tx pgx.Tx, channels ...string) error {
	for _, channel := range channels {
		if _, err := tx.Exec(ctx, `select pg_notify($1, $2::bigint::text)`, channel, l.cfg.ChainID); err != nil {
			return fmt.Errorf("notify %s: %w", channel, err)
		}
	}

	return nil
}

// lockHistory keeps others from queueing or removing stored events until the transaction ends: what
// they have chosen may not be there any more.
func lockHistory(ctx context.Context, tx pgx.Tx, chainID int64) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, HistoryKey(chainID)); err != nil {
		return fmt.Errorf("lock the history of chain %d: %w", chainID, err)
	}

	return nil
}

// rollbackScope says whether a cursor still stands behind the stale block, or it is remembered, or
// has an event, and the highest block that was processed: a claim may have lowered the cursor that
// had been there.
const rollbackScope = `
	with c as (
		select next_block, block_hash from leadership where chain_id = $1
		union all select next_block, block_hash from cursors where chain_id = $1 and next_block is not null
		union all select next_block, block_hash from slot_ownership where chain_id = $1 and owner is null)
	select coalesce(bool_or(next_block = $2 and block_hash = $3), false)
	       or exists (select from chain_blocks where chain_id = $1 and number = $2 - 1 and hash = $3)
	       or exists (select from events where chain_id = $1 and block_number = $2 - 1 and block_hash = $4),
	       greatest(max(next_block) - 1, (select max(number) from chain_blocks where chain_id = $1)) from c`

// moveBack takes every cursor back to a fork.
func (l *Ledger) moveBack(ctx context.Context, tx pgx.Tx, fork Position, highest int64) error {
	chain := l.cfg.ChainID
	batch := &pgx.Batch{}
	batch.Queue(`update leadership set generation = generation + 1 where chain_id = $1`, chain)
	batch.Queue(`update cursors set generation = generation + 1 where chain_id = $1`, chain)
	batch.Queue(`update leadership set next_block = $2::bigint, block_hash = $3, verified_block = least(verified_block, $2::bigint - 1)
		where chain_id = $1 and next_block > $2::bigint`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`update cursors set next_block = $2, block_hash = $3, updated_at = now() where chain_id = $1 and next_block > $2`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`update slot_ownership set next_block = $2, block_hash = $3 where chain_id = $1 and owner is null and next_block > $2`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`delete from chain_blocks where chain_id = $1 and number >= $2`, chain, fork.Next)
	batch.Queue(`update orphaned_events set retract_after = greatest(retract_after, $3) where chain_id = $1 and block_number >= $2 and state = 1`,
		chain, fork.Next, highest)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("move the cursors back: %w", err)
	}

	return nil
}

// orphanEvents moves the events above a fork to orphaned_events, apart from those that nobody was
// told of, with the outbox rows that wait for them. It returns the escrow of each.
const orphanEvents = `
	with gone as (
		delete from events where chain_id = $1 and block_number >= $2 returning *),
	kept as (
		insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
		                             block_hash, tx_hash, escrow, emitter, args)
		select chain_id, block_number, block_time, $3, processed_at, log_index, writer, type, slot, occurrence, 1, block_hash, tx_hash, escrow, emitter, args
		from gone g
		where g.told or g.type = 1 and $4 and not exists (
			select from late_escrows l where l.chain_id = g.chain_id and l.address = g.escrow and not l.announced)
		order by block_number, log_index
		returning id, block_number, log_index),
	moved as (
		update outbox o set orphan = k.id from kept k
		where o.chain_id = $1 and o.orphan is null and o.block_number = k.block_number and o.log_index = k.log_index)
	select escrow from gone`

// unregister takes back what the registry knows from above a fork. An escrow that was deployed
// there is gone until its deployment reappears, and for good if nobody was told of it; an ending
// there did not happen.
func (l *Ledger) unregister(ctx context.Context, tx pgx.Tx, fork Position) error {
	batch := &pgx.Batch{}
	batch.Queue(`delete from escrows e where e.chain_id = $1 and e.discovered_block_number >= $2 and (not $3 or exists (
		select from late_escrows l where l.chain_id = e.chain_id and l.address = e.address
			and not l.announced))`, l.cfg.ChainID, fork.Next, l.cfg.Publishes(contract.Deployed))
	batch.Queue(`update escrows set status = 4, ended_block = null, updated_at = now() where chain_id = $1 and discovered_block_number >= $2`, l.cfg.ChainID, fork.Next)
	batch.Queue(`update escrows set status = 1, ended_block = null, updated_at = now() where chain_id = $1 and ended_block >= $2`, l.cfg.ChainID, fork.Next)
	batch.Queue(`delete from late_escrows where chain_id = $1 and deployed_block >= $2`, l.cfg.ChainID, fork.Next)
	batch.Queue(`update late_escrows set monitored = $2::bigint - 1 where chain_id = $1 and monitored >= $2::bigint`,
		l.cfg.ChainID, fork.Next)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("take back what was registered: %w", err)
	}

	return nil
}

// refold replaces the records of escrows by the fold of their canonical events, and says how many had
// one. A commit that is folding into one of them is waited for, also into one that nobody sees yet: its
// events are among those that are read then. Else what is read would be folded over what comes later.
func (l *Ledger) refold(ctx context.Context, tx pgx.Tx, escrows [][]byte) (int, error) {
	if len(escrows) == 0 {
		return 0, nil
	}

	made, err := tx.Exec(ctx, holdRecords, l.cfg.ChainID, escrows)
	if err != nil {
		return 0, fmt.Errorf("hold records: %w", err)
	}

	dropped, err := tx.Exec(ctx, `delete from records where chain_id = $1 and escrow = any($2)`, l.cfg.ChainID, escrows)
	if err != nil {
		return 0, fmt.Errorf("drop records: %w", err)
	}

	rows, _ := tx.Query(ctx, canonicalEvents, l.cfg.ChainID, escrows)
	events, err := pgx.CollectRows(rows, ScanEvent)
	if err != nil {
		return 0, fmt.Errorf("read the canonical events of %d escrows: %w", len(escrows), err)
	}

	sortEvents(events)

	return int(dropped.RowsAffected() - made.RowsAffected()), l.project(ctx, tx, events, nil)
}

// holdRecords makes a row for each escrow that has none, so that no other transaction can until this
// one ends. Where another is making one, it waits for that.
const holdRecords = `
	insert into records (chain_id, escrow, slot, status, last_type, last_index, last_block, last_tx)
	select $1, escrow, 0, 0, 0, 0, 0, '' from unnest($2::bytea[]) as escrow
	on conflict do nothing`

const canonicalEvents = `select ` + scanned + ` from events p where p.chain_id = $1 and p.escrow = any($2)`
