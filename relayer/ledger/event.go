package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// logID identifies a log of a transaction, in any block.
type logID struct {
	tx    common.Hash
	index uint
}

func logIDOf(e *contract.Event) logID { return logID{e.TxHash, e.LogIndex} }

func sortEvents(events []contract.Event) {
	slices.SortFunc(events, func(a, b contract.Event) int { return a.Place().Compare(b.Place()) })
}

// some are those of the events that are wanted, in their order.
func some(events []contract.Event, wanted func(*contract.Event) bool) (list []contract.Event) {
	for i := range events {
		if e := &events[i]; wanted(e) {
			list = append(list, *e)
		}
	}

	return list
}

// pendingOf is the outbox row of an event.
func pendingOf(e *contract.Event) outbox.Pending {
	return outbox.Pending{Slot: partition.Slot(e.Escrow), Event: *e}
}

// The columns of events that several statements use.

func blockOf(e *contract.Event) int64   { return int64(e.BlockNumber) }
func timeOf(e *contract.Event) int64    { return int64(e.BlockTime) }
func hashOf(e *contract.Event) []byte   { return e.BlockHash[:] }
func txOf(e *contract.Event) []byte     { return e.TxHash[:] }
func escrowOf(e *contract.Event) []byte { return e.Escrow[:] }
func slotOf(e *contract.Event) int16    { return partition.Slot(e.Escrow) }

// emitterOf is null if the escrow emitted the event.
func emitterOf(e *contract.Event) []byte {
	if e.Emitter == e.Escrow {
		return nil
	}

	return e.Emitter[:]
}

// placesOf are the places of events, as two columns.
func placesOf(events []contract.Event) (blocks []int64, indexes []int32) {
	return column.Of(events, blockOf), column.Of(events, func(e *contract.Event) int32 { return int32(e.LogIndex) })
}

// eventColumns are the columns that scanEvent reads, of events or of orphaned_events as p.
const eventColumns = `(select name from event_types t
	where t.id = p.type), p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash, p.tx_hash, p.escrow,
	coalesce(p.emitter, p.escrow), p.args, coalesce(` + registry.FactoryOf + `, ` + noFactory + `)`

// noFactory is the factory of events of an escrow in no registry: a rollback has removed it before
// its deployment was announced.
const noFactory = `'\x0000000000000000000000000000000000000000'::bytea`

// scanEvent reads a row of eventColumns.
func scanEvent(row pgx.CollectableRow) (e contract.Event, err error) {
	err = row.Scan(&e.Name, &e.BlockNumber, &e.LogIndex, &e.Occurrence, &e.BlockTime, &e.BlockHash, &e.TxHash, &e.Escrow,
		&e.Emitter, (*[]byte)(&e.Args), &e.Factory)

	return e, err
}

// notStored returns the events with an empty place, and counts the others as duplicates. It
// returns a BranchError if the event stored in a place is of another branch.
func notStored(ctx context.Context, t *transaction, events []contract.Event) (fresh []contract.Event, err error) {
	blocks, indexes := placesOf(events)
	rows, _ := t.Query(ctx, eventsAt, t.cfg.ChainID, blocks, indexes)
	stored := map[contract.Place]common.Hash{}
	var p contract.Place
	var hash common.Hash
	if _, err := pgx.ForEachRow(rows, []any{&p.Block, &p.Index, &hash}, func() error {
		stored[p] = hash
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look up %d events that may be stored: %w", len(events), err)
	}

	for i := range events {
		e := &events[i]
		hash, there := stored[e.Place()]
		switch {
		case !there:
			fresh = append(fresh, *e)
		case hash != e.BlockHash:
			return nil, &BranchError{Block{int64(e.BlockNumber), hash}}
		default:
			t.result.Duplicates++
		}
	}

	return fresh, nil
}

const eventsAt = `
	select e.block_number, e.log_index, e.block_hash
	from unnest($2::bigint[], $3::integer[]) as t(block, index)
	join events e on e.chain_id = $1 and e.block_number = t.block and e.log_index = t.index`
