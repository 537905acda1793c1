package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// store inserts events and, for those which are new and published, their outbox rows, in order. It returns the events that
// changed something: the new ones, and those which a reorganisation had taken back and that have reappeared.
func (l *Ledger) store(ctx context.Context, tx pgx.Tx, events []contract.Event, queue bool, r *Result) (fresh []contract.Event, err error) {
	if len(events) == 0 {
		return nil, nil
	}
	events = distinct(events, r)
	c, published := newColumns(len(events)), []string{}
	for i := range events {
		e := &events[i]
		queued := queue && l.cfg.Publishes(e.Name)
		c.add(e, queued)
		if queued && !slices.Contains(published, e.Name) {
			published = append(published, e.Name)
		}
	}
	args := c.named(l.cfg.ChainID, l.cfg.InstanceID)
	args["queued"] = published
	rows, _ := tx.Query(ctx, storeEvents, args)
	stored := make([]bool, len(events))
	var id string
	var seq *int64
	next, last := 0, int64(0)
	_, err = pgx.ForEachRow(rows, []any{&id, &seq}, func() error {
		if seq == nil && last != 0 { // the others begin
			next, last = 0, 0
		}
		for next < len(events) && c.ids[next] != id {
			next++
		}
		if next == len(events) || seq != nil && *seq <= last {
			return fmt.Errorf("event %s came back out of order", id)
		}
		stored[next] = true
		if seq != nil {
			last = *seq
			r.Pending = append(r.Pending, outbox.Pending{Seq: *seq, Slot: c.slots[next], Event: events[next]})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store %d events: %w", len(events), err)
	}
	known := map[string]int{} // not stored, by id
	for i := range events {
		if !stored[i] {
			known[c.ids[i]] = i
		}
	}
	r.New += len(events) - len(known)
	if len(known) == 0 {
		return events, nil
	}
	revived, err := l.revive(ctx, tx, c, known, r)
	if err != nil {
		return nil, err
	}
	fresh = make([]contract.Event, 0, len(events)-len(known)+len(revived))
	for i := range events { // in the order of the chain, new and revived ones alike: the fold goes by it
		if stored[i] || revived[c.ids[i]] {
			fresh = append(fresh, events[i])
		}
	}
	r.Duplicates += len(known) - len(revived)
	r.Revived += len(revived)
	return fresh, nil
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

// storeEvents inserts what is not there yet, and an outbox row for each new event of a type that is to be queued. It returns the new events, first
// the queued ones with the seq of their outbox row, then the others, each in the order of the input: rows that are inserted in order are returned in
// order, and numbered in order. No join: the planner knows nothing of what an array holds, and took merge joins by text, and JIT compilation, for it.
const storeEvents = `
	with new as (
		insert into processed_events (chain_id, event_id, event_type, contract_address, escrow, slot, block_number, log_index,
		                              block_hash, block_timestamp, args, processed_by_instance)
		select @chain, t.*, @me
		from unnest(@ids::text[], @types::text[], @emitters::text[], @escrows::text[], @slots::smallint[], @blocks::bigint[],
		            @indexes::integer[], @hashes::text[], @times::bigint[], @args::json[]) as t
		on conflict (chain_id, event_id) do nothing
		returning event_id, slot, escrow, event_type),
	queued as (
		insert into outbox (chain_id, slot, escrow, event_id, event_type)
		select @chain, slot, escrow, event_id, event_type from new where event_type = any(@queued)
		returning event_id, seq)
	select event_id, seq from queued
	union all
	select event_id, null from new where event_type <> all(@queued)`

// revive turns events that a reorganisation had orphaned or retracted, and that are on the chain again, back into canonical ones.
// An orphan was published and stays published, or its outbox row still waits and takes its place anew: on this branch the order may be another.
// A retracted one is published again.
func (l *Ledger) revive(ctx context.Context, tx pgx.Tx, c *columns, known map[string]int, r *Result) (map[string]bool, error) {
	var k columns
	for i := range c.ids {
		if _, ok := known[c.ids[i]]; ok {
			k.copy(c, i)
		}
	}
	rows, _ := tx.Query(ctx, reviveEvents, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "ids": k.ids, "blocks": k.blocks, "indexes": k.indexes, "hashes": k.hashes, "times": k.times,
		"published": k.published,
	})
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("revive events after a reorganisation: %w", err)
	}
	revived := make(map[string]bool, len(ids))
	for _, id := range ids {
		revived[id] = true
	}
	return revived, nil
}

const reviveEvents = `
	with input as (
		select * from unnest(@ids::text[], @blocks::bigint[], @indexes::integer[], @hashes::text[], @times::bigint[], @published::boolean[])
		with ordinality as t(id, block, log_index, hash, time, published, ord)),
	was as (
		select p.event_id, p.state from processed_events p join input i on p.event_id = i.id
		where p.chain_id = @chain and p.state <> 'canonical' for update of p),
	back as (
		update processed_events p
		set state = 'canonical', retract_after = null, block_number = i.block, log_index = i.log_index, block_hash = i.hash,
		    block_timestamp = i.time, processed_at = now()
		from input i, was w where p.chain_id = @chain and p.event_id = i.id and w.event_id = i.id
		returning p.event_id, p.slot, p.escrow, p.event_type),
	waiting as (
		delete from outbox o using was w, input i
		where o.chain_id = @chain and o.kind = 0 and o.event_id = w.event_id and i.id = w.event_id and w.state = 'orphaned' and i.published
		  and o.escrow in (select escrow from back)
		returning o.event_id),
	queued as (
		insert into outbox (chain_id, slot, escrow, event_id, event_type)
		select @chain, b.slot, b.escrow, b.event_id, b.event_type
		from back b join was w using (event_id) join input i on i.id = b.event_id
		where i.published and (w.state = 'retracted' or b.event_id in (select event_id from waiting)) order by i.ord)
	select event_id from back`

// announce puts the EscrowDeployed of escrows that are admitted into the outbox, unless it went there before.
func (l *Ledger) announce(ctx context.Context, tx pgx.Tx, late []registry.Late, r *Result) error {
	if !l.cfg.Publishes(Deployed) {
		return nil
	}
	var ids []string
	for _, e := range late {
		if !e.Announced {
			ids = append(ids, e.EventID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, _ := tx.Query(ctx, announceEscrows, l.cfg.ChainID, ids)
	pending, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p outbox.Pending, err error) {
		var id, emitter, escrow, hash string
		e := &p.Event
		err = row.Scan(&p.Seq, &p.Slot, &id, &e.Name, &emitter, &escrow, &e.BlockNumber, &e.LogIndex, &hash, &e.BlockTime, &e.Args)
		if err != nil {
			return p, err
		}
		e.Emitter, e.Escrow, e.BlockHash = common.HexToAddress(emitter), common.HexToAddress(escrow), common.HexToHash(hash)
		e.TxHash = common.HexToHash(id[:min(len(id), 66)])
		return p, nil
	})
	if err != nil {
		return fmt.Errorf("announce %d escrows: %w", len(ids), err)
	}
	if len(pending) != len(ids) {
		return fmt.Errorf("announce %d escrows: %d of their %s events are stored: the registry and processed_events disagree; run `escrow-relayer audit`", len(ids), len(pending), Deployed)
	}
	r.Pending = append(r.Pending, pending...)
	return nil
}

const announceEscrows = `
	with found as (
		select p.* from processed_events p join unnest($2::text[]) with ordinality as t(id, ord) on p.event_id = t.id
		where p.chain_id = $1 order by p.block_number, p.log_index),
	queued as (
		insert into outbox (chain_id, slot, escrow, event_id, event_type)
		select chain_id, slot, escrow, event_id, event_type from found order by block_number, log_index
		returning seq, event_id)
	select q.seq, f.slot, f.event_id, f.event_type, f.contract_address, f.escrow, f.block_number, f.log_index, f.block_hash,
	       f.block_timestamp, f.args
	from queued q join found f using (event_id) order by q.seq`

// columns are events as arrays, a column each: one statement stores them all.
type columns struct {
	ids, types, emitters, escrows, hashes, args []string
	slots                                       []int16
	blocks, times                               []int64
	indexes                                     []int32
	published                                   []bool
}

func newColumns(n int) *columns {
	text := func() []string { return make([]string, 0, n) }
	return &columns{
		ids: text(), types: text(), emitters: text(), escrows: text(), hashes: text(), args: text(), slots: make([]int16, 0, n),
		blocks: make([]int64, 0, n), times: make([]int64, 0, n), indexes: make([]int32, 0, n), published: make([]bool, 0, n),
	}
}

func (c *columns) add(e *contract.Event, published bool) {
	c.ids = append(c.ids, e.ID())
	c.types = append(c.types, e.Name)
	c.emitters = append(c.emitters, registry.Text(e.Emitter))
	c.escrows = append(c.escrows, registry.Text(e.Escrow))
	c.hashes = append(c.hashes, e.BlockHash.Hex())
	c.args = append(c.args, string(e.Args))
	c.slots = append(c.slots, partition.Slot(e.Escrow))
	c.blocks = append(c.blocks, int64(e.BlockNumber))
	c.times = append(c.times, int64(e.BlockTime))
	c.indexes = append(c.indexes, int32(e.LogIndex))
	c.published = append(c.published, published)
}

// copy takes what revive needs of row i.
func (c *columns) copy(from *columns, i int) {
	c.ids = append(c.ids, from.ids[i])
	c.hashes = append(c.hashes, from.hashes[i])
	c.blocks = append(c.blocks, from.blocks[i])
	c.times = append(c.times, from.times[i])
	c.indexes = append(c.indexes, from.indexes[i])
	c.published = append(c.published, from.published[i])
}

func (c *columns) named(chainID int64, me string) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"chain": chainID, "me": me, "ids": c.ids, "types": c.types, "emitters": c.emitters, "escrows": c.escrows, "slots": c.slots,
		"blocks": c.blocks, "indexes": c.indexes, "hashes": c.hashes, "times": c.times, "args": c.args,
	}
}
