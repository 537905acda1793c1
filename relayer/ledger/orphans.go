package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// The life of the events that a rollback removes.
//
//	            reappears, and its escrow's events before it are unchanged
//	orphaned ─────────────────────────────────────────────────────────► canonical again:
//	   │                                                                     the same id, published once
//	   │ another event of its escrow is stored first, or its time is over
//	   ▼
//	 lost ──► retracted: once the event's rows have left the outbox, a retraction is queued
//
// An event that was told is sent in any case: its waiting row is published in its place, and its retraction is queued
// afterwards; one of the log gets a row, unless it is known to be sent. So the result is the same whether or not a
// consumer has already received the event.
//
// An escrow's events return one by one, in the order in which they were published, while the new
// branch repeats them. From the first difference on the rest is lost, and the new branch's events
// are published as new ones. So what consumers have received, minus what was retracted, is, per
// escrow, the chain's events in the chain's order.
//
// An event id stands for one content only. A second content of {tx_hash}:{log_index}, or one that
// returns after it was lost, gets the next Occurrence, counted over the rows of that id in
// orphaned_events.

// State of a row of orphaned_events.
const (
	orphaned  int16 = 1
	lost      int16 = 2
	retracted int16 = 3
)

// keepOrphans continues after gone, the events that a statement deletes. Those that were told
// become orphans in the given state, and their outbox rows become rows of the orphans. Those of the log that are not
// known to be sent get rows: each is older than the rows of its escrow, so they go ahead of them. Requests end with
// their event.
const keepOrphans = `
	kept as (
		insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
		                             block_hash, tx_hash, escrow, emitter, args)
		select chain_id, block_number, block_time, @retract_after::bigint, processed_at, log_index, writer, type, slot, occurrence, @state::smallint,
		       block_hash, tx_hash, escrow, emitter, args
		from gone g where g.told
		order by block_number, log_index
		returning id, block_number, log_index),
	moved as (
		update outbox o set orphan = k.id from kept k
		where o.chain_id = @chain and o.orphan is null and o.block_number = k.block_number and o.log_index = k.log_index),
	ahead as (
		insert into outbox (chain_id, seq, token, block_number, log_index, orphan, slot, escrow, event_type)
		select @chain, (select coalesce(min(seq), 1099511627776) from outbox where chain_id = @chain)
		       - row_number() over (order by g.block_number desc, (g.type <> 1) desc, g.log_index desc),
		       @token, g.block_number, g.log_index, k.id, g.slot, g.escrow, (select name from event_types t where t.id = g.type)
		from gone g join kept k on k.block_number = g.block_number and k.log_index = g.log_index
		join slot_ownership s on s.chain_id = @chain and s.slot = g.slot
		where g.told and not g.apart and (g.block_number, g.log_index) > (s.sent_block, s.sent_index)),
	unasked as (
		delete from requests r using gone g
		where r.chain_id = @chain and r.block_number = g.block_number and r.log_index = g.log_index)`

// orphan is an event that a rollback removed.
type orphan struct {
	id    int64
	event contract.Event
}

// revival is an orphan that has reappeared.
type revival struct {
	orphan int64
	event  contract.Event // with its new block
}

// reappear compares events, in the order of the chain, with the orphans. It returns the new ones,
// with their Occurrence, and makes those that have reappeared canonical again. An outbox row that
// still waits for one of these keeps its place: what was published before it reappeared before it.
func reappear(ctx context.Context, t *transaction,
	events []contract.Event) (fresh []contract.Event, revived []revival, err error) {
	fresh, err = notStored(ctx, t, events)
	if err != nil {
		return nil, nil, err
	}

	var lostIDs []int64
	fresh, revived, lostIDs, err = match(ctx, t, fresh)
	if err != nil {
		return nil, nil, err
	}

	if err := revive(ctx, t, revived); err != nil {
		return nil, nil, err
	}

	if len(lostIDs) > 0 {
		if _, err := t.Exec(ctx, `update orphaned_events set state = 2 where id = any($1)`, lostIDs); err != nil {
			return nil, nil, fmt.Errorf("mark %d orphans as lost: %w", len(lostIDs), err)
		}
	}

	return fresh, revived, giveIDs(ctx, t, fresh)
}

// match separates what has reappeared from what is new, and returns the ids of the orphans that are
// lost thereby.
func match(ctx context.Context, t *transaction, events []contract.Event) (fresh []contract.Event,
	revived []revival, lostIDs []int64, err error) {
	rows, _ := t.Query(ctx, openOrphans, t.cfg.ChainID, column.Of(events, escrowOf))
	all, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("look for orphans that may reappear: %w", err)
	}

	if len(all) == 0 {
		return events, nil, nil, nil
	}

	slices.SortFunc(all, func(a, b orphan) int {
		// An escrow's deployment was published first, whatever its transaction had emitted earlier.
		return cmp.Or(isDeployed(&b.event)-isDeployed(&a.event), a.event.Place().Compare(b.event.Place()))
	})
	open := map[common.Address][]orphan{}
	for _, o := range all {
		open[o.event.Escrow] = append(open[o.event.Escrow], o)
	}

	for _, e := range events {
		waiting := open[e.Escrow]
		switch {
		case len(waiting) == 0 || !t.cfg.Publishes(e.Name):
			// It is never published, so it leaves what consumers know unchanged.
			fresh = append(fresh, e)
		case waiting[0].event.Same(&e):
			e.Occurrence = waiting[0].event.Occurrence
			revived = append(revived, revival{waiting[0].id, e})
			open[e.Escrow] = waiting[1:]
		default:
			lostIDs = append(lostIDs, column.Of(waiting, func(o *orphan) int64 { return o.id })...)
			delete(open, e.Escrow)
			fresh = append(fresh, e)
		}
	}

	return fresh, revived, lostIDs, nil
}

// openOrphans locks what it returns: a concurrent transaction has settled an orphan, or skips it.
const openOrphans = `
	select p.id, ` + eventColumns + `
	from orphaned_events p where p.chain_id = $1 and p.state = 1 and p.escrow = any($2)
	order by p.id for update of p`

// giveIDs sets the Occurrence of new events: the first unused one.
func giveIDs(ctx context.Context, t *transaction, events []contract.Event) error {
	rows, _ := t.Query(ctx, orphansOf, t.cfg.ChainID, column.Of(events, txOf))
	all, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return fmt.Errorf("look for orphans of %d transactions: %w", len(events), err)
	}

	used := map[logID][]contract.Event{}
	for _, o := range all {
		id := logIDOf(&o)
		used[id] = append(used[id], o)
	}

	for i := range events {
		e := &events[i]
		for _, o := range used[logIDOf(e)] {
			e.Occurrence = max(e.Occurrence, o.Occurrence+1)
		}
	}

	return nil
}

const orphansOf = `
	select ` + eventColumns + `
	from orphaned_events p where p.chain_id = $1 and p.tx_hash = any($2)`

func isDeployed(e *contract.Event) int {
	if e.Name == contract.Deployed {
		return 1
	}

	return 0
}

func scanOrphan(row pgx.CollectableRow) (o orphan, err error) {
	o.event, err = scanEvent(rowWithPrefix{row, []any{&o.id}})
	return o, err
}

// rowWithPrefix scans the first columns of a row into separate variables.
type rowWithPrefix struct {
	pgx.CollectableRow
	first []any
}

func (r rowWithPrefix) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(r.first, dest...)...)
}

// revive makes reappeared events canonical again.
func revive(ctx context.Context, t *transaction, revived []revival) error {
	if len(revived) == 0 {
		return nil
	}

	_, err := t.Exec(ctx, reviveEvents,
		column.Of(revived, func(r *revival) int64 { return r.orphan }),
		column.Of(revived, func(r *revival) int64 { return blockOf(&r.event) }),
		column.Of(revived, func(r *revival) int64 { return timeOf(&r.event) }),
		column.Of(revived, func(r *revival) []byte { return hashOf(&r.event) }))
	if err != nil {
		return fmt.Errorf("revive %d events after a reorganisation: %w", len(revived), err)
	}

	return nil
}

const reviveEvents = `
	with back as (
		delete from orphaned_events o using unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) as t(id, block, time, hash)
		where o.id = t.id
		returning o.*, t.block as new_block, t.time as new_time, t.hash as new_hash),
	put as (
		insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, told, apart, block_hash, tx_hash, escrow, emitter, args)
		select chain_id, new_block, new_time, log_index, writer, type, slot, occurrence, true, true, new_hash, tx_hash, escrow, emitter, args from back)
	update outbox b set orphan = null, block_number = k.new_block from back k where b.orphan = k.id`

// retract queues the retractions of lost orphans in this instance's slots: those marked lost, and
// those past their time, because the slot's cursor and the factory's have passed the highest
// block seen before the rollback again, and their escrow is caught up: what the owner did not see may
// be what the leader did.
func retract(ctx context.Context, t *transaction, next int64) error {
	rows, _ := t.Query(ctx, retractOrphans, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "me": t.cfg.InstanceID,
		"token": t.token, "next": next})
	retracted, err := collectRows(t, rows)
	if err != nil {
		return fmt.Errorf("retract orphans: %w", err)
	}

	t.result.Retracted += retracted

	return nil
}

// retractOrphans waits for orphans with a row in the outbox: the event is published before its
// retraction. Escrows with a lost deployment leave the registry. An orphan that is just
// reappearing is locked and skipped, so a frozen process delays no other.
const retractOrphans = `
	with due as (
		select x.id, x.type, x.escrow, x.block_number, x.log_index
		from orphaned_events x join slot_ownership s on s.chain_id = x.chain_id and s.slot = x.slot and s.owner = @me
		where x.chain_id = @chain
		  and (x.state = 2
		       or x.state = 1 and x.retract_after < @next and x.retract_after < (select next_block from leadership
			where chain_id = @chain)
		          and not exists (select from late_escrows l where l.chain_id = x.chain_id and l.address = x.escrow))
		  and not exists (select from outbox o where o.orphan = x.id)
		for update of x skip locked),
	unregistered as (
		delete from escrows r using due d
		where d.type = 1 and r.chain_id = @chain and r.address = d.escrow and r.status = 4
		  and r.discovered_block_number = d.block_number and r.log_index = d.log_index),
	settled as (
		update orphaned_events x set state = 3 from due d where x.id = d.id
		returning x.*),
	queued as (
		insert into outbox (chain_id, token, block_number, log_index, orphan, slot, kind, escrow, event_type)
		select chain_id, @token, block_number, log_index, id, slot, 1, escrow, (select name from event_types t where t.id = type)
		from settled order by block_number, log_index
		returning seq, slot, kind, orphan)
	select q.seq, q.slot, q.kind, ` + eventColumns + `
	from queued q join settled p on p.id = q.orphan order by q.seq`

// collectRows adds the outbox rows that a statement has written to the result, and counts them.
func collectRows(t *transaction, rows pgx.Rows) (int, error) {
	added, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p outbox.Pending, err error) {
		p.Token = t.token
		p.Event, err = scanEvent(rowWithPrefix{row, []any{&p.Seq, &p.Slot, &p.Kind}})

		return p, err
	})
	t.result.Pending = append(t.result.Pending, added...)

	return len(added), err
}
