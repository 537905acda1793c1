package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Selection says which stored events a replay publishes again. Zero fields do not restrict; From and To are blocks, inclusive.
type Selection struct {
	From, To int64
	Escrow   string // lower case
	EventID  string
	// WholeEscrows widens a range to the whole history of each escrow that has an event in it: consumers that
	// are not idempotent can only rebuild an escrow from its first event on.
	WholeEscrows bool
}

// ReplayCount says what a replay would publish.
type ReplayCount struct {
	Events, Escrows int
}

// Count returns what Replay would publish.
func (l *Ledger) Count(ctx context.Context, s Selection) (n ReplayCount, err error) {
	err = l.cfg.DB.QueryRow(ctx, `select count(*), count(distinct escrow) from (`+selectReplay+`) p`, l.replayArgs(s)).Scan(&n.Events, &n.Escrows)
	if err != nil {
		return n, fmt.Errorf("count the events to replay: %w", err)
	}
	return n, nil
}

// Replay queues events for publication once more, marked as a replay, in their order; the owners of the slots publish them. The rows
// are written in steps of whole escrows, and each reports how many events are queued so far.
func (l *Ledger) Replay(ctx context.Context, s Selection, progress func(events int)) (total int, err error) {
	if s == (Selection{}) || s == (Selection{WholeEscrows: true}) {
		return 0, errors.New("replay everything: name a range of blocks, an escrow or an event")
	}
	rows, _ := l.cfg.DB.Query(ctx, `select distinct escrow from (`+selectReplay+`) p order by escrow`, l.replayArgs(s))
	escrows, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("list the escrows to replay: %w", err)
	}
	const step = 500
	for len(escrows) > 0 {
		n := min(step, len(escrows))
		args := l.replayArgs(s)
		args["escrows"] = escrows[:n]
		tag, err := l.cfg.DB.Exec(ctx, queueReplay, args)
		if err != nil {
			return total, fmt.Errorf("queue a replay of %d escrows (%d events are queued already): %w", n, total, err)
		}
		total += int(tag.RowsAffected())
		escrows = escrows[n:]
		if progress != nil {
			progress(total)
		}
		if _, err := l.cfg.DB.Exec(ctx, `select pg_notify($1, $2::bigint::text)`, OutboxChannel, l.cfg.ChainID); err != nil {
			return total, fmt.Errorf("tell the owners of the replay: %w", err)
		}
	}
	return total, nil
}

func (l *Ledger) replayArgs(s Selection) pgx.StrictNamedArgs {
	var names []string
	for _, n := range l.cfg.EventNames {
		if l.cfg.Publishes(n) {
			names = append(names, n)
		}
	}
	return pgx.StrictNamedArgs{"chain": l.cfg.ChainID, "from": s.From, "to": s.To, "escrow": s.Escrow, "event": s.EventID, "whole": s.WholeEscrows, "names": names}
}

// selectReplay is what a Selection means. EscrowDeployed comes before what its own transaction emitted earlier.
const selectReplay = `
	with hit as (
		select escrow, event_id from processed_events
		where chain_id = @chain and state = 'canonical' and event_type = any(@names)
		  and (@from::bigint = 0 or block_number >= @from) and (@to::bigint = 0 or block_number <= @to)
		  and (@escrow = '' or escrow = @escrow) and (@event = '' or event_id = @event))
	select p.slot, p.escrow, p.event_id, p.event_type, p.block_number, p.log_index from processed_events p
	where p.chain_id = @chain and p.state = 'canonical' and p.event_type = any(@names)
	  and ((@whole::boolean and p.escrow in (select escrow from hit)) or p.event_id in (select event_id from hit))`

const queueReplay = `
	insert into outbox (chain_id, slot, escrow, event_id, event_type, kind)
	select @chain, slot, escrow, event_id, event_type, 2 from (` + selectReplay + `) p where escrow = any(@escrows)
	order by escrow, event_type <> 'EscrowDeployed', block_number, log_index`
