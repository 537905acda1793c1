// Command balances keeps in the table balances what each escrow holds, in wei: a consumer that is right in any
// order, with any duplicates, and whenever it is killed. README.md of package message explains it.
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
    create table if not exists balances (
        chain_id text, escrow text, wei numeric(78) not null, primary key (chain_id, escrow))`

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
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return subscriber.Apply(ctx, tx, m, keepBalance) })
	}

	if err != nil {
		slog.WarnContext(ctx, "message not applied", slog.String("event_id", received.Attributes[message.AttrEventID]),
			slog.Any("err", err))
		// It comes again, and in the end is a dead letter; with ordering, the escrow's later messages wait for it.
		received.Nack()

		return
	}

	received.Ack()
}

// keepBalance is the effect of a message: what an escrow got is added, what it paid is subtracted, and a
// retraction does the opposite. Sums do not depend on the order of their parts.
func keepBalance(ctx context.Context, tx pgx.Tx, m *message.Message) error {
	paid := m.EventType == "EscrowReleased" || m.EventType == "EscrowRefunded"
	if !paid && m.EventType != "EscrowDeployed" {
		return nil
	}

	wei, err := m.Int("amount")
	if err != nil {
		return err
	}

	if paid != m.Retracted {
		wei.Neg(wei)
	}

	_, err = tx.Exec(ctx, `
	    insert into balances (chain_id, escrow, wei) values ($1, $2, $3)
	        on conflict (chain_id, escrow) do update set wei = balances.wei + excluded.wei`,
		m.ChainID, m.Escrow, wei.String())

	return err
}
