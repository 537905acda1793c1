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
	             (select min(last_monitored_block) from escrow_registry where chain_id = $1 and not caught_up and status <> 'orphaned')),
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
	select event_id, event_type, contract_address, escrow, block_number, log_index, block_hash, block_timestamp, args
	from processed_events where chain_id = $1 and block_number between $2 and $3 and state = 'canonical'
	order by block_number, log_index`

// Registered returns which of some addresses are escrows of ours.
func (l *Ledger) Registered(ctx context.Context, addresses []common.Address) (map[common.Address]bool, error) {
	text := make([]string, len(addresses))
	for i, a := range addresses {
		text[i] = registry.Text(a)
	}
	rows, _ := l.cfg.DB.Query(ctx, `select address from escrow_registry where chain_id = $1 and address = any($2) and status <> 'orphaned'`, l.cfg.ChainID, text)
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look up %d addresses: %w", len(addresses), err)
	}
	set := make(map[common.Address]bool, len(known))
	for _, a := range known {
		set[common.HexToAddress(a)] = true
	}
	return set, nil
}

// Repair stores events that the first reading missed, under the leader's epoch, and moves the verified block. ErrMoved when there was a rollback since
// Verifiable: what was read is void. A missed deployment goes the way
// of every discovery; a missed event of an escrow gets its outbox row here, out of turn, and the owner of the slot is told.
func (l *Ledger) Repair(ctx context.Context, epoch int64, v Verifiable, verified int64, missing []contract.Event) (r Result, err error) {
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		tag, err := tx.Exec(ctx, `update leadership set verified_block = $4 where chain_id = $1 and instance_id = $2 and epoch = $3 and verified_block < $4 and generation = $5`,
			l.cfg.ChainID, l.cfg.InstanceID, epoch, verified, v.generation)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrMoved
		}
		if len(missing) == 0 {
			return nil
		}
		if err := l.find(ctx, tx, MissingEvent, verified, len(missing)); err != nil {
			return err
		}
		var deployed, others []contract.Event
		var found []registry.Discovery
		for _, e := range missing {
			if e.Name != Deployed {
				others = append(others, e)
				continue
			}
			deployed = append(deployed, e)
			found = append(found, Discovery(&e))
		}
		for _, part := range []struct {
			events []contract.Event
			outbox bool
		}{{deployed, false}, {others, true}} {
			fresh, err := l.store(ctx, tx, part.events, part.outbox, &r)
			if err != nil {
				return err
			}
			// What comes after them may have been folded already: a record is a fold in the order of the chain.
			if _, err := l.refold(ctx, tx, escrowsOf(fresh)); err != nil {
				return err
			}
		}
		if err := l.record(ctx, tx, found); err != nil {
			return err
		}
		for _, channel := range []string{registry.Channel, OutboxChannel} {
			if _, err := tx.Exec(ctx, `select pg_notify($1, $2::bigint::text)`, channel, l.cfg.ChainID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Result{}, fmt.Errorf("repair %d events up to block %d: %w", len(missing), verified, err)
	}
	return r, nil
}

// escrowsOf returns each escrow that events concern, once.
func escrowsOf(events []contract.Event) (escrows []string) {
	for i := range events {
		if e := registry.Text(events[i].Escrow); !slices.Contains(escrows, e) {
			escrows = append(escrows, e)
		}
	}
	return escrows
}

// Discovery is what the registry keeps of an EscrowDeployed.
func Discovery(e *contract.Event) registry.Discovery {
	payer, payee, amount := parties(e)
	return registry.Discovery{
		Address: e.Escrow, Slot: partition.Slot(e.Escrow), Block: int64(e.BlockNumber), EventID: e.ID(), Payer: payer, Payee: payee, Amount: amount,
	}
}

// record registers what was discovered. An escrow that replaces one which a reorganisation took back before anybody had heard of it
// settles that one: there is nothing to retract.
func (l *Ledger) record(ctx context.Context, tx pgx.Tx, found []registry.Discovery) error {
	if len(found) == 0 {
		return nil
	}
	addresses, ids := make([]string, len(found)), make([]string, len(found))
	for i, d := range found {
		addresses[i], ids[i] = registry.Text(d.Address), d.EventID
	}
	if _, err := tx.Exec(ctx, settleUnsaid, l.cfg.ChainID, addresses, ids); err != nil {
		return fmt.Errorf("settle what %d escrows replace: %w", len(found), err)
	}
	return registry.Record(ctx, tx, l.cfg.ChainID, found)
}

const settleUnsaid = `
	update processed_events p set state = 'retracted'
	from unnest($2::text[], $3::text[]) as t(address, id)
	join escrow_registry r on r.chain_id = $1 and r.address = t.address and r.status = 'orphaned' and not r.announced and r.event_id <> t.id
	where p.chain_id = $1 and p.event_id = r.event_id and p.state = 'orphaned'`
