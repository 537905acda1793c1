package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// bulk is the number of events from which COPY pays off: it takes two more round trips than a
// statement and a third of its time per event.
const bulk = 256

// storing configures how events are stored.
type storing struct {
	publishes func(*contract.Event) bool // which events get an outbox row; nil: none
	orphans   bool                       // there are orphaned events: one may reappear, or need another id
}

// store inserts events and, for new published ones, their outbox rows, in order. It returns the
// events that changed something: the new ones, and orphans that have reappeared. Both have their
// Occurrence.
func store(ctx context.Context, t *transaction, events []contract.Event,
	how storing) (fresh []contract.Event, err error) {
	if len(events) == 0 {
		return nil, nil
	}

	fresh = distinct(events, &t.result)
	var revived []revival
	if how.orphans {
		if fresh, revived, err = reappear(ctx, t, fresh); err != nil {
			return nil, err
		}
	}

	told := func(e *contract.Event) bool { return how.publishes != nil && how.publishes(e) }
	stored, err := insert(ctx, t, fresh, told)
	if err != nil {
		return nil, err
	}

	t.result.New += len(stored)
	t.result.Revived += len(revived)
	if len(revived) == 0 {
		return stored, nil
	}

	for i := range revived {
		stored = append(stored, revived[i].event)
	}

	sortEvents(stored) // the last of an escrow's endings counts

	return stored, nil
}

// distinct drops duplicates within a commit: a transaction that a node shows in two blocks of a
// range.
func distinct(events []contract.Event, r *Result) []contract.Event {
	seen := make(map[logID]bool, len(events))
	for i := range events {
		seen[logIDOf(&events[i])] = true
	}

	if len(seen) == len(events) {
		return events
	}

	r.Duplicates += len(events) - len(seen)
	once := make([]contract.Event, 0, len(seen))
	for i := range events {
		if id := logIDOf(&events[i]); seen[id] {
			delete(seen, id)
			once = append(once, events[i])
		}
	}

	return once
}

// insert adds the events that are missing, with outbox rows for those to be published, and returns
// them.
func insert(ctx context.Context, t *transaction, events []contract.Event,
	told func(*contract.Event) bool) ([]contract.Event, error) {
	if len(events) == 0 {
		return nil, nil
	}

	if len(events) >= bulk {
		ok, err := copyEvents(ctx, t, events, told)
		if err != nil {
			return nil, fmt.Errorf("copy %d events: %w", len(events), err)
		}

		if ok {
			return events, enqueue(ctx, t, events, told)
		}
	}

	return insertEvents(ctx, t, events, told)
}

// copyEvents adds events by COPY, assuming that all are missing; false: one was stored already, and
// none was added.
func copyEvents(ctx context.Context, t *transaction, events []contract.Event,
	told func(*contract.Event) bool) (bool, error) {
	savepoint, err := t.Begin(ctx)
	if err != nil {
		return false, err
	}

	columns := []string{"chain_id", "block_number", "block_time", "log_index", "writer", "type", "slot",
		"occurrence", "told", "block_hash", "tx_hash", "escrow", "emitter", "args"}
	values := make([]any, len(columns))
	at := -1
	_, err = savepoint.CopyFrom(ctx, pgx.Identifier{"events"}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		if at++; at == len(events) {
			return nil, nil
		}

		e := &events[at]
		values = append(values[:0], t.cfg.ChainID, blockOf(e), timeOf(e), int32(e.LogIndex), t.known.writer,
			t.known.types[e.Name], partition.Slot(e.Escrow), e.Occurrence, told(e), hashOf(e), txOf(e), escrowOf(e),
			emitterOf(e), []byte(e.Args))

		return values, nil
	}))
	if err == nil {
		return true, savepoint.Commit(ctx)
	}

	if cause := (*pgconn.PgError)(nil); errors.As(err, &cause) && cause.Code == uniqueViolation {
		return false, savepoint.Rollback(ctx)
	}

	return false, err
}

// uniqueViolation is the SQLSTATE of a duplicate key.
const uniqueViolation = "23505"

// enqueue adds the outbox rows of events that were just stored.
func enqueue(ctx context.Context, t *transaction, events []contract.Event, told func(*contract.Event) bool) error {
	pending := make([]outbox.Pending, 0, len(events))
	for i := range events {
		if e := &events[i]; told(e) {
			pending = append(pending, pendingOf(e))
		}
	}

	if err := outbox.Add(ctx, t, t.cfg.ChainID, t.token, pending); err != nil {
		return err
	}

	t.result.Pending = append(t.result.Pending, pending...)

	return nil
}

// insertEvents adds events by a statement, which skips stored ones.
func insertEvents(ctx context.Context, t *transaction, events []contract.Event,
	told func(*contract.Event) bool) ([]contract.Event, error) {
	given := make(map[contract.Place]*contract.Event, len(events))
	for i := range events {
		given[events[i].Place()] = &events[i]
	}

	rows, _ := t.Query(ctx, storeEvents, eventArgs(t, events, told))
	added := make(map[contract.Place]bool, len(events))
	var p contract.Place
	var seq *int64
	_, err := pgx.ForEachRow(rows, []any{&p.Block, &p.Index, &seq}, func() error {
		e, ok := given[p]
		if !ok {
			return fmt.Errorf("the database returned an unknown event at block %d, log %d", p.Block, p.Index)
		}

		added[p] = true
		if seq == nil {
			return nil
		}

		if last := len(t.result.Pending); last > 0 && t.result.Pending[last-1].Seq >= *seq {
			return fmt.Errorf("the database returned outbox row %d after row %d", *seq, t.result.Pending[last-1].Seq)
		}

		row := pendingOf(e)
		row.ID = outbox.ID{Seq: *seq, Token: t.token}
		t.result.Pending = append(t.result.Pending, row)

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store %d events: %w", len(events), err)
	}

	if len(added) == len(events) {
		return events, nil
	}

	var fresh, there []contract.Event
	for i := range events {
		if added[events[i].Place()] {
			fresh = append(fresh, events[i])
		} else {
			there = append(there, events[i])
		}
	}

	if gone, err := notStored(ctx, t, there); err != nil {
		return nil, err
	} else if len(gone) > 0 { // another transaction has removed the stored events: the caller retries
		return nil, &BranchError{Block{Number: int64(gone[0].BlockNumber)}}
	}

	return fresh, nil
}

// eventArgs are the columns of events as storeEvents takes them.
func eventArgs(t *transaction, events []contract.Event, told func(*contract.Event) bool) pgx.StrictNamedArgs {
	blocks, indexes := placesOf(events)

	return pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "writer": t.known.writer, "token": t.token, "blocks": blocks, "indexes": indexes,
		"times":       column.Of(events, timeOf),
		"types":       column.Of(events, func(e *contract.Event) int16 { return t.known.types[e.Name] }),
		"slots":       column.Of(events, func(e *contract.Event) int16 { return partition.Slot(e.Escrow) }),
		"occurrences": column.Of(events, func(e *contract.Event) int16 { return e.Occurrence }),
		"told":        column.Of(events, told),
		"hashes":      column.Of(events, hashOf),
		"txs":         column.Of(events, txOf),
		"escrows":     column.Of(events, escrowOf),
		"emitters":    column.Of(events, emitterOf),
		"args":        column.Of(events, func(e *contract.Event) string { return string(e.Args) }),
	}
}

// storeEvents inserts the missing events, and an outbox row for each of them that is published. It
// returns them, first those with the seq of their outbox row, then the others, each in the order of
// the input: rows inserted in order are returned in order, and numbered in order. It avoids joins:
// the planner has no statistics of an array, and chose merge joins by text, and JIT compilation.
const storeEvents = `
	with new as (
		insert into events (chain_id, writer, block_number, block_time, log_index, type, slot, occurrence, told, block_hash, tx_hash, escrow, emitter, args)
		select @chain, @writer, t.*
		from unnest(@blocks::bigint[], @times::bigint[], @indexes::integer[], @types::smallint[], @slots::smallint[], @occurrences::smallint[],
		            @told::boolean[], @hashes::bytea[], @txs::bytea[], @escrows::bytea[], @emitters::bytea[], @args::text[]) as t
		on conflict (chain_id, block_number, log_index) do nothing
		returning block_number, log_index, slot, escrow, type, told),
	queued as (
		insert into outbox (chain_id, token, block_number, log_index, slot, escrow, event_type)
		select @chain, @token, block_number, log_index, slot, escrow, (select name from event_types t where t.id = type) from new
			where told
		returning block_number, log_index, seq)
	select block_number, log_index, seq from queued
	union all
	select block_number, log_index, null from new where not told`
