package outbox

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

// Found is an outbox row as read.
type Found struct {
	Pending
	Doubtful bool // it may have been published before: see Doubt
	Gone     bool // its event is missing: a person has removed it
	want     int  // the ordinal of the Want
}

// Want is what to read of one lane: at most Limit rows, from a seq on.
type Want struct {
	Lane  Lane
	From  int64
	Limit int
}

// columns of a row as scan reads it, and whether the row is in doubt.
const columns = `o.seq, o.token, o.slot, o.kind, o.escrow, o.event_type, p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash,
	p.tx_hash, p.emitter, p.args, coalesce(lone.factory, ` + registry.FactoryOf + `), o.seq <= s.doubt_seq`

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
	left join lateral (select doubt_seq from slot_ownership t where t.chain_id = o.chain_id and t.slot = o.slot
		limit 1) s on true`

// readPage returns rows after a seq, in order, without the default topic's rows of the named
// escrows and slots.
const readPage = `
	select ` + columns + `, 0
	from (
		select * from outbox o
		where o.chain_id = @chain and o.seq > @last and ` + mine + `
		  and (` + topicColumn + ` <> 0 or o.escrow <> all(@escrows::bytea[]) and o.slot <> all(@slots::smallint[]))
		order by o.seq limit @limit) o` + joins + `
	order by o.seq`

// Page returns at most limit rows of the slots in mine after seq last, in order, except those of
// the lanes in without, all of DefaultTopic.
func (b *Box) Page(ctx context.Context, mine []int16, last int64, limit int, without []Lane) ([]Found, error) {
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
	page, err := read(ctx, b.DB, readPage, args, scan)
	if err != nil {
		return nil, fmt.Errorf("read the outbox behind %d: %w", last, err)
	}

	return page, nil
}

// readEscrows and readSlots return for each wanted lane its oldest rows from a seq on, in order,
// with the ordinal of the Want.
const (
	readEscrows = `
	select ` + columns + `, w.ord
	from unnest(@escrows::bytea[], @topics::integer[], @froms::bigint[], @limits::integer[]) with ordinality as w(escrow, topic, first, n, ord)
	cross join lateral (
		select * from outbox o
		where o.chain_id = @chain and o.escrow = w.escrow and o.seq >= w.first and ` + topicColumn + ` = w.topic
			and ` + mine + `
		order by o.seq limit w.n) o` + joins + `
	order by w.ord, o.seq`
	readSlots = `
	select ` + columns + `, w.ord
	from unnest(@slots::smallint[], @topics::integer[], @froms::bigint[], @limits::integer[]) with ordinality as w(slot, topic, first, n, ord)
	cross join lateral (
		select * from outbox o
		where o.chain_id = @chain and o.slot = w.slot and o.seq >= w.first and ` + topicColumn + ` = w.topic and ` + mine + `
		order by o.seq limit w.n) o` + joins + `
	order by w.ord, o.seq`
)

// Lanes returns the rows of each want, by its index, if their slots are in mine.
func (b *Box) Lanes(ctx context.Context, mine []int16, wants []Want) ([][]Found, error) {
	args := b.readArgs(mine)
	args["topics"] = column.Of(wants, func(w *Want) int32 { return int32(w.Lane.Topic) })
	args["froms"] = column.Of(wants, func(w *Want) int64 { return w.From })
	args["limits"] = column.Of(wants, func(w *Want) int32 { return int32(w.Limit) })
	statement := readEscrows
	if b.BySlot {
		statement, args["slots"] = readSlots, column.Of(wants, func(w *Want) int16 { return w.Lane.Slot })
	} else {
		args["escrows"] = column.Of(wants, func(w *Want) []byte { return w.Lane.Escrow[:] })
	}

	all, err := read(ctx, b.DB, statement, args, scan)
	if err != nil {
		return nil, fmt.Errorf("read the outbox of %d keys: %w", len(wants), err)
	}

	return byWant(all, len(wants)), nil
}

// byWant sorts rows by the Want that they are of.
func byWant(all []Found, wants int) [][]Found {
	lanes := make([][]Found, wants)
	for _, f := range all {
		lanes[f.want-1] = append(lanes[f.want-1], f)
	}

	return lanes
}

// inOrder makes the planner use the index, in which consecutive rows are neighbours, regardless of
// statistics. With the statistics of an empty outbox the planner would sort the whole backlog for
// every page.
const inOrder = `select set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`

// read runs one of the statements that read the outbox.
func read(ctx context.Context, db *pgxpool.Pool, statement string, args pgx.StrictNamedArgs,
	scan pgx.RowToFunc[Found]) (page []Found, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, inOrder); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, statement, args)
		page, err = pgx.CollectRows(rows, scan)

		return err
	})

	return page, err
}

func (b *Box) readArgs(mine []int16) pgx.StrictNamedArgs {
	others := make([]string, 0, len(b.OtherNames))
	for name, other := range b.OtherNames {
		if other {
			others = append(others, name)
		}
	}

	return pgx.StrictNamedArgs{"chain": b.ChainID, "owner": b.Owner, "mine": mine, "others": others}
}

func scan(row pgx.CollectableRow) (f Found, err error) {
	var block, index, at *uint64
	var occurrence *int16
	var hash, tx *common.Hash
	var emitter, factory *common.Address
	e := &f.Event
	err = row.Scan(&f.Seq, &f.Token, &f.Slot, &f.Kind, &e.Escrow, &e.Name, &block, &index, &occurrence, &at, &hash, &tx,
		&emitter, (*[]byte)(&e.Args), &factory, &f.Doubtful, &f.want)
	if f.Gone = err == nil && block == nil; err != nil || f.Gone {
		return f, err
	}

	e.BlockNumber, e.LogIndex, e.Occurrence, e.BlockTime = *block, uint(*index), *occurrence, *at
	e.BlockHash, e.TxHash, e.Emitter = *hash, *tx, e.Escrow
	if emitter != nil {
		e.Emitter = *emitter
	}

	if factory != nil {
		e.Factory = *factory
	}

	return f, nil
}
