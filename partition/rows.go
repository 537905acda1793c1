package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rows of slot_ownership, cursors and relayer_instances change here, when an instance joins,
// claims or releases.

// Holding is what an instance holds: the right to commit for Slots under Epoch.
type Holding struct {
	Epoch     int64
	Slots     []int16 // ascending
	Partition Partition
}

// join is the transaction of Claimer.Join. stuck: the instance cannot go on.
func join(ctx context.Context, cfg *Config, tx pgx.Tx, stuck bool) (h Holding, err error) {
	args := pgx.StrictNamedArgs{"chain": cfg.ChainID, "start": cfg.StartBlock}
	if _, err := tx.Exec(ctx, createSlots, args); err != nil {
		return h, fmt.Errorf("create the slots of chain %d: %w", cfg.ChainID, err)
	}

	h.Partition = cfg.Partition
	if cfg.Auto {
		v, err := read(ctx, cfg, tx)
		if err != nil {
			return h, err
		}

		h.Partition.Number = firstNumber(cfg.InstanceID, h.Partition, v.fleet)
	}

	if err := Agree(ctx, cfg, tx); err != nil {
		return h, err
	}

	if err := register(ctx, cfg, tx, h.Partition, stuck); err != nil {
		return h, fmt.Errorf("register instance %s: %w", cfg.InstanceID, err)
	}

	if err := tx.QueryRow(ctx, raiseOwnEpoch, cfg.ChainID, cfg.InstanceID).Scan(&h.Epoch); err != nil {
		return h, fmt.Errorf("raise the epoch of %s: %w", cfg.InstanceID, err)
	}

	if cfg.NewProcess {
		if _, err := tx.Exec(ctx, doubtEarlierProcess, cfg.ChainID, cfg.InstanceID); err != nil {
			return h, fmt.Errorf("note what an earlier process of %s may have published: %w", cfg.InstanceID, err)
		}
	}

	rows, _ := tx.Query(ctx, heldSlots, cfg.ChainID, cfg.InstanceID)
	if h.Slots, err = pgx.CollectRows(rows, pgx.RowTo[int16]); err != nil {
		return h, fmt.Errorf("read the slots of %s: %w", cfg.InstanceID, err)
	}

	return h, nil
}

// register writes the instance's row.
func register(ctx context.Context, cfg *Config, tx pgx.Tx, p Partition, stuck bool) error {
	settings, err := json.Marshal(cfg.Settings)
	if err != nil {
		return fmt.Errorf("write its settings: %w", err)
	}

	_, err = tx.Exec(ctx, registerInstance, pgx.StrictNamedArgs{
		"chain": cfg.ChainID, "me": cfg.InstanceID, "number": p.Number, "total": p.Total, "strategy": p.Strategy,
		"key": cfg.LockKey, "version": cfg.Version, "stuck": stuck, "settings": string(settings),
	})

	return err
}

// createSlots creates the chain's slots, all free, if they are missing.
const createSlots = `
	insert into slot_ownership (chain_id, slot, next_block, sent_block, sent_index)
	select @chain, s, @start::bigint, @start::bigint - 1, 2147483647 from generate_series(0, 2519) s
	where not exists (select from slot_ownership where chain_id = @chain)
	on conflict do nothing`

// registerInstance writes the row that identifies this instance to people and to the other
// instances. An instance that sat out because it was stuck, and is still stuck, continues to sit
// out.
const registerInstance = `
	insert into relayer_instances as i (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key, version, settings, able_since, stuck_since)
	values (@chain, @me, @number, @total, @strategy, 'active', @key, @version, @settings::jsonb, case when not @stuck then now() end, case when @stuck then now() end)
	on conflict (chain_id, instance_id) do update
	set partition_number = excluded.partition_number, total_partitions = excluded.total_partitions, strategy = excluded.strategy,
	    status = 'active', lock_key = excluded.lock_key, version = excluded.version, settings = excluded.settings,
	    able_since = excluded.able_since, stuck_since = case when @stuck then coalesce(i.stuck_since, now()) end, sits_out = i.sits_out and @stuck,
	    last_heartbeat = now(), started_at = now(), seen_at = now(), dead_since = null, left_at = null`

// raiseOwnEpoch fences the earlier process of the instance. The cursor stays: the slots that the
// instance still owns are processed up to it.
const raiseOwnEpoch = `
	insert into cursors (chain_id, instance_id) values ($1, $2)
	on conflict (chain_id, instance_id) do update set epoch = cursors.epoch + 1
	returning epoch`

const doubtEarlierProcess = `
	update slot_ownership set doubt = clock_timestamp() where chain_id = $1 and owner = $2`

// takeSlots changes the owner. Whatever a slot has that was taken without a release may have been
// published.
const takeSlots = `
	update slot_ownership
	set owner = $3, since = now(), doubt = case when owner is null then doubt else clock_timestamp() end
	where chain_id = $1 and slot = any($2)`

const heldSlots = `select slot from slot_ownership where chain_id = $1 and owner = $2 order by slot`

type cursor struct {
	next int64
	hash *string
	time *time.Time
}

// take moves the slots to this instance: it locks the cursor rows of their owners and of this
// instance, ordered by id, raises their epochs, and continues from the lowest of the cursors.
func take(ctx context.Context, cfg *Config, tx pgx.Tx, slots []int16, holding bool) (cursor, error) {
	type row struct {
		Slot      int16
		Owner     *string
		NextBlock int64
		BlockHash *string
	}
	rows, _ := tx.Query(ctx, lockSlots, cfg.ChainID, slots)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return cursor{}, fmt.Errorf("lock slots: %w", err)
	}

	low := cursor{next: -1}
	lower := func(x cursor) {
		if low.next < 0 || x.next < low.next {
			low = x
		}
	}
	ids := []string{cfg.InstanceID}
	for _, r := range found {
		if r.Owner == nil {
			lower(cursor{next: r.NextBlock, hash: r.BlockHash})
		} else if !slices.Contains(ids, *r.Owner) {
			ids = append(ids, *r.Owner)
		}
	}

	slices.Sort(ids)
	rows, _ = tx.Query(ctx, fenceCursors, cfg.ChainID, ids)
	var id string
	var next *int64
	var hash *string
	var at *time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &next, &hash, &at}, func() error {
		if next != nil && (id != cfg.InstanceID || holding) {
			lower(cursor{*next, hash, at})
		}

		return nil
	}); err != nil {
		return cursor{}, fmt.Errorf("fence the owners of %d slots: %w", len(slots), err)
	}

	batch := &pgx.Batch{}
	batch.Queue(moveCursor, cfg.ChainID, cfg.InstanceID, low.next, low.hash, low.time)
	batch.Queue(takeSlots, cfg.ChainID, slots, cfg.InstanceID)
	batch.Queue(notify, cfg.ChainID)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return cursor{}, fmt.Errorf("take %d slots: %w", len(slots), err)
	}

	return low, nil
}

const lockSlots = `
	select slot, owner, next_block, block_hash from slot_ownership
	where chain_id = $1 and slot = any($2) order by slot for update`

const moveCursor = `
	update cursors set next_block = $3, block_hash = $4, block_time = $5, updated_at = now()
	where chain_id = $1 and instance_id = $2`

// fenceCursors locks the cursor rows of the former owners and of the claimer, and raises their
// epochs: every commit computed earlier fails.
const fenceCursors = `
	with locked as (
		select instance_id from cursors where chain_id = $1 and instance_id = any($2) order by instance_id for update)
	update cursors c set epoch = c.epoch + 1 from locked l
	where c.chain_id = $1 and c.instance_id = l.instance_id
	returning c.instance_id, c.next_block, c.block_hash, c.block_time`

const releaseSlots = `
	with mine as (
		update cursors set epoch = epoch + 1
		where chain_id = @chain and instance_id = @me and epoch = @epoch
		returning next_block, block_hash)
	update slot_ownership s set owner = null, since = now(), next_block = mine.next_block, block_hash = mine.block_hash
	from mine where s.chain_id = @chain and s.owner = @me and s.slot = any(@slots)`
