package outbox

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Found is an event of the log, or an outbox row, as read.
type Found struct {
	Pending
	Doubtful bool // it may have been published before: see Doubt
	Gone     bool // its event is missing: a person has removed it
}

// columns of a row as scan reads it, and whether the row is in doubt.
const columns = `o.seq, o.token, o.slot, o.kind, o.escrow, o.event_type, p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash,
	p.tx_hash, p.emitter, p.args, coalesce(lone.factory, ` + registry.FactoryOf + `), o.created_at < s.doubt`

// joins look up a row's event and its slot's doubt, one by one. Most chains have one factory, which is not looked up.
const joins = `
	cross join (select case when count(*) = 1 then (array_agg(address))[1] end as factory
		from factories where chain_id = @chain) lone
	left join lateral (
		select chain_id, escrow, block_number, log_index, occurrence, block_time, block_hash, tx_hash, emitter, args
		from events e where o.orphan is null and e.chain_id = o.chain_id and e.block_number = o.block_number
			and e.log_index = o.log_index
		union all
		select chain_id, escrow, block_number, log_index, occurrence, block_time, block_hash, tx_hash, emitter, args
		from orphaned_events x where x.id = o.orphan
		limit 1) p on true
	left join lateral (select doubt from slot_ownership t where t.chain_id = o.chain_id and t.slot = o.slot
		limit 1) s on true`

// readPage returns rows after a seq, in order, without the default topic's rows of the named
// escrows and slots.
const readPage = `
	select ` + columns + `
	from (
		select * from outbox o
		where o.chain_id = @chain and o.seq > @last and ` + mine + `
		  and (` + topicColumn + ` <> 0 or o.escrow <> all(@escrows::bytea[]) and o.slot <> all(@slots::smallint[]))
		order by o.seq limit @limit) o` + joins + `
	order by o.seq`

// Page returns at most limit rows of the slots in mine after seq last, in order, except those of
// the lanes in without, all of DefaultTopic; and the next block of the owner's cursor then. Of an
// escrow the log comes first, so a row counts only where the log is taken up to that block.
// ErrMoved: the right is over.
func (b *Box) Page(ctx context.Context, r Right, mine []int16, last int64, limit int,
	without []Lane) (page []Found, next int64, err error) {
	escrows, slots := [][]byte{}, []int16{}
	for _, lane := range without {
		if b.BySlot {
			slots = append(slots, lane.Slot)
		} else {
			escrows = append(escrows, lane.Escrow.Bytes())
		}
	}

	args := b.readArgs(mine)
	args["last"], args["limit"], args["escrows"], args["slots"] = last, limit, escrows, slots
	if page, next, err = b.read(ctx, r, readPage, args); err != nil {
		return nil, 0, fmt.Errorf("read the outbox behind %d: %w", last, err)
	}

	return page, next, nil
}

// inOrder makes the planner use the index, in which consecutive rows are neighbours, regardless of
// statistics. With the statistics of an empty outbox the planner would sort the whole backlog for
// every page.
const inOrder = `select set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`

// pageBytes bounds the arguments of a page: whoever emits events with long ones decides how long they are.
const pageBytes = 16 << 20

// Full reports whether a page ends with what it has, as it is larger than a page should be: there may be more.
func Full(page []Found) bool {
	bytes := 0
	for i := range page {
		bytes += page[i].bytes()
	}

	return bytes > pageBytes
}

func (f *Found) bytes() int {
	if f.Answer != nil {
		return len(f.Answer.Body)
	}

	return len(f.Event.Args)
}

// collect reads rows until they exceed pageBytes, and whole blocks where that is asked for.
func collect(rows pgx.Rows, scan pgx.RowToFunc[Found], blocks bool) (page []Found, err error) {
	defer rows.Close()
	for bytes := 0; rows.Next(); {
		f, err := scan(rows)
		if err != nil {
			return nil, err
		}

		if bytes > pageBytes && (!blocks || page[len(page)-1].Event.BlockNumber != f.Event.BlockNumber) {
			return page, nil
		}

		page, bytes = append(page, f), bytes+f.bytes()
	}

	return page, rows.Err()
}

// read runs one of the statements that read the outbox.
func read(ctx context.Context, db *pgxpool.Pool, statement string, args pgx.StrictNamedArgs,
	scan pgx.RowToFunc[Found]) (page []Found, err error) {
	err = inSnapshot(ctx, db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statement, args)
		page, err = collect(rows, scan, false)

		return err
	})

	return page, err
}

func (b *Box) read(ctx context.Context, r Right, statement string, args pgx.StrictNamedArgs) (page []Found, next int64,
	err error) {
	err = inSnapshot(ctx, b.DB, func(tx pgx.Tx) error {
		if next, err = b.next(ctx, tx, r, ""); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, statement, args)
		page, err = collect(rows, scan, false)

		return err
	})

	return page, next, err
}

// inSnapshot runs a transaction that reads what is there at one moment, in the order of the indexes.
func inSnapshot(ctx context.Context, db *pgxpool.Pool, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, inOrder); err != nil {
				return err
			}

			return f(tx)
		})
}

func (b *Box) readArgs(mine []int16) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{"chain": b.ChainID, "owner": b.Owner, "mine": mine,
		"default": contract.DefaultEvents}
}

func scan(row pgx.CollectableRow) (f Found, err error) {
	var block, index, at *uint64
	var occurrence *int16
	var doubtful *bool
	var hash, tx *common.Hash
	var emitter, factory *common.Address
	e := &f.Event
	err = row.Scan(&f.Seq, &f.Token, &f.Slot, &f.Kind, &e.Escrow, &e.Name, &block, &index, &occurrence, &at, &hash, &tx,
		&emitter, (*[]byte)(&e.Args), &factory, &doubtful)
	if f.Gone = err == nil && block == nil; err != nil || f.Gone {
		return f, err
	}

	e.BlockNumber, e.LogIndex, e.Occurrence, e.BlockTime = *block, uint(*index), *occurrence, *at
	e.BlockHash, e.TxHash, e.Emitter = *hash, *tx, e.Escrow
	f.Doubtful = doubtful != nil && *doubtful
	if emitter != nil {
		e.Emitter = *emitter
	}

	if factory != nil {
		e.Factory = *factory
	}

	return f, nil
}
