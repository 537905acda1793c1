// Package reply owns the table replies: answers to commands that are committed and wait to be published.
//
// An answer is stored in the transaction that brings the command into the state that it tells of,
// and deleted when Pub/Sub has acknowledged it. So none is lost, and after a crash in between one
// is published twice.
package reply

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

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
	select $1, a ->> 'command_id', a ->> 'state', coalesce(a ->> 'code', ''), coalesce(a ->> 'reply_to', ''), a
	  from json_array_elements($2::json) with ordinality as r (a, place)
	 order by place`

// Insert stores answers in the caller's transaction, in order.
func Insert(ctx context.Context, tx pgx.Tx, chainID int64, answers []command.Answer) error {
	if len(answers) == 0 {
		return nil
	}

	if _, err := tx.Exec(ctx, insertReplies, chainID, answers); err != nil {
		return fmt.Errorf("store %d answers: %w", len(answers), err)
	}

	if _, err := tx.Exec(ctx, `select pg_notify($1, $2::text)`, Channel, fmt.Sprint(chainID)); err != nil {
		return fmt.Errorf("announce %d answers: %w", len(answers), err)
	}

	return nil
}
