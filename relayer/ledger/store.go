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
	publishes func(*contract.Event) bool // which events have a message; nil: none
	apart     func(*contract.Event) bool // which messages go through the outbox instead of the log; nil: none
	orphans   bool                       // there are orphaned events: one may reappear, or need another id
}

func (s *storing) told(e *contract.Event) bool    { return s.publishes != nil && s.publishes(e) }
func (s *storing) isApart(e *contract.Event) bool { return s.apart != nil && s.apart(e) }

// store inserts events, in order, with outbox rows for the messages of new ones that the log does not tell of. It
// returns the events that changed something: the new ones, and orphans that have reappeared. Both have their
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

	stored, err := insert(ctx, t, fresh, &how)
	if err != nil {
		return nil, err
	}

	if err := publish(ctx, t, stored, &how); err != nil {
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

// publish makes the messages of events that were just stored part of the result: of the log, or with their rows of the
// outbox.
func publish(ctx context.Context, t *transaction, events []contract.Event, how *storing) error {
	var apart []outbox.Pending
	for i := range events {
		switch e := &events[i]; {
		case !how.told(e):
		case how.isApart(e):
			apart = append(apart, pendingOf(e))
		default:
			t.result.Log = append(t.result.Log, pendingOf(e))
		}
	}

	if err := outbox.Add(ctx, t, t.cfg.ChainID, t.token, apart); err != nil {
		return err
	}

	t.result.Pending = append(t.result.Pending, apart...)

	return nil
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

// insert adds the events that are missing, and returns them.
func insert(ctx context.Context, t *transaction, events []contract.Event, how *storing) ([]contract.Event, error) {
	if len(events) == 0 {
		return nil, nil
	}

	if len(events) >= bulk {
		ok, err := copyEvents(ctx, t, events, how)
		if err != nil {
			return nil, fmt.Errorf("copy %d events: %w", len(events), err)
		}

		if ok {
			return events, nil
		}
	}

	return insertEvents(ctx, t, events, how)
}

// copyEvents adds events by COPY, assuming that all are missing; false: one was stored already, and
// none was added.
func copyEvents(ctx context.Context, t *transaction, events []contract.Event, how *storing) (bool, error) {
	savepoint, err := t.Begin(ctx)
	if err != nil {
		return false, err
	}

	columns := []string{"chain_id", "block_number", "block_time", "log_index", "writer", "type", "slot",
		"occurrence", "told", "apart", "block_hash", "tx_hash", "escrow", "emitter", "args"}
	values := make([]any, len(columns))
	at := -1
	_, err = savepoint.CopyFrom(ctx, pgx.Identifier{"events"}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		if at++; at == len(events) {
			return nil, nil
		}

		e := &events[at]
		values = append(values[:0], t.cfg.ChainID, blockOf(e), timeOf(e), int32(e.LogIndex), t.known.writer,
			t.known.types[e.Name], partition.Slot(e.Escrow), e.Occurrence, how.told(e), how.isApart(e), hashOf(e),
			txOf(e), escrowOf(e), emitterOf(e), []byte(e.Args))

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

// insertEvents adds events by a statement, which skips stored ones.
func insertEvents(ctx context.Context, t *transaction, events []contract.Event,
	how *storing) ([]contract.Event, error) {
	rows, _ := t.Query(ctx, storeEvents, eventArgs(t, events, how))
	added := make(map[contract.Place]bool, len(events))
	var p contract.Place
	if _, err := pgx.ForEachRow(rows, []any{&p.Block, &p.Index},
		func() error { added[p] = true; return nil }); err != nil {
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
func eventArgs(t *transaction, events []contract.Event, how *storing) pgx.StrictNamedArgs {
	blocks, indexes := placesOf(events)

	return pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "writer": t.known.writer, "blocks": blocks, "indexes": indexes,
		"times":       column.Of(events, timeOf),
		"types":       column.Of(events, func(e *contract.Event) int16 { return t.known.types[e.Name] }),
		"slots":       column.Of(events, func(e *contract.Event) int16 { return partition.Slot(e.Escrow) }),
		"occurrences": column.Of(events, func(e *contract.Event) int16 { return e.Occurrence }),
		"told":        column.Of(events, how.told),
		"apart":       column.Of(events, how.isApart),
		"hashes":      column.Of(events, hashOf),
		"txs":         column.Of(events, txOf),
		"escrows":     column.Of(events, escrowOf),
		"emitters":    column.Of(events, emitterOf),
		"args":        column.Of(events, func(e *contract.Event) string { return string(e.Args) }),
	}
}

// storeEvents inserts the missing events and returns their places. It avoids joins: the planner has no statistics of an
// array, and chose merge joins by text, and JIT compilation.
const storeEvents = `
	insert into events (chain_id, writer, block_number, block_time, log_index, type, slot, occurrence, told, apart, block_hash, tx_hash, escrow, emitter, args)
	select @chain, @writer, t.*
	from unnest(@blocks::bigint[], @times::bigint[], @indexes::integer[], @types::smallint[], @slots::smallint[], @occurrences::smallint[],
	            @told::boolean[], @apart::boolean[], @hashes::bytea[], @txs::bytea[], @escrows::bytea[], @emitters::bytea[], @args::text[]) as t
	on conflict (chain_id, block_number, log_index) do nothing
	returning block_number, log_index`
