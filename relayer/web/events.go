package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// event is a stored event.
type event struct {
	EventID        string          `json:"event_id"`
	EventType      string          `json:"event_type"`
	Escrow         string          `json:"escrow"`
	Contract       string          `json:"contract_address"` // the emitter
	Slot           int16           `json:"slot"`
	BlockNumber    int64           `json:"block_number"`
	BlockHash      string          `json:"block_hash"`
	BlockTimestamp time.Time       `json:"block_timestamp"`
	TxHash         string          `json:"transaction_hash"`
	LogIndex       int32           `json:"log_index"`
	Args           json.RawMessage `json:"args"`
	State          string          `json:"state"`  // canonical, orphaned or retracted
	Queued         bool            `json:"queued"` // a message about it waits for Pub/Sub
	ProcessedAt    time.Time       `json:"processed_at"`
	ProcessedBy    string          `json:"processed_by_instance"`
}

// Shown is its state on the page: stored, queued, orphaned or retracted.
func (e *event) Shown() string {
	switch {
	case e.State != "canonical":
		return e.State
	case e.Queued:
		return "queued"
	}

	return "stored"
}

type eventPage struct {
	Events []event `json:"events"`
	Next   *string `json:"next"` // cursor of the next page; null on the last one
}

// eventsWithOutbox has the columns of event, in their order, of the events at the places in chosen.
const eventsWithOutbox = `
	select event_id, event_type, escrow, contract_address, slot, e.block_number, block_hash, to_timestamp(block_timestamp),
	       split_part(event_id, ':', 1), e.log_index, args, state,
	       exists (select from waiting o where o.chain_id = e.chain_id and o.escrow = e.escrow_key
		and o.block_number = e.block_number and o.log_index = e.log_index
	               and o.orphan is not distinct from e.orphan),
	       processed_at, processed_by_instance
	from chosen c
	join lateral (
		select * from processed_events p
		where p.chain_id = @chain and p.block_number = c.block_number and p.log_index = c.log_index
			and p.orphan is not distinct from c.orphan) e on true`

func scanEvent(row pgx.CollectableRow) (event, error) {
	e, err := pgx.RowToStructByPos[event](row)
	e.ProcessedAt, e.BlockTimestamp = e.ProcessedAt.UTC(), e.BlockTimestamp.UTC()

	return e, err
}

// selectLast returns the newest events, newest first.
const selectLast = `
	with chosen as (
		(select block_number, log_index, null::bigint as orphan from events where chain_id = @chain
			order by block_number desc, log_index desc limit @limit)
		union all
		(select block_number, log_index, id from orphaned_events where chain_id = @chain
			order by block_number desc, log_index desc limit @limit))` +
	eventsWithOutbox + `
	order by e.block_number desc, e.log_index desc limit @limit`

// listEvents answers /events: in (block, log index) order. Two events share a place in that order
// only if one of them is orphaned; then the event id decides.
func (a *api) listEvents(r *http.Request) (any, error) {
	p := parse(r, "from", "to", "escrow", "state", "cursor", "limit")
	q := eventQuery{
		from: p.block("from", 0), to: p.block("to", math.MaxInt64), escrow: p.address("escrow"),
		all: p.oneOf("state", "canonical", "all") == "all", limit: p.limit(),
	}
	q.after(p)
	if q.to < q.from {
		p.fail(bad("to", p.values.Get("to"), "must not be below from"))
	}

	if p.err != nil {
		return nil, p.err
	}

	return a.events(r, q)
}

// eventQuery selects a page of events.
type eventQuery struct {
	from, to int64
	escrow   string // empty: of all
	all      bool   // orphaned and retracted ones too
	limit    int
	// Position of the page: after this event.
	block int64
	index int32
	id    string
}

// after reads the cursor.
func (q *eventQuery) after(p *params) {
	q.block = -1
	fields := p.cursor("v", 3)
	if fields == nil {
		return
	}

	index, err := strconv.ParseInt(fields[1], 10, 32)
	block, err2 := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || err2 != nil {
		p.badCursor()
		return
	}

	q.block, q.index, q.id = block, int32(index), fields[2]
	q.from = max(q.from, block) // by which the index finds the place
}

func (a *api) events(r *http.Request, q eventQuery) (page eventPage, err error) {
	args := pgx.StrictNamedArgs{
		"chain": a.cfg.ChainID, "from": q.from, "to": q.to, "all": q.all, "limit": q.limit + 1, "block": q.block,
		"index": q.index, "id": q.id,
	}
	statement := selectEvents
	if q.escrow != "" {
		statement = selectEventsOfEscrow
		args["escrow"] = q.escrow
	}

	rows, _ := a.cfg.DB.Query(r.Context(), statement, args)
	page.Events, err = pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return eventPage{}, fmt.Errorf("list events from block %d: %w", q.from, err)
	}

	if len(page.Events) > q.limit {
		page.Events = page.Events[:q.limit]
		last := &page.Events[q.limit-1]
		page.Next = encodeCursor("v", strconv.FormatInt(last.BlockNumber, 10), strconv.Itoa(int(last.LogIndex)), last.EventID)
	}

	return page, nil
}

// selectEvents reads the canonical events along the key, those of an escrow along events_escrow,
// and the few others beside them. The arms are limited one by one: a view of both would be sorted
// as a whole.
const (
	selectEvents         = chooseEvents + inPage + chooseOrphans + inPage + chosenEvents
	selectEventsOfEscrow = chooseEvents + inPage + ofEscrow + chooseOrphans + inPage + ofEscrow + chosenEvents

	chooseEvents = `
	with chosen as (
		(select block_number, log_index, null::bigint as orphan from events where `
	chooseOrphans = `
		order by block_number, log_index limit @limit)
		union all
		(select block_number, log_index, id from orphaned_events where @all and `
	inPage = `chain_id = @chain and block_number between @from and @to
		and (block_number, log_index) >= (@block::bigint, @index::integer)
		and (block_number, log_index, event_id(tx_hash, log_index, occurrence)) > (@block::bigint, @index::integer, @id::text)`
	ofEscrow     = ` and escrow = bytes(@escrow)`
	chosenEvents = `
		order by block_number, log_index, event_id(tx_hash, log_index, occurrence) limit @limit))` + eventsWithOutbox + `
	order by e.block_number, e.log_index, event_id limit @limit`
)
