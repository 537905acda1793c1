package publish

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Backlog is what this publisher's slots have in the outbox.
type Backlog struct {
	Messages  int64
	OldestAge time.Duration // 0: there is none
}

// Backlog counts the rows of this instance's slots that are not acknowledged, or not deleted yet.
func (p *Publisher) Backlog(ctx context.Context) (b Backlog, err error) {
	var seconds float64
	if err := p.cfg.DB.QueryRow(ctx, countOutbox, pgx.NamedArgs{"chain": p.cfg.ChainID, "owner": p.cfg.Owner}).Scan(&b.Messages, &seconds); err != nil {
		return b, fmt.Errorf("count the outbox: %w", err)
	}
	b.OldestAge = time.Duration(seconds * float64(time.Second))
	return b, nil
}

// mine says whether a row is in a slot of the owner. As a plain join, or with a plain "in", it is the planner's to turn around, and with the
// statistics of a queue, which are of another hour, it has read the whole outbox once a slot: a minute a page.
const mine = `(o.slot in (select slot from slot_ownership where chain_id = @chain and owner = @owner)) is true`

// countOutbox counts the rows of an owner's slots and gives the age of the oldest, in seconds.
const countOutbox = `
	select count(*), coalesce(extract(epoch from now() - min(o.created_at)), 0)::float8
	from outbox o where o.chain_id = @chain and ` + mine

// topicColumn is the index of the topic that a row goes to.
const topicColumn = `case when o.kind = 1 then 2 when o.event_type = any(@others) then 1 else 0 end`

// columns of a row as scan reads it. The last two say whether it was written before this instance had the slot, and before this
// process began.
const columns = `o.seq, o.slot, o.kind, o.event_id, o.event_type, coalesce(p.contract_address, ''), o.escrow, coalesce(p.block_number, 0), coalesce(p.log_index, 0),
	coalesce(p.block_hash, ''), coalesce(p.block_timestamp, 0), coalesce(p.args, '{}'), coalesce(p.state, ''), o.created_at < s.since, o.created_at < @started`

// joins look up a row's event and its slot's history, one by one.
const joins = `
	left join lateral (select * from processed_events e where e.chain_id = o.chain_id and e.event_id = o.event_id limit 1) p on true
	left join lateral (select since from slot_ownership t where t.chain_id = o.chain_id and t.slot = o.slot limit 1) s on true`

// readPage returns rows behind a seq, in order. Of the named escrows and slots those are left out which go to the default topic.
const readPage = `
	select ` + columns + `, 0
	from (
		select * from outbox o
		where o.chain_id = @chain and o.seq > @last and ` + mine + `
		  and (` + topicColumn + ` <> 0 or o.escrow <> all(@escrows::text[]) and o.slot <> all(@slots::smallint[]))
		order by o.seq limit @limit) o` + joins + `
	order by o.seq`

func (c *Config) readPage(ctx context.Context, started time.Time, last int64, limit int, escrows []string, slots []int16) ([]found, error) {
	args := c.readArgs(started)
	args["last"], args["limit"], args["escrows"], args["slots"] = last, limit, escrows, slots
	page, err := c.read(ctx, readPage, args)
	if err != nil {
		return nil, fmt.Errorf("read the outbox behind %d: %w", last, err)
	}
	return page, nil
}

// want is what to read of one lane: so many rows at most, from a seq on.
type want struct {
	lane  *lane
	from  int64
	limit int
}

// readEscrows and readSlots return for each wanted lane its oldest rows from a seq on, in order, with the ordinal of the want.
const (
	readEscrows = `
	select ` + columns + `, w.ord
	from unnest(@escrows::text[], @topics::integer[], @froms::bigint[], @limits::integer[]) with ordinality as w(escrow, topic, first, n, ord)
	cross join lateral (
		select * from outbox o
		where o.chain_id = @chain and o.escrow = w.escrow and o.seq >= w.first and ` + topicColumn + ` = w.topic and ` + mine + `
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

// readLanes returns the rows of each want, by its index.
func (c *Config) readLanes(ctx context.Context, started time.Time, wants []want) ([][]found, error) {
	var escrows []string
	var slots []int16
	var topics, limits []int32
	var froms []int64
	for _, w := range wants {
		escrows, slots = append(escrows, lowerHex(w.lane.id.escrow)), append(slots, w.lane.id.slot)
		topics, froms, limits = append(topics, int32(w.lane.id.topic)), append(froms, w.from), append(limits, int32(w.limit))
	}
	args := c.readArgs(started)
	args["topics"], args["froms"], args["limits"] = topics, froms, limits
	statement := readEscrows
	if c.BySlot {
		statement, args["slots"] = readSlots, slots
	} else {
		args["escrows"] = escrows
	}
	all, err := c.read(ctx, statement, args)
	if err != nil {
		return nil, fmt.Errorf("read the outbox of %d keys: %w", len(wants), err)
	}
	lanes := make([][]found, len(wants))
	for _, f := range all {
		lanes[f.want-1] = append(lanes[f.want-1], f)
	}
	return lanes, nil
}

// inOrder makes the planner follow an index: a row of the outbox is found where the last one was, whatever the statistics say. With
// those of an empty outbox it would sort the whole backlog for every page. Compiling the statement would take longer than running it.
const inOrder = `select set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`

// read runs one of the statements that read the outbox.
func (c *Config) read(ctx context.Context, statement string, args pgx.StrictNamedArgs) (page []found, err error) {
	err = pgx.BeginTxFunc(ctx, c.DB, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, inOrder); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, statement, args)
		page, err = pgx.CollectRows(rows, scan)
		return err
	})
	return page, err
}

func (c *Config) readArgs(started time.Time) pgx.StrictNamedArgs {
	others := make([]string, 0, len(c.OtherNames))
	for name, other := range c.OtherNames {
		if other {
			others = append(others, name)
		}
	}
	return pgx.StrictNamedArgs{"chain": c.ChainID, "owner": c.Owner, "started": started, "others": others}
}

func scan(row pgx.CollectableRow) (f found, err error) {
	var id, emitter, escrow, hash, state string
	e := &f.Event
	err = row.Scan(&f.Seq, &f.Slot, &f.Kind, &id, &e.Name, &emitter, &escrow, &e.BlockNumber, &e.LogIndex, &hash, &e.BlockTime, &e.Args, &state, &f.inherited, &f.old, &f.want)
	if err != nil {
		return f, err
	}
	e.TxHash, e.BlockHash = common.HexToHash(id[:min(66, len(id))]), common.HexToHash(hash)
	e.Emitter, e.Escrow = common.HexToAddress(emitter), common.HexToAddress(escrow)
	retraction := message.Kind(f.Kind) == message.Retraction
	switch state {
	case "canonical":
		f.moot = retraction
	case "retracted":
		f.moot = !retraction
	default: // orphaned until its fate is known; without an event there is nothing to say
		f.held = true
	}
	return f, nil
}

// found is an outbox row as it was read.
type found struct {
	row
	old  bool // written before this process began to read
	held bool // not to be sent now
	moot bool // never to be sent: a retraction of an event that has reappeared, or an event that was retracted
	want int  // the ordinal of the want
}

// databaseTime is the database's clock: instances compare times by no other.
func (c *Config) databaseTime(ctx context.Context) (t time.Time, err error) {
	if err := c.DB.QueryRow(ctx, `select clock_timestamp()`).Scan(&t); err != nil {
		return t, fmt.Errorf("read the database's clock: %w", err)
	}
	return t, nil
}

// sentRow is a row that was acknowledged, or need not be sent.
type sentRow struct {
	seq  int64
	slot int16
	id   string // of an event that was published for the first time, else empty
}

// deleteRows deletes outbox rows, and returns those which were there.
const deleteRows = `delete from outbox where chain_id = $1 and seq = any($2) returning seq`

// retractSent queues retractions for events that were retracted without one, because their rows were still in the outbox.
const retractSent = `
	insert into outbox (chain_id, slot, escrow, event_id, event_type, kind)
	select p.chain_id, p.slot, p.escrow, p.event_id, p.event_type, 1 from processed_events p
	where p.chain_id = $1 and p.event_id = any($2) and p.state = 'retracted'
	  and not exists (select from outbox o where o.chain_id = p.chain_id and o.event_id = p.event_id and o.kind = 1)
	order by p.block_number, p.log_index`

// deleteSent deletes the rows of acknowledged messages and returns how many retractions it queued. A row that is gone already was taken away while
// its message was under way, by a rollback that took it for unsent: such an event has been published, and has to be retracted.
func (c *Config) deleteSent(ctx context.Context, sent []sentRow) (retractions int64, err error) {
	if len(sent) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	seqs := make([]int64, len(sent))
	for i := range sent {
		seqs[i] = sent[i].seq
	}
	rows, _ := c.DB.Query(ctx, deleteRows, c.ChainID, seqs)
	deleted, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("delete %d acknowledged rows of the outbox: %w", len(sent), err)
	}
	if len(deleted) == len(sent) {
		return 0, nil
	}
	there := make(map[int64]bool, len(deleted))
	for _, seq := range deleted {
		there[seq] = true
	}
	var ids []string
	for _, s := range sent {
		if !there[s.seq] && s.id != "" {
			ids = append(ids, s.id)
		}
	}
	tag, err := c.DB.Exec(ctx, retractSent, c.ChainID, ids)
	if err != nil {
		return 0, fmt.Errorf("retract %d events whose rows were gone when they were acknowledged: %w", len(ids), err)
	}
	return tag.RowsAffected(), nil
}

func lowerHex(a common.Address) string {
	var b [42]byte
	copy(b[:], "0x")
	hex.Encode(b[2:], a[:])
	return string(b[:])
}
