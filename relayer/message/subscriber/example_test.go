package subscriber_test

import (
	"context"
	"log/slog"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/message/subscriber"
)

// A subscriber that keeps the approvals of each escrow. It receives from two subscriptions, of the
// topic of events and of that of retractions; the first has message ordering, both have a dead-letter
// topic. Beside subscriber.Schema its database has
//
//	create table approvals (chain_id text, event_id text, escrow text not null, approver text not null,
//		primary key (chain_id, event_id));
func Example() {
	receive := func(ctx context.Context, subscription *pubsub.Subscriber, db *pgxpool.Pool) error {
		return subscription.Receive(ctx, func(ctx context.Context, received *pubsub.Message) {
			m, err := message.Decode(received.Data, received.Attributes)
			if err == nil {
				err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return subscriber.Apply(ctx, tx, m, keepApproval) })
			}

			if err != nil {
				slog.WarnContext(ctx, "message not applied",
					slog.String("event_id", received.Attributes[message.AttrEventID]), slog.Any("err", err))
				// It comes again, and in the end goes to the dead-letter topic; with ordering, the escrow's
				// later messages wait for it.
				received.Nack()

				return
			}

			received.Ack() // the transaction has committed
		})
	}
	_ = receive
}

func keepApproval(ctx context.Context, tx pgx.Tx, m *message.Message) error {
	if m.EventType != "Approved" {
		return nil
	}

	if m.Retracted {
		_, err := tx.Exec(ctx, `delete from approvals where chain_id = $1 and event_id = $2`, m.ChainID, m.EventID)
		return err
	}

	approver, err := m.Text("approver")
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, `insert into approvals (chain_id, event_id, escrow, approver) values ($1, $2, $3, $4)`,
		m.ChainID, m.EventID, m.Escrow, approver)

	return err
}
