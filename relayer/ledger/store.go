package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// bulk is how many events are worth a COPY, which takes two more round trips than a statement and a
// third of its time per event.
const bulk = 256

// place is where an event stands on the chain; with the block's hash it is the event's identity.
type place struct {
	block uint64
	index uint
}

func placeOf(e *contract.Event) place { return place{e.BlockNumber, e.LogIndex} }

// storing says how events are stored.
type storing struct {
	// those that are published get their outbox rows; else they are the leader's EscrowDeployed, which
	// the owner announces
	queue   bool
	orphans bool // the chain has orphaned events: what is stored may be one that reappears, or need an id of its own
	// settle decides about orphans that are lost; nil: that is left to the owner of the slot.
	settle func(context.Context, pgx.Tx, *Result) error
}

// store inserts events and, for those which are new and published, their outbox rows, in order. It
// returns the events that changed something: the new ones, and those which a reorganisation had
// taken back and that have reappeared. Both have their Occurrence.
func (l *Ledger) store(ctx context.Context, tx pgx.Tx, events []contract.Event, how storing,
	r *Result) (fresh []contract.Event, err error) {
	if len(events) == 0 {
		return nil, nil
	}

	fresh = distinct(events, r)
	var revived []revival
	if how.orphans {
		if fresh, revived, err = l.reappear(ctx, tx, fresh, how, r); err != nil {
			return nil, err
		}
	}

	stored, err := l.insert(ctx, tx, fresh, how, r)
	if err != nil {
		return nil, err
	}

	r.New += len(stored)
	r.Revived += len(revived)
	for i := range revived {
		if r.revived == nil {
			r.revived = map[place]bool{}
		}

		r.revived[placeOf(&revived[i].event)] = true
	}

	return inOrder(stored, revived), nil
}

// inOrder merges what is new and what has reappeared in the order of the chain: the fold goes by it.
func inOrder(stored []contract.Event, revived []revival) []contract.Event {
	if len(revived) == 0 {
		return stored
	}

	all := make([]contract.Event, 0, len(stored)+len(revived))
	for _, e := range stored {
		for len(revived) > 0 && before(&revived[0].event, &e) {
			all, revived = append(all, revived[0].event), revived[1:]
		}

		all = append(all, e)
	}

	for _, v := range revived {
		all = append(all, v.event)
	}

	return all
}

func before(a, b *contract.Event) bool {
	return a.BlockNumber < b.BlockNumber || a.BlockNumber == b.BlockNumber && a.LogIndex < b.LogIndex
}

// distinct drops events that stand twice in one commit: one transaction that a node shows in two blocks of a range.
func distinct(events []contract.Event, r *Result) []contract.Event {
	type id struct {
		tx    common.Hash
		index uint
	}
	seen := make(map[id]struct{}, len(events))
	for i := range events {
		seen[id{events[i].TxHash, events[i].LogIndex}] = struct{}{}
	}

	if len(seen) == len(events) {
		return events
	}

	clear(seen)
	var once []contract.Event
	for _, e := range events {
		k := id{e.TxHash, e.LogIndex}
		if _, ok := seen[k]; ok {
			r.Duplicates++
			continue
		}

		seen[k] = struct{}{}
		once = append(once, e)
	}

	return once
}

// insert adds those events that are not there, with outbox rows for those to be queued, and returns them.
func (l *Ledger) insert(ctx context.Context, tx pgx.Tx, events []contract.Event, how storing,
	r *Result) ([]contract.Event, error) {
	if len(events) == 0 {
		return nil, nil
	}

	known, err := l.names(ctx)
	if err != nil {
		return nil, err
	}

	told := func(e *contract.Event) bool { return how.queue && l.cfg.Publishes(e.Name) }
	if len(events) >= bulk {
		ok, err := l.copyEvents(ctx, tx, events, known, told)
		if err != nil {
			return nil, fmt.Errorf("copy %d events: %w", len(events), err)
		}

		if ok {
			return events, l.enqueue(ctx, tx, events, told, r)
		}
	}

	return l.insertEvents(ctx, tx, events, known, told, r)
}

// eventColumns are the columns of events that a commit fills.
var eventColumns = []string{"chain_id", "block_number", "block_time", "log_index", "writer", "type", "slot",
	"occurrence", "told", "block_hash", "tx_hash",
	"escrow", "emitter", "args"}

// copyEvents adds events by COPY, on the guess that none of them is there; false: one was, and nothing was added.
func (l *Ledger) copyEvents(ctx context.Context, tx pgx.Tx, events []contract.Event, known *names,
	told func(*contract.Event) bool) (bool, error) {
	point, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}

	values := make([]any, len(eventColumns))
	at := -1
	_, err = point.CopyFrom(ctx, pgx.Identifier{"events"}, eventColumns, pgx.CopyFromFunc(func() ([]any, error) {
		if at++; at == len(events) {
			return nil, nil
		}

		e := &events[at]
		values = append(values[:0], l.cfg.ChainID, int64(e.BlockNumber), int64(e.BlockTime), int32(e.LogIndex), known.writer,
			known.types[e.Name],
			partition.Slot(e.Escrow), e.Occurrence, told(e), e.BlockHash[:], e.TxHash[:], e.Escrow[:], emitter(e),
			[]byte(e.Args))

		return values, nil
	}))
	if err == nil {
		return true, point.Commit(ctx)
	}

	if cause := (*pgconn.PgError)(nil); errors.As(err, &cause) && cause.Code == uniqueViolation {
		return false, point.Rollback(ctx)
	}

	return false, err
}

// uniqueViolation is the SQLSTATE of a key that is there already.
const uniqueViolation = "23505"

// emitter is the column value: null where the escrow emitted the event itself.
func emitter(e *contract.Event) []byte {
	if e.Emitter == e.Escrow {
		return nil
	}

	return e.Emitter[:]
}

// enqueue adds the outbox rows of events that were just stored, by COPY, with numbers drawn beforehand.
func (l *Ledger) enqueue(ctx context.Context, tx pgx.Tx, events []contract.Event, told func(*contract.Event) bool,
	r *Result) error {
	pending := make([]outbox.Pending, 0, len(events))
	for i := range events {
		if e := &events[i]; told(e) {
			pending = append(pending, outbox.Pending{Slot: partition.Slot(e.Escrow), Event: *e})
		}
	}

	if err := outbox.Add(ctx, tx, l.cfg.ChainID, pending); err != nil {
		return err
	}

	r.Pending = append(r.Pending, pending...)

	return nil
}

// insertEvents adds events by a statement, which passes over those that are there.
func (l *Ledger) insertEvents(ctx context.Context, tx pgx.Tx, events []contract.Event, known *names,
	told func(*contract.Event) bool, r *Result) ([]contract.Event, error) {
	c := newColumns(len(events))
	at := make(map[place]int, len(events))
	for i := range events {
		c.add(&events[i], known, told(&events[i]))
		at[placeOf(&events[i])] = i
	}

	rows, _ := tx.Query(ctx, storeEvents, c.named(l.cfg.ChainID, known.writer))
	added := make([]bool, len(events))
	n := 0
	var p place
	var seq *int64
	_, err := pgx.ForEachRow(rows, []any{&p.block, &p.index, &seq}, func() error {
		i, ok := at[p]
		if !ok {
			return fmt.Errorf("an event at block %d, log %d came back that was not given", p.block, p.index)
		}

		added[i] = true
		n++
		if seq == nil {
			return nil
		}

		if last := len(r.Pending); last > 0 && r.Pending[last-1].Seq >= *seq {
			return fmt.Errorf("outbox row %d came back behind %d", *seq, r.Pending[last-1].Seq)
		}

		r.Pending = append(r.Pending, outbox.Pending{Seq: *seq, Slot: c.slots[i], Event: events[i]})

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store %d events: %w", len(events), err)
	}

	if n == len(events) {
		return events, nil
	}

	var fresh, there []contract.Event
	for i := range events {
		if added[i] {
			fresh = append(fresh, events[i])
		} else {
			there = append(there, events[i])
		}
	}

	r.Duplicates += len(there)

	return fresh, l.sameBlocks(ctx, tx, there)
}

// sameBlocks returns an error unless each of the events is stored with its block.
func (l *Ledger) sameBlocks(ctx context.Context, tx pgx.Tx, events []contract.Event) error {
	stored, err := l.storedAt(ctx, tx, events)
	if err != nil {
		return err
	}

	for i := range events {
		if err := sameBlock(&events[i], stored); err != nil {
			return err
		}
	}

	return nil
}

// storedAt returns the block hashes of the canonical events that stand where some events stand.
func (l *Ledger) storedAt(ctx context.Context, tx pgx.Tx, events []contract.Event) (map[place]common.Hash, error) {
	blocks, indexes := make([]int64, len(events)), make([]int32, len(events))
	for i := range events {
		blocks[i], indexes[i] = int64(events[i].BlockNumber), int32(events[i].LogIndex)
	}

	rows, _ := tx.Query(ctx, eventsAt, l.cfg.ChainID, blocks, indexes)
	found := map[place]common.Hash{}
	var p place
	var hash []byte
	_, err := pgx.ForEachRow(rows, []any{&p.block, &p.index, &hash},
		func() error { found[p] = common.BytesToHash(hash); return nil })
	if err != nil {
		return nil, fmt.Errorf("look up %d events that may be stored: %w", len(events), err)
	}

	return found, nil
}

const eventsAt = `
	select e.block_number, e.log_index, e.block_hash
	from unnest($2::bigint[], $3::integer[]) as t(block, index)
	join events e on e.chain_id = $1 and e.block_number = t.block and e.log_index = t.index`

// sameBlock returns a BranchError if the event that is stored in the place of another is of another branch.
func sameBlock(e *contract.Event, stored map[place]common.Hash) error {
	if hash := stored[placeOf(e)]; hash != e.BlockHash {
		return &BranchError{Block{int64(e.BlockNumber), hash}}
	}

	return nil
}

// storeEvents inserts what is not there yet, and an outbox row for each new event that is to be
// queued. It returns the new events, first the queued ones with the seq of their outbox row, then
// the others, each in the order of the input: rows that are inserted in order are returned in
// order, and numbered in order. No join: the planner knows nothing of what an array holds, and took
// merge joins by text, and JIT compilation, for it.
const storeEvents = `
	with new as (
		insert into events (chain_id, writer, block_number, block_time, log_index, type, slot, occurrence, told, block_hash, tx_hash, escrow, emitter, args)
		select @chain, @writer, t.*
		from unnest(@blocks::bigint[], @times::bigint[], @indexes::integer[], @types::smallint[], @slots::smallint[], @occurrences::smallint[],
		            @told::boolean[], @hashes::bytea[], @txs::bytea[], @escrows::bytea[], @emitters::bytea[], @args::text[]) as t
		on conflict (chain_id, block_number, log_index) do nothing
		returning block_number, log_index, slot, escrow, type, told),
	queued as (
		insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type)
		select @chain, block_number, log_index, slot, escrow, (select name from event_types t where t.id = type) from new
			where told
		returning block_number, log_index, seq)
	select block_number, log_index, seq from queued
	union all
	select block_number, log_index, null from new where not told`

// columns are events as arrays, a column each: one statement stores them all.
type columns struct {
	hashes, txs, escrows, emitters [][]byte
	args                           []string
	slots, types, occurrences      []int16
	blocks, times                  []int64
	indexes                        []int32
	told                           []bool
}

func newColumns(n int) *columns {
	bytes := func() [][]byte { return make([][]byte, 0, n) }

	return &columns{
		hashes: bytes(), txs: bytes(), escrows: bytes(), emitters: bytes(), args: make([]string, 0, n),
		slots: make([]int16, 0, n),
		types: make([]int16, 0, n), occurrences: make([]int16, 0, n), blocks: make([]int64, 0, n), times: make([]int64, 0, n),
		indexes: make([]int32, 0, n), told: make([]bool, 0, n),
	}
}

func (c *columns) add(e *contract.Event, known *names, told bool) {
	c.hashes = append(c.hashes, e.BlockHash[:])
	c.txs = append(c.txs, e.TxHash[:])
	c.escrows = append(c.escrows, e.Escrow[:])
	c.emitters = append(c.emitters, emitter(e))
	c.args = append(c.args, string(e.Args))
	c.slots = append(c.slots, partition.Slot(e.Escrow))
	c.types = append(c.types, known.types[e.Name])
	c.occurrences = append(c.occurrences, e.Occurrence)
	c.blocks = append(c.blocks, int64(e.BlockNumber))
	c.times = append(c.times, int64(e.BlockTime))
	c.indexes = append(c.indexes, int32(e.LogIndex))
	c.told = append(c.told, told)
}

func (c *columns) named(chainID int64, writer int32) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"chain": chainID, "writer": writer, "blocks": c.blocks, "times": c.times, "indexes": c.indexes, "types": c.types,
		"slots":       c.slots,
		"occurrences": c.occurrences, "told": c.told, "hashes": c.hashes, "txs": c.txs, "escrows": c.escrows,
		"emitters": c.emitters, "args": c.args,
	}
}

// announce puts the EscrowDeployed of escrows that are admitted into the outbox, unless it went there before.
func (l *Ledger) announce(ctx context.Context, tx pgx.Tx, late []registry.Late, r *Result) error {
	if !l.cfg.Publishes(contract.Deployed) {
		return nil
	}

	var blocks []int64
	var indexes []int32
	for _, e := range late {
		if !e.Announced {
			blocks, indexes = append(blocks, e.Block), append(indexes, e.LogIndex)
		}
	}

	if len(blocks) == 0 {
		return nil
	}

	rows, _ := tx.Query(ctx, announced, l.cfg.ChainID, blocks, indexes)
	events, err := pgx.CollectRows(rows, ScanEvent)
	if err != nil {
		return fmt.Errorf("announce %d escrows: %w", len(blocks), err)
	}

	if len(events) != len(blocks) {
		return fmt.Errorf("announce %d escrows: %d of their %s events are stored: the registry and processed_events disagree; run `escrow-relayer audit`",
			len(blocks), len(events), contract.Deployed)
	}

	sortEvents(events)

	return l.enqueue(ctx, tx, events, func(*contract.Event) bool { return true }, r)
}

const announced = `
	select ` + scanned + `
	from unnest($2::bigint[], $3::integer[]) as t(block, index)
	join events p on p.chain_id = $1 and p.block_number = t.block and p.log_index = t.index`

// scanned are the columns that ScanEvent reads, of events or of stored_events as p.
const scanned = `(select name from event_types t
	where t.id = p.type), p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash, p.tx_hash, p.escrow,
	coalesce(p.emitter, p.escrow), p.args`

// ScanEvent reads a row of scanned.
func ScanEvent(row pgx.CollectableRow) (e contract.Event, err error) {
	var hash, tx, escrow, emitter []byte
	if err := row.Scan(&e.Name, &e.BlockNumber, &e.LogIndex, &e.Occurrence, &e.BlockTime, &hash, &tx, &escrow, &emitter,
		(*[]byte)(&e.Args)); err != nil {
		return e, err
	}

	e.BlockHash, e.TxHash = common.BytesToHash(hash), common.BytesToHash(tx)
	e.Escrow, e.Emitter = common.BytesToAddress(escrow), common.BytesToAddress(emitter)

	return e, nil
}
