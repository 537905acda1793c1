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
)

// What becomes of the events that a rollback takes back.
//
//	            reappears, and nothing of its escrow has changed before it
//	orphaned ──────────────────────────────────────────────────────────► canonical again:
//	   │                                                                     the same id, not published again
//	   │ anything else of its escrow is stored first, or its time is over
//	   ▼
//	 lost ──► retracted: a retraction is queued, which is sent after its event was acknowledged
//	   └────► dropped:   its row was in the outbox and had certainly not been sent; the row is deleted
//
// An escrow's events come back one by one, in the order in which they had been published, as long
// as the new branch repeats them. From the first difference on the rest is lost, and what the new
// branch has is published anew. So what consumers have received and not been asked to take back is,
// per escrow, the chain's events in the chain's order.
//
// An event id is used for one content only. The content that comes second to {tx_hash}:{log_index},
// or that comes back after it was retracted, gets the next Occurrence, counted over all that
// orphaned_events has of the two. A dropped event was never sent: the same content may have its id
// again.

// State of a row of orphaned_events.
const (
	orphaned  int16 = 1
	lost      int16 = 2
	retracted int16 = 3
	dropped   int16 = 4
)

// keepOrphans goes on after gone, the events that a statement deletes. Those that somebody was told
// of become orphans in a state, and the outbox rows that wait for them become rows of the orphans.
const keepOrphans = `
	kept as (
		insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
		                             block_hash, tx_hash, escrow, emitter, args)
		select chain_id, block_number, block_time, @retract_after::bigint, processed_at, log_index, writer, type, slot, occurrence, @state::smallint,
		       block_hash, tx_hash, escrow, emitter, args
		from gone g
		where g.told or g.type = 1 and @announces and not exists (
			select from late_escrows l where l.chain_id = g.chain_id and l.address = g.escrow and not l.announced)
		order by block_number, log_index
		returning id, block_number, log_index),
	moved as (
		update outbox o set orphan = k.id from kept k
		where o.chain_id = @chain and o.orphan is null and o.block_number = k.block_number and o.log_index = k.log_index)`

// orphan is an event that a rollback took back.
type orphan struct {
	id    int64
	state int16
	event contract.Event
}

// revival is an orphan that has reappeared.
type revival struct {
	orphan int64
	event  contract.Event // with its new block
}

// reappear compares events, which are in the order of the chain, with the orphans. It returns those
// that are neither stored nor have reappeared, with their Occurrence, and puts those that have
// reappeared back among the canonical events. An outbox row that still waits for one of these keeps
// its place: what was published before it came back before it. settle is that of storing.
func reappear(ctx context.Context, t *transaction, events []contract.Event,
	settle func() error) (fresh []contract.Event, revived []revival, err error) {
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
			return nil, nil, fmt.Errorf("give up %d events after a reorganisation: %w", len(lostIDs), err)
		}

		if settle != nil { // before the ids are given: the id of a dropped event is free
			if err := settle(); err != nil {
				return nil, nil, err
			}
		}
	}

	return fresh, revived, giveIDs(ctx, t, fresh)
}

// match tells what has reappeared from what is new, and returns the ids of the orphans that are
// lost by it.
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
		// an escrow's deployment was published first, whatever its transaction had emitted before
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
			// nobody hears of it, so it changes nothing of what they have heard
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

// openOrphans locks what it returns: whoever settles one at the same moment has done it, or passes it over.
const openOrphans = `
	select p.id, p.state, ` + eventColumns + `
	from orphaned_events p where p.chain_id = $1 and p.state = 1 and p.escrow = any($2)
	order by p.id for update of p`

// giveIDs sets the Occurrence of new events: the first that no other content has used.
func giveIDs(ctx context.Context, t *transaction, events []contract.Event) error {
	rows, _ := t.Query(ctx, orphansOf, t.cfg.ChainID, column.Of(events, txOf))
	all, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return fmt.Errorf("look for orphans of %d transactions: %w", len(events), err)
	}

	used := map[logID][]orphan{}
	for _, o := range all {
		id := logIDOf(&o.event)
		used[id] = append(used[id], o)
	}

	var reused []int64
	for i := range events {
		e := &events[i]
		for _, o := range used[logIDOf(e)] {
			if o.state == dropped && o.event.Same(e) {
				e.Occurrence, reused = o.event.Occurrence, append(reused, o.id)
				break
			}

			e.Occurrence = max(e.Occurrence, o.event.Occurrence+1)
		}
	}

	if len(reused) == 0 {
		return nil
	}

	if _, err := t.Exec(ctx, `delete from orphaned_events where id = any($1)`, reused); err != nil {
		return fmt.Errorf("take over the ids of %d dropped events: %w", len(reused), err)
	}

	return nil
}

const orphansOf = `
	select p.id, p.state, ` + eventColumns + `
	from orphaned_events p where p.chain_id = $1 and p.tx_hash = any($2)`

func isDeployed(e *contract.Event) int {
	if e.Name == contract.Deployed {
		return 1
	}

	return 0
}

func scanOrphan(row pgx.CollectableRow) (o orphan, err error) {
	o.event, err = scanEvent(rowWithPrefix{row, []any{&o.id, &o.state}})
	return o, err
}

// rowWithPrefix is a row whose first columns are scanned into something else.
type rowWithPrefix struct {
	pgx.CollectableRow
	first []any
}

func (r rowWithPrefix) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(r.first, dest...)...)
}

// revive puts back what has reappeared.
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
		insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, told, block_hash, tx_hash, escrow, emitter, args)
		select chain_id, new_block, new_time, log_index, writer, type, slot, occurrence, type <> 1, new_hash, tx_hash, escrow, emitter, args from back)
	update outbox b set orphan = null, block_number = k.new_block from back k where b.orphan = k.id`

// retract settles the orphans of this instance's slots that are lost: those that were found to be,
// and those whose time is over, since the slot's cursor and the factory's have passed again the
// block that had been seen last, and their escrow does not wait to be caught up.
func retract(ctx context.Context, t *transaction, next int64) error {
	var retracted, dropped int
	err := t.QueryRow(ctx, retractOrphans, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "me": t.cfg.InstanceID,
		"next": next}).Scan(&retracted, &dropped)
	if err != nil {
		return fmt.Errorf("retract orphans: %w", err)
	}

	t.result.Retracted += retracted
	t.result.Dropped += dropped

	return nil
}

// retractOrphans drops those that were certainly never sent: their row is still there and not in
// doubt (see outbox.Box.Doubt). Of the others a row that is there stays, since it may have been
// sent and may not, and a retraction is queued, which waits for it. Escrows whose deployment is
// lost leave the registry. An orphan that reappears at this moment is locked and passed over, so
// that a process that is frozen there holds up nobody.
const retractOrphans = `
	with due as (
		select x.id, x.type, x.escrow, x.block_number, x.log_index, s.doubt_seq
		from orphaned_events x join slot_ownership s on s.chain_id = x.chain_id and s.slot = x.slot and s.owner = @me
		where x.chain_id = @chain
		  and (x.state = 2
		       or x.state = 1 and x.retract_after < @next and x.retract_after < (select next_block from leadership
			where chain_id = @chain)
		          and not exists (select from late_escrows l where l.chain_id = x.chain_id and l.address = x.escrow))
		for update of x skip locked),
	unsent as (
		delete from outbox o using due d
		where o.orphan = d.id and o.kind = 0 and o.seq > d.doubt_seq
		returning o.orphan),
	replays as (
		delete from outbox o using due d where o.orphan = d.id and o.kind = 2),
	unregistered as (
		delete from escrows r using due d
		where d.type = 1 and r.chain_id = @chain and r.address = d.escrow and r.status = 4
		  and r.discovered_block_number = d.block_number and r.log_index = d.log_index),
	settled as (
		update orphaned_events x set state = case when x.id in (select orphan from unsent) then 4 else 3 end
		from due d where x.id = d.id
		returning x.*),
	retracted as (
		insert into outbox (chain_id, block_number, log_index, orphan, slot, kind, escrow, event_type)
		select chain_id, block_number, log_index, id, slot, 1, escrow, (select name from event_types t where t.id = type)
		from settled where state = 3 order by block_number, log_index)
	select count(*) filter (where state = 3), count(*) filter (where state = 4) from settled`
