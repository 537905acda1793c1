// Package subscriber applies the relayer's messages to a consumer's Postgres: each event of the
// chain once, and none that a reorganisation removed.
//
// The topics of events and of retractions are unordered relative to each other, Pub/Sub delivers at
// least once, and a replay publishes an event again. Apply records the messages of each event id in
// one row:
//
//	            event ──► applied ──► retraction: undone ──┐
//	(nothing) ─┤                                           ├─► later messages change nothing
//	            retraction ─────────────► never applied ───┘
//
// So in any order and with any duplicates, a consumer ends with the effects of exactly the events
// of the chain. One row per event, rather than a table of applied ids and one of retracted ids,
// lets the primary key serialize an event and its retraction that are applied at the same time.
//
// The package is separate from package message, which imports the standard library only.
package subscriber

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Schema creates the table that Apply needs, if it is missing. Run it once, or copy it into a
// migration.
//
//go:embed schema.sql
var Schema string

// ErrPruned means that a retraction is older than what Prune deleted: whether its event was applied
// is unknown. A person must decide, so let it go to the dead-letter topic.
var ErrPruned = errors.New("retraction of an event that is pruned")

// Effect changes the consumer's tables for an event, in tx. If m.Retracted is true, it undoes what
// it did for the event with the same EventID; m has the same Args then. Other events of the escrow
// may have been applied in between, so an effect that is a row per event, deleted on a retraction,
// is always right, and one that overwrites a state may be wrong.
type Effect func(ctx context.Context, tx pgx.Tx, m *message.Message) error

// Apply calls effect if m changes something: once for an event, and once more to undo it. It
// ignores a duplicate, a replay of a known event, and an event after its retraction. Commit
// tx, then acknowledge m; after an error roll tx back and leave m unacknowledged. Several
// transactions may apply messages at the same time, even of the same event.
func Apply(ctx context.Context, tx pgx.Tx, m *message.Message, effect Effect) error {
	var applied, pruned bool
	err := tx.QueryRow(ctx, noteMessage, pgx.StrictNamedArgs{
		"chain": m.ChainID, "event": m.EventID, "block_time": m.BlockTimestamp, "retracted": m.Retracted, "replay": m.Replay,
	}).Scan(&applied, &pruned)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("note %s: %w", m.EventID, err)
	case !applied && pruned:
		return fmt.Errorf("%w: %s of block time %s", ErrPruned, m.EventID, m.BlockTimestamp.Format(time.RFC3339))
	case !applied:
		return nil
	}

	if err := effect(ctx, tx, m); err != nil {
		return fmt.Errorf("apply %s %s: %w", m.EventType, m.EventID, err)
	}

	return nil
}

// noteMessage moves an event id to its next state and returns whether an effect is due. Without a
// row the state is unchanged, as for a replay from before the mark of pruneMessages.
const noteMessage = `
    with pruned as (
        select from escrow_messages where chain_id = @chain and event_id = '' and block_time >= @block_time)
    insert into escrow_messages as known (chain_id, event_id, block_time, applied, retracted)
    select @chain, @event, @block_time, not @retracted::boolean, @retracted
     where not (@replay::boolean and exists (select from pruned))
        on conflict (chain_id, event_id) do update set retracted = true
     where excluded.retracted and not known.retracted
    returning known.applied, exists (select from pruned)`

// Prune deletes up to 10,000 rows of messages that came before the given time, and returns their
// number: call it until that is 0. Keep what may still come again, which is the retention of the
// subscriptions (31 days at most), and what a reorganisation may still remove. A replay of a pruned
// event stays without effect; its retraction is ErrPruned. Apply waits while tx is open.
func Prune(ctx context.Context, tx pgx.Tx, before time.Time) (int64, error) {
	if _, err := tx.Exec(ctx, `lock table escrow_messages in share row exclusive mode`); err != nil {
		return 0, fmt.Errorf("lock the messages: %w", err)
	}

	var n int64
	if err := tx.QueryRow(ctx, pruneMessages, before).Scan(&n); err != nil {
		return 0, fmt.Errorf("prune messages from before %s: %w", before.Format(time.RFC3339), err)
	}

	return n, nil
}

// pruneMessages deletes the oldest rows and raises the mark of their chains. It needs the table's
// lock: a replay that saw neither the row nor the mark would be applied again.
const pruneMessages = `
    with old as (
        select chain_id, event_id from escrow_messages
         where at < $1 and event_id <> '' order by at limit 10000),
    gone as (
        delete from escrow_messages m using old where m.chain_id = old.chain_id and m.event_id = old.event_id
        returning m.chain_id, m.block_time),
    mark as (
        insert into escrow_messages as mark (chain_id, event_id, block_time, applied, retracted)
        select chain_id, '', max(block_time), false, false from gone group by chain_id
            on conflict (chain_id, event_id) do update set block_time = greatest(mark.block_time, excluded.block_time))
    select count(*) from gone`

// Forget makes Apply treat every event of a chain as new, except retracted ones. A consumer that
// wants its history again undoes its effects in the same transaction, and then requests a replay.
func Forget(ctx context.Context, tx pgx.Tx, chainID string) error {
	_, err := tx.Exec(ctx, `delete from escrow_messages where chain_id = $1 and not retracted`, chainID)
	if err != nil {
		return fmt.Errorf("forget the messages of chain %s: %w", chainID, err)
	}

	return nil
}
