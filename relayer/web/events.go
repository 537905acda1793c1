package web

import (
	"encoding/json"
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

// selectTimeline returns the events of an escrow, oldest first, also those that a reorganisation took back. Two share
// a place only if one of them is such; then the event id decides. The arms are limited one by one: a view of both would
// be sorted as a whole.
const selectTimeline = `
	with chosen as (
		(select block_number, log_index, null::bigint as orphan from events
			where chain_id = @chain and escrow = bytes(@escrow) order by block_number, log_index limit @limit)
		union all
		(select block_number, log_index, id from orphaned_events
			where chain_id = @chain and escrow = bytes(@escrow) order by block_number, log_index limit @limit))` +
	eventsWithOutbox + `
	order by e.block_number, e.log_index, event_id limit @limit`
