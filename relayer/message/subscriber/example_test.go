package subscriber_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/message/subscriber"
)

// A message is applied in one transaction with its effect, here a row per event that a retraction deletes. The
// program in folder balances keeps a sum instead, and has the rest: the subscriptions and the acknowledgement.
func ExampleApply() {
	keepApproval := func(ctx context.Context, tx pgx.Tx, m *message.Message) error {
		switch {
		case m.EventType != "Approved":
			return nil
		case m.Retracted:
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
	handle := func(ctx context.Context, db *pgxpool.Pool, m *message.Message) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return subscriber.Apply(ctx, tx, m, keepApproval) })
	}
	_ = handle // acknowledge the message if it returns nil
}
