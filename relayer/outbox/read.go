package outbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Found is an outbox row as it was read.
type Found struct {
	Pending
	Doubtful bool // somebody may have handed it to Pub/Sub already: see Doubt
	Held     bool // not to be sent now
	Obsolete bool // never to be sent: a retraction of an event that has reappeared, or an event that was retracted
	want     int  // the ordinal of the Want
}

// Want is what to read of one lane: at most Limit rows, from a seq on.
type Want struct {
	Lane  Lane
	From  int64
	Limit int
}

// columns of a row as scan reads it. Then come whether an event waits that the row has to follow,
// and whether the row may have been sent: see Doubt.
const columns = `o.seq, o.slot, o.kind, o.escrow, o.event_type, coalesce(p.state, ''), p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash, p.tx_hash,
	p.emitter, p.args, ` + follows + `, o.seq <= s.doubt_seq`

// follows says whether a retraction's event is in the outbox still: nobody may hear of the retraction before the event.
const follows = `o.kind = 1 and exists (
	select from outbox e where e.chain_id = o.chain_id and e.escrow = o.escrow and e.orphan = o.orphan and e.kind = 0)`

// joins look up a row's event and its slot's history, one by one.
const joins = `
	left join lateral (
		select 'canonical' as state, block_number, log_index, occurrence, block_time, block_hash, tx_hash, emitter, args
		from events e where o.orphan is null and e.chain_id = o.chain_id and e.block_number = o.block_number
			and e.log_index = o.log_index
		union all
		select case when x.state <= 2 then 'orphaned' else 'retracted' end, block_number, log_index, occurrence, block_time, block_hash, tx_hash, emitter, args
		from orphaned_events x where x.id = o.orphan
		limit 1) p on true
	left join lateral (select doubt_seq from slot_ownership t where t.chain_id = o.chain_id and t.slot = o.slot
		limit 1) s on true`

// readPage returns rows behind a seq, in order. Of the named escrows and slots those are left out
// which go to the default topic.
const readPage = `
	select ` + columns + `, 0
	from (
		select * from outbox o
		where o.chain_id = @chain and o.seq > @last and ` + mine + `
		  and (` + topicColumn + ` <> 0 or o.escrow <> all(@escrows::bytea[]) and o.slot <> all(@slots::smallint[]))
		order by o.seq limit @limit) o` + joins + `
	order by o.seq`

// Page returns at most limit rows behind seq last, in order, except those of the lanes in without, all of
// DefaultTopic.
func (b *Box) Page(ctx context.Context, last int64, limit int, without []Lane) ([]Found, error) {
	escrows, slots := [][]byte{}, []int16{}
	for _, lane := range without {
		if b.BySlot {
			slots = append(slots, lane.Slot)
		} else {
			escrows = append(escrows, lane.Escrow.Bytes())
		}
	}

	args := b.readArgs()
	args["last"], args["limit"], args["escrows"], args["slots"] = last, limit, escrows, slots
	page, err := b.read(ctx, readPage, args)
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

// Lanes returns the rows of each want, by its index.
func (b *Box) Lanes(ctx context.Context, wants []Want) ([][]Found, error) {
	args := b.readArgs()
	args["topics"] = column.Of(wants, func(w *Want) int32 { return int32(w.Lane.Topic) })
	args["froms"] = column.Of(wants, func(w *Want) int64 { return w.From })
	args["limits"] = column.Of(wants, func(w *Want) int32 { return int32(w.Limit) })
	statement := readEscrows
	if b.BySlot {
		statement, args["slots"] = readSlots, column.Of(wants, func(w *Want) int16 { return w.Lane.Slot })
	} else {
		args["escrows"] = column.Of(wants, func(w *Want) []byte { return w.Lane.Escrow[:] })
	}

	all, err := b.read(ctx, statement, args)
	if err != nil {
		return nil, fmt.Errorf("read the outbox of %d keys: %w", len(wants), err)
	}

	lanes := make([][]Found, len(wants))
	for _, f := range all {
		lanes[f.want-1] = append(lanes[f.want-1], f)
	}

	return lanes, nil
}

const readSent = `
	select ` + columns + `, 0
	from (select * from outbox o where o.chain_id = @chain and o.seq = any(@seqs)) o` + joins

// Still returns those of the rows that are in the outbox as they were sent.
func (b *Box) Still(ctx context.Context, rows []Sent) ([]Sent, error) {
	seqs := column.Of(rows, func(s *Sent) int64 { return s.Seq })
	found, err := b.read(ctx, readSent, pgx.StrictNamedArgs{"chain": b.ChainID, "seqs": seqs})
	if err != nil {
		return nil, fmt.Errorf("look for %d acknowledged rows in the outbox: %w", len(rows), err)
	}

	there := map[Sent]bool{}
	for i := range found {
		there[found[i].Sent()] = true
	}

	return slices.DeleteFunc(slices.Clone(rows), func(s Sent) bool { return !there[s] }), nil
}

// inOrder makes the planner follow the index, in which the next row is beside the last one, whatever
// the statistics say. With the statistics of an empty outbox the planner would sort the whole backlog
// for every page.
const inOrder = `select set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`

// read runs one of the statements that read the outbox.
func (b *Box) read(ctx context.Context, statement string, args pgx.StrictNamedArgs) (page []Found, err error) {
	err = pgx.BeginTxFunc(ctx, b.DB, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, inOrder); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, statement, args)
		page, err = pgx.CollectRows(rows, scan)

		return err
	})

	return page, err
}

func (b *Box) readArgs() pgx.StrictNamedArgs {
	others := make([]string, 0, len(b.OtherNames))
	for name, other := range b.OtherNames {
		if other {
			others = append(others, name)
		}
	}

	return pgx.StrictNamedArgs{"chain": b.ChainID, "owner": b.Owner, "others": others}
}

func scan(row pgx.CollectableRow) (f Found, err error) {
	var state string
	var block, index, at *uint64
	var occurrence *int16
	var hash, tx *common.Hash
	var emitter *common.Address
	var follows bool
	e := &f.Event
	err = row.Scan(&f.Seq, &f.Slot, &f.Kind, &e.Escrow, &e.Name, &state, &block, &index, &occurrence, &at, &hash, &tx,
		&emitter, (*[]byte)(&e.Args),
		&follows, &f.Doubtful, &f.want)
	if err != nil {
		return f, err
	}

	switch state {
	case "": // retention and rollbacks see to it that this does not happen; a person may
		f.Obsolete = true
		return f, nil
	case "canonical":
		f.Obsolete = message.Kind(f.Kind) == message.Retraction
	case "orphaned": // until its fate is known
		f.Held = true
	case "retracted": // the event goes out before its retraction, since it may have been sent; a replay does not
		f.Obsolete = message.Kind(f.Kind) == message.Replay
		f.Held = follows
	}

	e.BlockNumber, e.LogIndex, e.Occurrence, e.BlockTime = *block, uint(*index), *occurrence, *at
	e.BlockHash, e.TxHash, e.Emitter = *hash, *tx, e.Escrow
	if emitter != nil {
		e.Emitter = *emitter
	}

	return f, nil
}
