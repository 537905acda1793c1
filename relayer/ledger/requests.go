package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// A request asks the owner of a slot to put an event into the outbox: for the verifier, an event
// that the first reading missed; for a replay, one that is published once more. The owner does so
// in its next commit, with its cursor locked, so it stays the only writer of the rows of its slots
// and their order is that of its commits. Requests of one escrow are served in order; what it emits while some wait for
// a further commit is requested behind them. A request is
// announced on RequestsChannel; an owner that misses the notification finds the request at its next
// commit.

// served bounds the requests that a commit serves: about as many events as it stores.
const served = 2048

// request asks the owners of the slots to publish events, in order. An event that has been
// published by the time it is served stays as it is.
func request(ctx context.Context, t *transaction, events []contract.Event) error {
	told := some(events, func(e *contract.Event) bool { return t.cfg.Publishes(e.Name) })
	if len(told) == 0 {
		return nil
	}

	blocks, indexes := placesOf(told)
	if _, err := t.Exec(ctx, addRequests, t.cfg.ChainID, blocks, indexes, column.Of(told, escrowOf),
		column.Of(told, slotOf)); err != nil {
		return fmt.Errorf("request the publication of %d events: %w", len(told), err)
	}

	return t.notify(ctx, RequestsChannel)
}

const addRequests = `
	insert into requests (chain_id, block_number, log_index, escrow, slot, kind)
	select $1, t.*, 0 from unnest($2::bigint[], $3::integer[], $4::bytea[], $5::smallint[]) as t`

// serve puts the requested events of this owner's slots into the outbox.
func serve(ctx context.Context, t *transaction) error {
	rows, _ := t.Query(ctx, serveRequests, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "me": t.cfg.InstanceID,
		"token": t.token, "replay": message.Replay, "limit": served})
	n, err := collectRows(t, rows)
	if err != nil {
		return fmt.Errorf("serve requests: %w", err)
	}

	t.result.Served, t.result.More = true, n == served

	return nil
}

// serveRequests skips events that were removed or published since the request.
const serveRequests = `
	with due as (
		delete from requests r using (
			select id from requests q
			where q.chain_id = @chain and (q.slot in (select slot from slot_ownership where chain_id = @chain and owner = @me)) is true
			order by q.id limit @limit) d
		where r.chain_id = @chain and r.id = d.id
		returning r.*),
	queued as (
		insert into outbox (chain_id, token, block_number, log_index, slot, kind, escrow, event_type)
		select e.chain_id, @token, e.block_number, e.log_index, e.slot, d.kind, e.escrow, (select name from event_types t where t.id = e.type)
		from due d join events e on e.chain_id = @chain and e.block_number = d.block_number and e.log_index = d.log_index and e.escrow = d.escrow
		where d.kind = @replay or not e.told
		order by d.id
		returning seq, slot, kind, block_number, log_index),
	told as (
		update events e set told = true, apart = true from queued q
		where e.chain_id = @chain and e.block_number = q.block_number and e.log_index = q.log_index and not e.told)
	select q.seq, q.slot, q.kind, ` + eventColumns + `
	from queued q join events p on p.chain_id = @chain and p.block_number = q.block_number and p.log_index = q.log_index
	order by q.seq`
