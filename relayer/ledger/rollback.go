package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Block is a processed block whose hash is remembered.
type Block struct {
	Number int64
	Hash   common.Hash
}

// Blocks returns remembered blocks below a number, the highest first; at most limit.
func (l *Ledger) Blocks(ctx context.Context, below int64, limit int) ([]Block, error) {
	rows, _ := l.cfg.DB.Query(ctx, `select number, hash from chain_blocks where chain_id = $1 and number < $2 order by number desc limit $3`, l.cfg.ChainID, below, limit)
	blocks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Block, err error) {
		var h string
		err = row.Scan(&b.Number, &h)
		b.Hash = common.HexToHash(h)
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("read remembered blocks below %d: %w", below, err)
	}
	return blocks, nil
}

// Rolled is what a rollback did.
type Rolled struct {
	Done     bool // false: somebody else had rolled back already
	Orphaned int  // events above the fork
	Escrows  int  // escrows whose records were folded again
	Depth    int64
}

// Rollback takes the whole chain back to a fork, in one transaction: every cursor, the events above the fork (they become orphans
// until they reappear, or until the cursor that had seen them passes that block again: then they are retracted), the registry and the records.
// stale is the position whose block is not canonical any more; when no cursor has it and it is not remembered, the rollback was done by somebody else.
// Everybody's next commit fails with ErrMoved, whether the cursor moved or not: the registry that it was computed with is void.
func (l *Ledger) Rollback(ctx context.Context, stale, fork Position) (r Rolled, err error) {
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r, err = l.rollback(ctx, tx, stale, fork)
		return err
	})
	if err != nil {
		return Rolled{}, fmt.Errorf("roll chain %d back to block %d: %w", l.cfg.ChainID, fork.Next-1, err)
	}
	return r, nil
}

func (l *Ledger) rollback(ctx context.Context, tx pgx.Tx, stale, fork Position) (r Rolled, err error) {
	chain := l.cfg.ChainID
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, partition.LockKey(chain)); err != nil {
		return r, err
	}
	// Rows are locked in the order leadership, cursors by id: a commit locks one of them.
	if _, err := tx.Exec(ctx, `select from leadership where chain_id = $1 for update`, chain); err != nil {
		return r, err
	}
	if _, err := tx.Exec(ctx, `select from cursors where chain_id = $1 order by instance_id for update`, chain); err != nil {
		return r, err
	}
	var held bool
	var highest int64
	if err := tx.QueryRow(ctx, rollbackScope, chain, stale.Next, hash(stale.Hash)).Scan(&held, &highest); err != nil {
		return r, err
	}
	if !held {
		return r, nil
	}
	r.Done, r.Depth = true, highest-(fork.Next-1)
	batch := &pgx.Batch{}
	batch.Queue(`update leadership set generation = generation + 1 where chain_id = $1`, chain)
	batch.Queue(`update cursors set generation = generation + 1 where chain_id = $1`, chain)
	batch.Queue(`update leadership set next_block = $2::bigint, block_hash = $3, verified_block = least(verified_block, $2::bigint - 1) where chain_id = $1 and next_block > $2::bigint`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`update cursors set next_block = $2, block_hash = $3, updated_at = now() where chain_id = $1 and next_block > $2`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`update slot_ownership set next_block = $2, block_hash = $3 where chain_id = $1 and owner is null and next_block > $2`, chain, fork.Next, hash(fork.Hash))
	batch.Queue(`delete from chain_blocks where chain_id = $1 and number >= $2`, chain, fork.Next)
	batch.Queue(`update processed_events set retract_after = greatest(retract_after, $3) where chain_id = $1 and block_number >= $2 and state = 'orphaned'`, chain, fork.Next, highest)
	// An escrow that was deployed above the fork is gone until its deployment reappears; an ending above it did not happen.
	batch.Queue(`update escrow_registry set status = 'orphaned', caught_up = false, ended_block = null, updated_at = now() where chain_id = $1 and discovered_block_number >= $2`, chain, fork.Next)
	batch.Queue(`update escrow_registry set status = 'active', ended_block = null, updated_at = now() where chain_id = $1 and ended_block >= $2`, chain, fork.Next)
	batch.Queue(`update escrow_registry set last_monitored_block = $2::bigint - 1 where chain_id = $1 and not caught_up and last_monitored_block >= $2::bigint`, chain, fork.Next)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return r, err
	}
	rows, _ := tx.Query(ctx, orphanEvents, chain, fork.Next, highest)
	escrows, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return r, fmt.Errorf("orphan events: %w", err)
	}
	r.Orphaned = len(escrows)
	if r.Escrows, err = l.refold(ctx, tx, escrows); err != nil {
		return r, err
	}
	if err := l.find(ctx, tx, DeepReorg, fork.Next-1, r.Orphaned); err != nil {
		return r, err
	}
	for _, channel := range []string{partition.Channel, registry.Channel, OutboxChannel} {
		if _, err := tx.Exec(ctx, `select pg_notify($1, $2::bigint::text)`, channel, chain); err != nil {
			return r, err
		}
	}
	return r, nil
}

// rollbackScope says whether a cursor still stands behind the stale block or it is remembered, and the highest block that was processed: a claim may have
// lowered the cursor that had been there.
const rollbackScope = `
	with c as (
		select next_block, block_hash from leadership where chain_id = $1
		union all select next_block, block_hash from cursors where chain_id = $1 and next_block is not null
		union all select next_block, block_hash from slot_ownership where chain_id = $1 and owner is null)
	select coalesce(bool_or(next_block = $2 and block_hash = $3), false)
	       or exists (select from chain_blocks where chain_id = $1 and number = $2 - 1 and hash = $3), greatest(max(next_block) - 1, (select max(number) from chain_blocks where chain_id = $1)) from c`

const orphanEvents = `
	update processed_events set state = 'orphaned', retract_after = $3
	where chain_id = $1 and block_number >= $2 and state = 'canonical'
	returning escrow`

// refold replaces the records of escrows by the fold of their canonical events.
func (l *Ledger) refold(ctx context.Context, tx pgx.Tx, escrows []string) (int, error) {
	if len(escrows) == 0 {
		return 0, nil
	}
	tag, err := tx.Exec(ctx, `delete from escrow_records where chain_id = $1 and escrow = any($2)`, l.cfg.ChainID, escrows)
	if err != nil {
		return 0, fmt.Errorf("drop records: %w", err)
	}
	rows, _ := tx.Query(ctx, canonicalEvents, l.cfg.ChainID, escrows)
	events, err := pgx.CollectRows(rows, ScanEvent)
	if err != nil {
		return 0, fmt.Errorf("read the canonical events of %d escrows: %w", len(escrows), err)
	}
	return int(tag.RowsAffected()), l.project(ctx, tx, events, nil)
}

const canonicalEvents = `
	select event_id, event_type, contract_address, escrow, block_number, log_index, block_hash, block_timestamp, args
	from processed_events where chain_id = $1 and escrow = any($2) and state = 'canonical'
	order by block_number, log_index`

// ScanEvent reads a row of event_id, event_type, contract_address, escrow, block_number, log_index, block_hash, block_timestamp, args.
func ScanEvent(row pgx.CollectableRow) (e contract.Event, err error) {
	var id, emitter, escrow, hash string
	if err := row.Scan(&id, &e.Name, &emitter, &escrow, &e.BlockNumber, &e.LogIndex, &hash, &e.BlockTime, &e.Args); err != nil {
		return e, err
	}
	if len(id) < 66 {
		return e, errors.New("event_id " + id + " is not {tx_hash}:{log_index}")
	}
	e.TxHash, e.BlockHash = common.HexToHash(id[:66]), common.HexToHash(hash)
	e.Emitter, e.Escrow = common.HexToAddress(emitter), common.HexToAddress(escrow)
	return e, nil
}

// retract settles the orphans of this instance's slots whose time is over: the slot's cursor and the factory's have passed again the block
// that had been seen last, their escrow does not wait to be caught up, and they have not reappeared.
func (l *Ledger) retract(ctx context.Context, tx pgx.Tx, next int64, doubtful bool, r *Result) error {
	var orphans bool
	if err := tx.QueryRow(ctx, `select exists (select from processed_events where chain_id = $1 and state = 'orphaned' and retract_after < $2)`, l.cfg.ChainID, next).Scan(&orphans); err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	if !orphans {
		return nil
	}
	rows, _ := tx.Query(ctx, retractOrphans, pgx.StrictNamedArgs{"chain": l.cfg.ChainID, "me": l.cfg.InstanceID, "next": next, "doubtful": doubtful})
	type gone struct {
		ID, Type string
		Queued   bool
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[gone])
	if err != nil {
		return fmt.Errorf("retract orphans: %w", err)
	}
	var ids []string
	for _, g := range all {
		if g.Queued || !l.cfg.Publishes(g.Type) {
			continue // it was never published
		}
		ids = append(ids, g.ID)
	}
	if err := outbox.QueueRetractions(ctx, tx, l.cfg.ChainID, ids); err != nil {
		return err
	}
	r.Retracted = len(ids)
	return nil
}

// retractOrphans marks them, drops their outbox rows, and removes escrows whose deployment is gone for good. It returns them with whether they were
// certainly never published: their row was still there, this instance had the slot when it was written, and nothing it sent is in doubt.
const retractOrphans = `
	with gone as (
		update processed_events p set state = 'retracted'
		from slot_ownership s, leadership l
		where p.chain_id = @chain and p.state = 'orphaned' and p.retract_after < @next
		  and s.chain_id = p.chain_id and s.slot = p.slot and s.owner = @me and l.chain_id = p.chain_id
		  and p.retract_after < l.next_block
		  and not exists (select from escrow_registry e where e.chain_id = p.chain_id and e.address = p.escrow and e.status <> 'orphaned' and not e.caught_up)
		returning p.event_id, p.event_type, p.block_number, p.log_index),
	unsent as (
		delete from outbox o using gone g, slot_ownership s
		where o.chain_id = @chain and o.event_id = g.event_id and o.kind = 0 and s.chain_id = @chain and s.slot = o.slot
		returning o.event_id, o.created_at >= s.since and not @doubtful::boolean as certain),
	dropped as (
		delete from escrow_registry r using gone g
		where r.chain_id = @chain and r.event_id = g.event_id and r.status = 'orphaned' returning r.event_id, r.announced)
	select g.event_id, g.event_type,
	       exists (select from unsent u where u.event_id = g.event_id and u.certain)
	       or exists (select from dropped d where d.event_id = g.event_id and not d.announced)
	from gone g order by g.block_number, g.log_index`
