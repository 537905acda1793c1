package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
)

// Rolled is what a rollback did.
type Rolled struct {
	Done     bool // false: another instance has done it
	Orphaned int  // events above the fork
	Escrows  int  // their escrows
	Depth    int64
}

// rollbackTimeout bounds a rollback: to START_BLOCK it removes everything that is stored,
// at some ten thousand events per second.
const rollbackTimeout = 10 * time.Minute

// rollback takes the whole chain back from a stale position to a fork: see Ledger.Rollback.
func rollback(ctx context.Context, t *transaction, stale, fork Position) (r Rolled, err error) {
	defer patience(t.Conn().PgConn().Conn(), rollbackTimeout)()
	chain := t.cfg.ChainID
	if err := lockAll(ctx, t); err != nil {
		return r, err
	}

	var highest int64
	err = t.QueryRow(ctx, rollbackScope, chain, stale.Next, stale.hashColumn(), stale.Hash[:]).Scan(&r.Done, &highest)
	if err != nil || !r.Done {
		return r, err
	}

	var pruned int64
	if err := t.QueryRow(ctx, prunedAbove, chain, fork.Next).Scan(&pruned); err != nil {
		return r, fmt.Errorf("count what RETENTION has removed above the fork: %w", err)
	}

	if pruned > 0 {
		return Rolled{}, fmt.Errorf("%w of %d escrows that ended above block %d: what consumers were told of them cannot "+
			"be retracted; restore a backup that has them, or start on a new database", ErrPruned, pruned, fork.Next-1)
	}

	r.Depth = highest - (fork.Next - 1)
	if err := moveBack(ctx, t, fork, highest); err != nil {
		return r, err
	}

	escrows, err := orphanAbove(ctx, t, fork, highest)
	if err != nil {
		return r, err
	}

	r.Orphaned = len(escrows)
	slices.SortFunc(escrows, bytes.Compare)
	escrows = slices.CompactFunc(escrows, bytes.Equal)
	r.Escrows = len(escrows)
	if err := unregister(ctx, t, fork); err != nil {
		return r, err
	}

	if err := registry.EndAgain(ctx, t, chain, escrows); err != nil {
		return r, err
	}

	if err := t.reopen(ctx, fork.Next, math.MaxInt64); err != nil {
		return r, err
	}

	if err := addFinding(ctx, t, Finding{Kind: DeepReorg, Block: fork.Next - 1, Events: r.Orphaned}); err != nil {
		return r, err
	}

	return r, t.notify(ctx, partition.Channel, registry.Channel)
}

// orphanAbove makes orphans of what a rollback to a fork takes back, and returns the escrow of each.
func orphanAbove(ctx context.Context, t *transaction, fork Position, highest int64) (escrows [][]byte, err error) {
	for _, statement := range []string{orphanEvents, orphanOlder} {
		rows, _ := t.Query(ctx, statement, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "from": fork.Next,
			"state": orphaned, "retract_after": highest, "token": t.token})
		some, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return nil, fmt.Errorf("orphan events: %w", err)
		}

		escrows = append(escrows, some...)
	}

	if _, err := t.Exec(ctx, lowerSent, t.cfg.ChainID, fork.Next, t.token); err != nil {
		return nil, fmt.Errorf("lower what is sent: %w", err)
	}

	return escrows, nil
}

// lockAll sets the transaction's timeout to rollbackTimeout, and takes every lock of the chain that
// a commit, a claim or a registration takes.
func lockAll(ctx context.Context, t *transaction) error {
	chain := t.cfg.ChainID
	if _, err := t.Exec(ctx, partition.LockOwnership, chain); err != nil {
		return err
	}

	if err := unhurried(ctx, t); err != nil {
		return err
	}

	// Rows are locked in the order leadership, slots, cursors by id: a commit locks one of them, and what notes that
	// events are sent the slots before the events.
	for _, lock := range []string{`select from leadership where chain_id = $1 for update`,
		`select from slot_ownership where chain_id = $1 order by slot for update`, lockCursors} {
		if _, err := t.Exec(ctx, lock, chain); err != nil {
			return err
		}
	}

	return nil
}

// unhurried sets the transaction's timeout to rollbackTimeout.
func unhurried(ctx context.Context, t *transaction) error {
	_, err := t.Exec(ctx, `select set_config('statement_timeout', $1, true)`,
		strconv.FormatInt(rollbackTimeout.Milliseconds(), 10))

	return err
}

// ErrPruned means that a rollback would have to retract events that RETENTION has removed.
// RETENTION removes none above the oldest remembered block, so this needs a fork below that block.
var ErrPruned = errors.New("RETENTION has removed the events")

const prunedAbove = `
	select count(*) from escrows e
	where e.chain_id = $1 and e.ended_block >= $2
	  and not exists (select from events p where p.chain_id = e.chain_id and p.escrow = e.address)`

// patience extends the read timeout of a relayer/database connection until the returned function is
// called: a statement of a rollback is silent for minutes with millions of events, while a
// connection may usually be silent for little longer than a statement takes.
func patience(conn net.Conn, d time.Duration) (restore func()) {
	if encrypted, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = encrypted.NetConn()
	}

	patient, is := conn.(interface {
		Patience(time.Duration) time.Duration
	})
	if !is {
		return func() {}
	}

	before := patient.Patience(d)

	return func() { patient.Patience(before) }
}

// lockCursors waits for running commits of all slots, and delays others.
const lockCursors = `select from cursors where chain_id = $1 order by instance_id for update`

// newGeneration makes each owner read its position again before it commits: what it has read is
// void.
const newGeneration = `update cursors set generation = generation + 1 where chain_id = $1`

// rollbackScope returns whether a cursor is still at the stale block, or the block is remembered,
// or has an event, and the highest processed block: a claim may have lowered the cursor that had
// been there.
const rollbackScope = `
	with c as (
		select next_block, block_hash from leadership where chain_id = $1
		union all select next_block, block_hash from cursors where chain_id = $1 and next_block is not null
		union all select next_block, block_hash from slot_ownership where chain_id = $1 and owner is null)
	select coalesce(bool_or(next_block = $2 and block_hash = $3), false)
	       or exists (select from chain_blocks where chain_id = $1 and number = $2 - 1 and hash = $3)
	       or exists (select from events where chain_id = $1 and block_number = $2 - 1 and block_hash = $4),
	       greatest(max(next_block) - 1, (select max(number) from chain_blocks where chain_id = $1)) from c`

// moveBack moves every cursor back to a fork.
func moveBack(ctx context.Context, t *transaction, fork Position, highest int64) error {
	chain, hash := t.cfg.ChainID, fork.hashColumn()
	batch := &pgx.Batch{}
	batch.Queue(`update leadership set generation = generation + 1 where chain_id = $1`, chain)
	batch.Queue(newGeneration, chain)
	batch.Queue(`update leadership set next_block = $2::bigint, block_hash = $3, verified_block = least(verified_block, $2::bigint - 1)
		where chain_id = $1 and next_block > $2::bigint`, chain, fork.Next, hash)
	batch.Queue(`update factories set past_block = greatest(start_block, $2::bigint) where chain_id = $1 and past_block > greatest(start_block, $2::bigint)`,
		chain, fork.Next)
	batch.Queue(`update cursors set next_block = $2, block_hash = $3, updated_at = now() where chain_id = $1 and next_block > $2`, chain, fork.Next, hash)
	batch.Queue(`update slot_ownership set next_block = $2, block_hash = $3 where chain_id = $1 and owner is null and next_block > $2`, chain, fork.Next, hash)
	batch.Queue(`delete from chain_blocks where chain_id = $1 and number >= $2`, chain, fork.Next)
	batch.Queue(`update orphaned_events set retract_after = greatest(retract_after, $3) where chain_id = $1 and block_number >= $2 and state = 1`,
		chain, fork.Next, highest)
	if err := t.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("move the cursors back: %w", err)
	}

	return nil
}

// orphanEvents orphans the events above a fork, and returns the escrow of each.
const orphanEvents = `
	with gone as (
		delete from events where chain_id = @chain and block_number >= @from returning *),` + keepOrphans + `
	select escrow from gone`

// orphanOlder orphans what escrows deployed above the fork had emitted below it: without their deployment nobody is to
// have it. The second reading, which has seen it, sees it again.
const orphanOlder = `
	with gone as (
		delete from events e using escrows r
		where r.chain_id = @chain and r.discovered_block_number >= @from and e.chain_id = @chain
		  and e.escrow = r.address
		returning e.*),` + keepOrphans + `,
	back as (
		update leadership set verified_block = least(verified_block, (select min(block_number) - 1 from gone))
		where chain_id = @chain)
	select escrow from gone`

// lowerSent lets the log begin again at the fork. What got a row may have been sent.
const lowerSent = `
	update slot_ownership
	set sent_index = case when sent_block < $2 then sent_index else 2147483647 end,
	    sent_block = least(sent_block, $2::bigint - 1),
	    doubt = case when slot in (select slot from outbox where chain_id = $1 and token = $3) then clock_timestamp()
	            else doubt end
	where chain_id = $1`

// unregister removes from the registry what came from above a fork. An escrow deployed there is
// gone until its deployment reappears, and for good if it was never announced.
func unregister(ctx context.Context, t *transaction, fork Position) error {
	chain := t.cfg.ChainID
	batch := &pgx.Batch{}
	batch.Queue(`delete from escrows e where e.chain_id = $1 and e.discovered_block_number >= $2 and not exists (
		select from orphaned_events o where o.chain_id = e.chain_id and o.block_number = e.discovered_block_number
			and o.log_index = e.log_index and o.escrow = e.address and o.state = 1)`, chain, fork.Next)
	batch.Queue(`update escrows set status = 4, ended_block = null, updated_at = now() where chain_id = $1 and discovered_block_number >= $2`, chain, fork.Next)
	batch.Queue(`delete from late_escrows where chain_id = $1 and deployed_block >= $2`, chain, fork.Next)
	batch.Queue(`update late_escrows set monitored = $2::bigint - 1 where chain_id = $1 and monitored >= $2::bigint`,
		chain, fork.Next)
	if err := t.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("roll the registry back: %w", err)
	}

	return nil
}
