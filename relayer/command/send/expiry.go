package send

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// maxDismissed is how many commands are dismissed at once.
const maxDismissed = 500

// lockExpired goes from one sender that has waiting commands to the next by the index, and reads of each
// only what has expired: by now(), since the index is of no use for a clock that moves on. A locked row
// (its owner ends it or gives it a nonce) is left alone.
const lockExpired = `
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
	       select command_id from commands
	        where chain_id = @chain and sender = s.sender and state = 'accepted'
	          and expires_at <= now() - @after * interval '1 millisecond'
	        order by expires_at limit @most for no key update skip locked) e
	 limit @most`

// lockDismissible reads of one sender what expired or was cancelled, each by its index. Locked rows are left alone.
const lockDismissible = `
	select command_id from commands
	 where command_id in (
	       (select command_id from commands
	         where chain_id = @chain and sender = @sender and state = 'accepted' and expires_at <= now()
	         order by expires_at limit @most)
	        union all
	       (select command_id from commands
	         where chain_id = @chain and sender = @sender and state = 'accepted' and cancel_requested limit @most))
	   and state = 'accepted' limit @most for no key update skip locked`

const setExpired = `
	update commands c
	   set state = case when c.cancel_requested then 'cancelled' else 'expired' end,
	       code = case when c.cancel_requested then 'cancelled' else 'expired' end,
	       detail = case when c.cancel_requested then '' else 'its time was over before it could be sent' ||
	                     case when c.code = '' then '' else '; it waited for: ' || concat_ws(', ', c.code, nullif(c.detail, '')) end end,
	       answered_at = clock_timestamp(), next_look = 'infinity'
	 where c.command_id = any(@ids) and c.state = 'accepted'
	returning ` + finishedColumns

// DismissExpired answers up to 500 commands that nothing was ever signed for and that expired at least
// `after` ago, of any sender of the chain, also of one that no instance has. An owner does the same for
// its own sender, at once; this is for those that have none. It may be called by any number of instances at the
// same time.
func DismissExpired(ctx context.Context, db *pgxpool.Pool, chainID int64,
	after time.Duration) (answers []command.Answer, err error) {
	return dismiss(ctx, db, chainID, lockExpired, pgx.StrictNamedArgs{"after": after.Milliseconds()})
}

// dismiss answers what a statement locks of the commands that have no nonce. It needs no epoch: T1 gives no nonce to
// what has expired or was cancelled, and both lock the command's row, so a command either has its nonce or is answered
// here, never both.
func dismiss(ctx context.Context, db *pgxpool.Pool, chainID int64, lock string,
	args pgx.StrictNamedArgs) (answers []command.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	args["chain"], args["most"] = chainID, maxDismissed
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lock, args)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(ids) == 0 {
			return err
		}

		rows, _ = tx.Query(ctx, setExpired, pgx.StrictNamedArgs{"ids": ids})
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
