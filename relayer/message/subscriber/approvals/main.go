// Command approvals keeps the approvals of each escrow in the table approvals. It is an example of
// a consumer that is correct in any order and with any duplicates; README.md of package message
// explains it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/message/subscriber"
)

const tables = `
    create table if not exists approvals (
        chain_id text, event_id text, escrow text not null, approver text not null, primary key (chain_id, event_id))`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()

	if _, err := db.Exec(ctx, subscriber.Schema+tables); err != nil {
		return err
	}

	client, err := pubsub.NewClient(ctx, os.Getenv("PUBSUB_PROJECT_ID"))
	if err != nil {
		return err
	}
	defer client.Close()

	group, ctx := errgroup.WithContext(ctx)
	for _, subscription := range []string{os.Getenv("EVENTS_SUBSCRIPTION"), os.Getenv("RETRACTIONS_SUBSCRIPTION")} {
		group.Go(func() error {
			return client.Subscriber(subscription).Receive(ctx, func(ctx context.Context, received *pubsub.Message) {
				receive(ctx, db, received)
			})
		})
	}

	return group.Wait()
}

// receive applies a message in a transaction, and acknowledges it when that has committed.
func receive(ctx context.Context, db *pgxpool.Pool, received *pubsub.Message) {
	m, err := message.Decode(received.Data, received.Attributes)
	if err == nil {
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return subscriber.Apply(ctx, tx, m, keepApproval) })
	}

	if err != nil {
		slog.WarnContext(ctx, "message not applied", slog.String("event_id", received.Attributes[message.AttrEventID]),
			slog.Any("err", err))
		// It is redelivered, and finally goes to the dead-letter topic; with ordering, the escrow's
		// later messages wait for it.
		received.Nack()

		return
	}

	received.Ack()
}

// keepApproval is the effect of a message: a row per approval.
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
