// Package reply owns the table replies: answers to commands that are committed and wait to be published.
//
// An answer is stored in the transaction that brings the command into the state that it tells of,
// and deleted when Pub/Sub has acknowledged it. So none is lost, and after a crash in between one
// is published twice.
package reply

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Channel is the notification channel on which new answers are announced; the payload is the chain id.
const Channel = "relayer_replies"

// Columns are what pgx.RowToStructByNameLax[command.Answer] reads of a command c of the table commands.
const Columns = `
	c.command_id, 2 * c.reopened + (c.answered_at is not null)::int as revision, c.state, c.code, c.detail, coalesce(c.winner, '') as winner,
	c.kind, c.sender, c.escrow, c.reference, c.reply_to, coalesce(c.tx_hash, '') as transaction, coalesce(c.block_number, 0) as block,
	coalesce(c.block_hash, '') as block_hash, coalesce(c.event_id, '') as event_id, coalesce(c.fee_paid::text, '') as fee_paid`

const insertReplies = `
	insert into replies (chain_id, command_id, state, code, reply_to, body)
	select @chain, r.id, r.state, r.code, r.reply_to, r.body::json
	  from unnest(@ids::text[], @states::text[], @codes::text[], @reply_tos::text[], @bodies::text[]) with ordinality
	       as r (id, state, code, reply_to, body, place)
	 order by place`

// Insert stores answers in the caller's transaction, in order.
func Insert(ctx context.Context, tx pgx.Tx, chainID int64, answers []command.Answer) error {
	if len(answers) == 0 {
		return nil
	}

	bodies := make([]string, len(answers))
	for i, a := range answers {
		body, err := json.Marshal(a)
		if err != nil {
			return fmt.Errorf("encode the answer to command %s: %w", a.CommandID, err)
		}

		bodies[i] = string(body)
	}

	_, err := tx.Exec(ctx, insertReplies, pgx.StrictNamedArgs{
		"chain":     chainID,
		"ids":       column.Of(answers, func(a *command.Answer) string { return a.CommandID }),
		"states":    column.Of(answers, func(a *command.Answer) string { return string(a.State) }),
		"codes":     column.Of(answers, func(a *command.Answer) string { return a.Code }),
		"reply_tos": column.Of(answers, func(a *command.Answer) string { return a.ReplyTo }),
		"bodies":    bodies,
	})
	if err != nil {
		return fmt.Errorf("store %d answers: %w", len(answers), err)
	}

	if _, err := tx.Exec(ctx, `select pg_notify($1, $2::text)`, Channel, fmt.Sprint(chainID)); err != nil {
		return fmt.Errorf("announce %d answers: %w", len(answers), err)
	}

	return nil
}
