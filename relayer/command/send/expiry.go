package send

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// maxDismissed is how many commands are dismissed at once.
const maxDismissed = 500

// lockOver goes from one sender that has waiting commands to the next by the index, and reads of each only what has
// expired or was cancelled, each by its index: by now(), since an index is of no use for a clock that moves on. A
// locked row (it is getting its nonce, or its end) is left alone.
const lockOver = `
	with recursive senders as (
	  (select sender from commands where chain_id = @chain and state = 'accepted' order by sender limit 1)
	   union all
	  select (select c.sender from commands c
	           where c.chain_id = @chain and c.state = 'accepted' and c.sender > s.sender
	           order by c.sender limit 1)
	    from senders s where s.sender is not null
	)
	select e.command_id
	  from senders s
	 cross join lateral (
	       select command_id from (
	         select command_id from commands
	          where chain_id = @chain and sender = s.sender and state = 'accepted' and expires_at <= now()
	          order by expires_at limit @most for no key update skip locked) expired
	        union all
	       select command_id from (
	         select command_id from commands
	          where chain_id = @chain and sender = s.sender and state = 'accepted' and cancel_requested
	          limit @most for no key update skip locked) cancelled) e
	 limit @most`

const setOver = `
	update commands c
	   set state = case when c.cancel_requested then 'cancelled' else 'expired' end,
	       code = case when c.cancel_requested then 'cancelled' else 'expired' end,
	       detail = case when c.cancel_requested then '' else 'its time was over before it could be sent' ||
	                     case when c.code = '' then '' else '; it waited for: ' || concat_ws(', ', c.code, nullif(c.detail, '')) end end,
	       answered_at = clock_timestamp(), next_look = 'infinity'
	 where c.command_id = any(@ids) and c.state = 'accepted'
	returning ` + finishedColumns

// Dismiss answers up to 500 commands that expired or were cancelled before anything was signed for them, of any sender
// of the chain, also of one that no instance has. It needs no epoch: T1 gives no nonce to what has expired or was
// cancelled, and both lock the command's row, so a command either has its nonce or is answered here, never both. It may
// be called by any number of instances at the same time.
func Dismiss(ctx context.Context, db *pgxpool.Pool, chainID int64) (answers []command.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lockOver, pgx.StrictNamedArgs{"chain": chainID, "most": maxDismissed})
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(ids) == 0 {
			return err
		}

		rows, _ = tx.Query(ctx, setOver, pgx.StrictNamedArgs{"ids": ids})
		if answers, _, _, err = collectFinished(rows); err != nil { // without a nonce nothing is reserved
			return err
		}

		if err := outbox.AddAnswers(ctx, tx, chainID, answers); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, dropClaims, pgx.StrictNamedArgs{"chain": chainID, "ids": ids})

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dismiss expired commands: %w", err)
	}

	return answers, nil
}
