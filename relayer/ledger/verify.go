package ledger

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Verifiable is the next range that may be read a second time.
type Verifiable struct {
	From int64 // next block to verify
	To   int64 // newest block that every cursor and every late escrow has passed

	generation int64
}

// Verifiable says how far the chain is stored as a whole.
func (l *Ledger) Verifiable(ctx context.Context) (v Verifiable, err error) {
	err = l.cfg.DB.QueryRow(ctx, verifiable, l.cfg.ChainID).Scan(&v.From, &v.To, &v.generation)
	if err != nil {
		return v, fmt.Errorf("read how far the chain is stored: %w", err)
	}

	return v, nil
}

const verifiable = `
	select l.verified_block + 1,
	       least(l.next_block - 1,
	             (select min(c.next_block) - 1 from cursors c where c.chain_id = $1 and exists (
	                  select from slot_ownership s where s.chain_id = $1 and s.owner = c.instance_id)),
	             (select min(next_block) - 1 from slot_ownership where chain_id = $1 and owner is null),
	             (select min(monitored) from late_escrows where chain_id = $1)),
	       l.generation
	from leadership l where l.chain_id = $1`

// Stored returns the canonical events of a range of blocks, in order.
func (l *Ledger) Stored(ctx context.Context, from, to int64) ([]contract.Event, error) {
	rows, _ := l.cfg.DB.Query(ctx, storedEvents, l.cfg.ChainID, from, to)
	events, err := pgx.CollectRows(rows, ScanEvent)
	if err != nil {
		return nil, fmt.Errorf("read the events of blocks %d to %d: %w", from, to, err)
	}

	return events, nil
}

const storedEvents = `
	select ` + scanned + ` from events p
	where p.chain_id = $1 and p.block_number between $2 and $3
	order by p.block_number, p.log_index`

// Emitters returns the contracts of ours that may have emitted something in a range of blocks: the
// escrows that were deployed by its end and had not ended before it, and those that events in it are
// stored of; at most so many of them.
func (l *Ledger) Emitters(ctx context.Context, from, to int64, most int) ([]common.Address, error) {
	rows, _ := l.cfg.DB.Query(ctx, emitters, l.cfg.ChainID, from, to, most)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a common.Address, err error) {
		var b []byte
		err = row.Scan(&b)
		return common.BytesToAddress(b), err
	})
	if err != nil {
		return nil, fmt.Errorf("read which escrows may have emitted events in blocks %d to %d: %w", from, to, err)
	}

	return list, nil
}

const emitters = `
	select escrow from events where chain_id = $1 and block_number between $2 and $3
	union
	select address from escrows
	where chain_id = $1 and status <> 4 and discovered_block_number <= $3 and (ended_block is null or ended_block >= $2)
	limit $4`

// Registered returns which of some addresses are escrows of ours.
func (l *Ledger) Registered(ctx context.Context, addresses []common.Address) (map[common.Address]bool, error) {
	return l.addresses(ctx, `select address from escrows where chain_id = $1 and address = any($2) and status <> 4`,
		addresses)
}

// Pruned returns which of some addresses are escrows that have ended and whose events RETENTION has
// removed: all of them, or none.
func (l *Ledger) Pruned(ctx context.Context, addresses []common.Address) (map[common.Address]bool, error) {
	return l.addresses(ctx, `
		select address from escrows e where chain_id = $1 and address = any($2) and ended_block is not null
		and not exists (select from events p where p.chain_id = e.chain_id and p.escrow = e.address)`, addresses)
}

func (l *Ledger) addresses(ctx context.Context, query string,
	addresses []common.Address) (map[common.Address]bool, error) {
	if len(addresses) == 0 {
		return nil, nil
	}

	keys := make([][]byte, len(addresses))
	for i := range addresses {
		keys[i] = addresses[i][:]
	}

	rows, _ := l.cfg.DB.Query(ctx, query, l.cfg.ChainID, keys)
	known, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("look up %d addresses: %w", len(addresses), err)
	}

	set := make(map[common.Address]bool, len(known))
	for _, a := range known {
		set[common.BytesToAddress(a)] = true
	}

	return set, nil
}

// Repair makes the stored events of a verified range those of the chain, under the leader's epoch,
// and moves the verified block. ErrMoved when there was a rollback since Verifiable: what was read
// is void.
//
// missing are events that the first reading did not bring. They are published, each deployment
// before the other events of its escrow: the outbox rows are written here, out of turn, and the
// owners of the slots are told. wrong are stored events that the chain has otherwise; they are
// retracted by the owners of their slots, and what the chain has in their place is among the
// missing.
func (l *Ledger) Repair(ctx context.Context, epoch int64, v Verifiable, verified int64, missing,
	wrong []contract.Event) (r Result, err error) {
	return l.mend(ctx, moveVerified, epoch, v, verified, missing, wrong)
}

// Supply is Repair of events that are missing behind the verified block, which stays where it is:
// they are on the chain, and there may be more.
func (l *Ledger) Supply(ctx context.Context, epoch int64, v Verifiable, verified int64,
	missing []contract.Event) (Result, error) {
	return l.mend(ctx, keepVerified, epoch, v, verified, missing, nil)
}

// mend does what Repair and Supply say, if the watermark is where the statement wants it.
func (l *Ledger) mend(ctx context.Context, watermark string, epoch int64, v Verifiable, verified int64, missing,
	wrong []contract.Event) (r Result, err error) {
	if _, err := l.names(ctx); err != nil {
		return Result{}, err
	}

	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		tag, err := tx.Exec(ctx, watermark, l.cfg.ChainID, l.cfg.InstanceID, epoch, verified, v.generation)
		if err != nil {
			return err
		}

		if tag.RowsAffected() == 0 {
			return ErrMoved
		}

		if len(missing)+len(wrong) == 0 {
			return nil
		}

		if len(missing) > 0 {
			if err := l.find(ctx, tx, MissingEvent, verified, len(missing)); err != nil {
				return err
			}
		}

		return l.repair(ctx, tx, missing, wrong, &r)
	})
	if err != nil {
		return Result{}, fmt.Errorf("repair %d missing and %d wrong events up to block %d: %w", len(missing),
			len(wrong), verified, err)
	}

	return r, nil
}

const moveVerified = `
	update leadership set verified_block = $4
	where chain_id = $1 and instance_id = $2 and epoch = $3 and verified_block < $4 and generation = $5`

const keepVerified = `
	update leadership set verified_block = $4
	where chain_id = $1 and instance_id = $2 and epoch = $3 and verified_block = $4 and generation = $5`

func (l *Ledger) repair(ctx context.Context, tx pgx.Tx, missing, wrong []contract.Event, r *Result) error {
	if err := l.giveUp(ctx, tx, wrong); err != nil {
		return err
	}

	var deployed, others []contract.Event
	for _, e := range missing {
		if e.Name == contract.Deployed {
			deployed = append(deployed, e)
		} else {
			others = append(others, e)
		}
	}

	how := storing{queue: true, orphans: true}
	registered, err := l.store(ctx, tx, deployed, how, r)
	if err != nil {
		return err
	}

	found := discoveries(registered, nil)
	for i := range found {
		found[i].Announced = true
	}

	if err := registry.Record(ctx, tx, l.cfg.ChainID, found); err != nil {
		return err
	}

	fresh, err := l.store(ctx, tx, others, how, r)
	if err != nil {
		return err
	}

	// What comes after them may have been folded already: a record is a fold in the order of the chain.
	if _, err := l.refold(ctx, tx, escrowsOf(registered, fresh, wrong)); err != nil {
		return err
	}

	return l.notify(ctx, tx, registry.Channel, OutboxChannel)
}

// giveUp takes stored events back that the chain does not have so.
func (l *Ledger) giveUp(ctx context.Context, tx pgx.Tx, wrong []contract.Event) error {
	if len(wrong) == 0 {
		return nil
	}

	blocks, indexes := make([]int64, len(wrong)), make([]int32, len(wrong))
	for i := range wrong {
		blocks[i], indexes[i] = int64(wrong[i].BlockNumber), int32(wrong[i].LogIndex)
	}

	if _, err := tx.Exec(ctx, giveUpEvents, l.cfg.ChainID, blocks, indexes,
		l.cfg.Publishes(contract.Deployed)); err != nil {
		return fmt.Errorf("take back %d wrong events: %w", len(wrong), err)
	}

	return nil
}

// giveUpEvents is orphanEvents for single events, which are lost at once.
const giveUpEvents = `
	with gone as (
		delete from events e using unnest($2::bigint[], $3::integer[]) as t(block, index)
		where e.chain_id = $1 and e.block_number = t.block and e.log_index = t.index
		returning e.*),
	kept as (
		insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
		                             block_hash, tx_hash, escrow, emitter, args)
		select chain_id, block_number, block_time, 0, processed_at, log_index, writer, type, slot, occurrence, 2, block_hash, tx_hash, escrow, emitter, args
		from gone g
		where g.told or g.type = 1 and $4 and not exists (
			select from late_escrows l where l.chain_id = g.chain_id and l.address = g.escrow and not l.announced)
		order by block_number, log_index
		returning id, block_number, log_index),
	moved as (
		update outbox o set orphan = k.id from kept k
		where o.chain_id = $1 and o.orphan is null and o.block_number = k.block_number and o.log_index = k.log_index),
	late as (
		delete from late_escrows l using gone g where g.type = 1 and l.chain_id = $1 and l.address = g.escrow)
	update escrows r set status = 4, ended_block = null, updated_at = now()
	from gone g where g.type = 1 and r.chain_id = $1 and r.address = g.escrow`

// escrowsOf returns each escrow that events concern, once.
func escrowsOf(lists ...[]contract.Event) (escrows [][]byte) {
	seen := map[common.Address]bool{}
	for _, events := range lists {
		for i := range events {
			if e := &events[i]; !seen[e.Escrow] {
				seen[e.Escrow] = true
				escrows = append(escrows, e.Escrow[:])
			}
		}
	}

	return escrows
}
