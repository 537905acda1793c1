package subscriber_test

import (
	"context"
	"fmt"
	"log/slog"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// A subscriber that counts approvals, each once, however often it is delivered. The subscription
// has message ordering and a dead-letter topic.
//
//	create table applied (chain_id text, event_id text, block_hash text not null, primary key (chain_id, event_id));
//	create table approvals (escrow text primary key, n bigint not null);
func Example() {
	subscribe := func(ctx context.Context, subscription *pubsub.Subscriber, db *pgxpool.Pool) error {
		return subscription.Receive(ctx, func(ctx context.Context, received *pubsub.Message) {
			m, err := message.Decode(received.Data, received.Attributes)
			if err == nil {
				err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return apply(ctx, tx, m) })
			}

			if err != nil {
				slog.WarnContext(ctx, "message not applied", slog.String("event_id", received.Attributes[message.AttrEventID]),
					slog.Any("err", err))
				// it comes again, and then goes to the dead-letter topic; with ordering, the escrow's later
				// messages wait
				received.Nack()

				return
			}

			received.Ack() // only now: the transaction has committed
		})
	}
	_ = subscribe
}

// apply has its effect once: the event is remembered in the transaction that changes the count.
func apply(ctx context.Context, tx pgx.Tx, m *message.Message) error {
	var remember string
	switch {
	case m.Retracted: // undo it, unless it was mined again in another block
		remember = `delete from applied where chain_id = $1 and event_id = $2 and block_hash = $3`
	default:
		remember = `insert into applied (chain_id, event_id, block_hash) values ($1, $2, $3) on conflict do nothing`
	}

	tag, err := tx.Exec(ctx, remember, m.ChainID, m.EventID, m.BlockHash)
	if err != nil {
		return fmt.Errorf("remember %s: %w", m.EventID, err)
	}

	if m.EventType != "Approved" {
		return nil
	}

	if tag.RowsAffected() == 0 { // delivered before; if in another block, that is where it is now
		_, err = tx.Exec(ctx, `update applied set block_hash = $3 where chain_id = $1 and event_id = $2 and not $4`,
			m.ChainID, m.EventID, m.BlockHash, m.Retracted)
		return err
	}

	change := 1
	if m.Retracted {
		change = -1
	}

	_, err = tx.Exec(ctx,
		`insert into approvals as a (escrow, n) values ($1, $2) on conflict (escrow) do update set n = a.n + $2`,
		m.Escrow, change)

	return err
}
