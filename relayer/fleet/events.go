package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Event is a stored event.
type Event struct {
	EventType      string
	Escrow         string
	BlockNumber    int64
	BlockTimestamp time.Time
	TxHash         string
	LogIndex       int32
	Args           json.RawMessage
	State          string // canonical, orphaned or retracted
	Queued         bool   // a message about it waits for Pub/Sub
	ProcessedBy    string // instance
}

// Shown is its state on the page: stored, queued, orphaned or retracted.
func (e *Event) Shown() string {
	switch {
	case e.State != "canonical":
		return e.State
	case e.Queued:
		return "queued"
	}

	return "stored"
}

// eventsWithOutbox has the columns of Event, in their order, of the events at the places in chosen.
const eventsWithOutbox = `
	select event_type, escrow, e.block_number, to_timestamp(block_timestamp) at time zone 'UTC',
	       split_part(event_id, ':', 1), e.log_index, args, state,
	       exists (select from waiting o where o.chain_id = e.chain_id and o.escrow = e.escrow_key
		and o.block_number = e.block_number and o.log_index = e.log_index
	               and o.orphan is not distinct from e.orphan),
	       processed_by_instance
	from chosen c
	join lateral (
		select * from processed_events p
		where p.chain_id = @chain and p.block_number = c.block_number and p.log_index = c.log_index
			and p.orphan is not distinct from c.orphan) e on true`

// lastEvents is how many of the newest events a Fleet has.
const lastEvents = 12

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

// Timeline reads the first events of an escrow, the oldest first.
func Timeline(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, chainID int64, escrow string, limit int) ([]Event, error) {
	rows, _ := db.Query(ctx, selectTimeline, pgx.StrictNamedArgs{"chain": chainID, "escrow": escrow, "limit": limit})
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
	if err != nil {
		return nil, fmt.Errorf("read the events of escrow %s: %w", escrow, err)
	}

	return events, nil
}

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
