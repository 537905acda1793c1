// Package retention removes data without further use, in small steps, so that locks are brief. The leader runs it.
//
// It removes the events of escrows that have ended (contract.Event.Ends), the history of an escrow as a whole, once it
// is older than Config.Events and its end is below the verified block and at most the oldest block with a stored hash:
// below that, cursors stay ahead and reorganisations end. So is its deployment, which may come after its end. It
// removes answered commands, Config.Events after they were answered and could not be carried out any more, unless
// something still counts on them; of those with a nonce the table used_nonces keeps what an audit compares.
//
// It removes instances that have been dead for longer than Config.Instances and own nothing, and block hashes far below
// finality. It keeps every event of an escrow that may still emit one, or is late: its owner catches it up behind them.
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
	Events    time.Duration // how long events of ended escrows, and answered commands, are kept; 0: for ever
	Instances time.Duration // how long dead instances are shown; 0 means 7 days
	Every     time.Duration // pause between two clean-ups; 0 means 1 minute
	Log       *slog.Logger
}

const (
	escrowsPerStep  = 500
	commandsPerStep = 500
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
	Events, Commands, Instances, Blocks int64
}

// Once runs one whole clean-up.
func Once(ctx context.Context, cfg Config) (r Removed, err error) {
	// A replay may just be requested of what the first comes to: that event is skipped.
	if r.Events, err = removeAll(ctx, cfg, removeEvents, escrowsPerStep); err != nil {
		return r, fmt.Errorf("remove events of ended escrows: %w", err)
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
	if r.Commands, err = removeAll(ctx, cfg, removeCommands, commandsPerStep); err != nil {
		return r, fmt.Errorf("remove answered commands: %w", err)
	}

	return r, nil
}

// removeAll runs a statement in steps until it finds nothing more. Each step is planned anew: a generic plan that was
// made while nothing waited to be sent (PostgreSQL manual, PREPARE) would go on after the outbox has filled.
func removeAll(ctx context.Context, cfg Config, statement string, step int) (removed int64, err error) {
	for cfg.Events > 0 {
		tag, err := cfg.DB.Exec(ctx, statement, pgx.QueryExecModeExec, pgx.StrictNamedArgs{"chain": cfg.ChainID,
			"age": cfg.Events.Seconds(), "step": step})
		if err != nil || tag.RowsAffected() == 0 {
			return removed, err
		}

		removed += tag.RowsAffected()
	}

	return 0, nil
}

// removeEvents selects some escrows with a last event, a release or refund, that was stored long ago and
// is at or below the verified block and the oldest remembered one, and removes their events. The
// types 5 and 6 are contract.Event.Ends, written as in the index events_ended. The registry row and the
// escrow's last state stay: they are small, and show that the escrow existed. The offset keeps the planner from reading
// all events for those that wait. What no slot has sent yet, as in a backlog, is not even looked up. A command that is
// done is answered with its event, however late its receipt comes: till then the event stays.
const removeEvents = `
	with ended as (
		select p.escrow from events p
		where p.chain_id = @chain and p.type in (5, 6)
		  and p.processed_at < now() - make_interval(secs => @age)
		  and p.block_number <= (select verified_block from leadership where chain_id = @chain)
		  and p.block_number <= (select min(number) from chain_blocks where chain_id = @chain)
		  and p.block_number <= (select max(sent_block) from slot_ownership where chain_id = @chain)
		  and not exists (select from waiting o where o.chain_id = @chain and o.escrow = p.escrow offset 0)
		  and not exists (select from requests r where r.chain_id = @chain and r.escrow = p.escrow)
		  and not exists (select from late_escrows l where l.chain_id = @chain and l.address = p.escrow)
		  and not exists (select from escrows d where d.chain_id = @chain and d.address = p.escrow
			and d.discovered_block_number > (select min(number) from chain_blocks where chain_id = @chain) offset 0)
		  and not exists (select from commands c
			where c.escrow = hex(p.escrow) and c.chain_id + 0 = @chain and c.answered_at is null offset 0)
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

// removeCommands removes what was answered, and has expired, long ago: the same command taken in again is answered
// `expired`, and nothing is ever signed for it. It leaves alone what a rollback of the ledger may open again, what
// counts for today's budgets, answers that are not published, and the failures that the keeper's pauses count
// (selectDue in relayer/command/send). Their claims go too: what they did to an escrow its events, or its record, tell.
const removeCommands = `
	with gone as (
		select c.* from commands c
		where c.chain_id = @chain and c.answered_at is not null
		  and greatest(c.answered_at, c.expires_at) < now() - make_interval(secs => @age)
		  and coalesce(c.block_number <= (select min(number) from chain_blocks where chain_id = @chain), c.block_number is null)
		  and coalesce(c.reserve_day < (now() at time zone 'utc')::date, true)
		  and not (c.requester = 'keeper' and c.code = 'would_revert' and c.answered_at > now() - interval '60 days')
		  and not exists (select from replies r where r.chain_id = c.chain_id and r.command_id = c.command_id)
		order by greatest(c.answered_at, c.expires_at) limit @step
		for update skip locked),
	kept as (
		insert into used_nonces (chain_id, sender, nonce, command_id, kind, escrow, factory, expires_at, state, tx_hash, block_hash)
		select chain_id, bytes(sender), nonce, bytes(command_id), kind, bytes(escrow), bytes(message ->> 'factory'), expires_at, state,
		       bytes(tx_hash), bytes(block_hash)
		from gone where nonce is not null),
	unclaimed as (
		delete from command_claims k using gone g where k.command_id = g.command_id),
	attempts as (
		delete from command_attempts a using gone g
		where a.chain_id = g.chain_id and a.sender = g.sender and a.nonce = g.nonce)
	delete from commands c using gone g where c.command_id = g.command_id`

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
