// Package retention removes data without further use, in small steps, so that it holds locks only
// briefly. The leader runs it.
//
// It removes the events of escrows that have ended (contract.Event.Ends), the history of an escrow
// as a whole, once it is older than Config.Events and its end is below the verified block and at
// most the oldest block with a stored hash: below that, cursors stay ahead and reorganisations end.
// It removes instances that have been dead for longer than Config.Instances and own nothing, and
// block hashes far below finality. It keeps every event of an escrow that may still emit one.
package retention

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config of the clean-up.
type Config struct {
	DB        *pgxpool.Pool
	ChainID   int64
	Events    time.Duration // how long events of ended escrows are kept; 0: for ever
	Instances time.Duration // how long dead instances are shown; 0 means 7 days
	Every     time.Duration // pause between two clean-ups; 0 means 1 minute
	Log       *slog.Logger
}

const (
	escrowsPerStep = 500
	// blocksKept is how many block hashes stay: some seven hours of Ethereum at one hash per block.
	// After a reorganisation below the oldest of them the chain is read again from START_BLOCK.
	blocksKept = 2048
)

// Run cleans up until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	cfg.Every = cmp.Or(cfg.Every, time.Minute)
	cfg.Instances = cmp.Or(cfg.Instances, 7*24*time.Hour)

	ticker := time.NewTicker(cfg.Every)
	defer ticker.Stop()
	for {
		if _, err := Once(ctx, cfg); err != nil && ctx.Err() == nil {
			cfg.Log.WarnContext(ctx, "clean-up failed, retrying", slog.Any("err", err))
		}

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Removed counts what a clean-up removed.
type Removed struct {
	Events, Instances, Blocks int64
}

// Once runs one whole clean-up.
func Once(ctx context.Context, cfg Config) (r Removed, err error) {
	for cfg.Events > 0 {
		n, err := removeSome(ctx, cfg)
		if err != nil {
			return r, fmt.Errorf("remove events of ended escrows: %w", err)
		}

		if r.Events += n; n == 0 {
			break
		}
	}

	tag, err := cfg.DB.Exec(ctx, removeInstances, cfg.ChainID, cfg.Instances.Seconds())
	if err != nil {
		return r, fmt.Errorf("remove dead instances: %w", err)
	}

	r.Instances = tag.RowsAffected()
	tag, err = cfg.DB.Exec(ctx, removeBlocks, cfg.ChainID, blocksKept)
	if err != nil {
		return r, fmt.Errorf("remove old block hashes: %w", err)
	}

	r.Blocks = tag.RowsAffected()

	return r, nil
}

// removeSome takes one step. It may come to an event with a replay that is just being requested: that one
// is skipped.
func removeSome(ctx context.Context, cfg Config) (n int64, err error) {
	tag, err := cfg.DB.Exec(ctx, removeEvents, pgx.StrictNamedArgs{"chain": cfg.ChainID, "age": cfg.Events.Seconds(),
		"step": escrowsPerStep})

	return tag.RowsAffected(), err
}

// removeEvents selects some escrows with a last event, a release or refund, that was stored long ago and
// is at or below the verified block and the oldest remembered one, and removes their events. The
// types 5 and 6 are contract.Event.Ends, written as in the index events_ended. The registry row and the
// escrow's last state stay: they are small, and show that the escrow existed.
const removeEvents = `
	with ended as (
		select p.escrow from events p
		where p.chain_id = @chain and p.type in (5, 6)
		  and p.processed_at < now() - make_interval(secs => @age)
		  and p.block_number <= (select verified_block from leadership where chain_id = @chain)
		  and p.block_number <= (select min(number) from chain_blocks where chain_id = @chain)
		  and not exists (select from outbox o where o.chain_id = @chain and o.escrow = p.escrow)
		  and not exists (select from requests r where r.chain_id = @chain and r.escrow = p.escrow)
		order by p.processed_at limit @step),
	kept as (
		insert into records (chain_id, ` + recordColumns + `)
		select @chain, ` + recordColumns + `
		from folded_records f where f.chain_id = @chain and f.escrow in (select escrow from ended)
		on conflict (chain_id, escrow) do update set (` + recordColumns + `) = (
			select ` + recordColumns + ` from (select excluded.*) f))
	delete from events p using ended e where p.chain_id = @chain and p.escrow = e.escrow`

// recordColumns are the columns of folded_records.
const recordColumns = `deployed_block, last_block, updated_at, last_index, approvals, slot, status, last_type, last_occurrence, approvals_required,
	escrow, payer, payee, arbiter, last_tx, amount, release_delay, release_time, settled_amount, settled_at, approvers`

const removeInstances = `
	with gone as (
		delete from relayer_instances i
		where i.chain_id = $1 and i.status = 'dead' and i.dead_since < now() - make_interval(secs => $2)
		  and not exists (select from slot_ownership s where s.chain_id = i.chain_id and s.owner = i.instance_id)
		returning i.instance_id),
	told as (delete from instance_health h using gone g where h.chain_id = $1 and h.instance_id = g.instance_id)
	delete from cursors c using gone g where c.chain_id = $1 and c.instance_id = g.instance_id`

const removeBlocks = `
	delete from chain_blocks where chain_id = $1 and number < (
		select number from chain_blocks where chain_id = $1 order by number desc offset $2 limit 1)`
