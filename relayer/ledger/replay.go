package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Selection says which stored events a replay publishes again. Zero fields do not restrict; From
// and To are blocks, inclusive.
type Selection struct {
	From, To int64
	Escrow   common.Address
	EventID  string // as Event.ID writes it
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
	args, err := l.replayArgs(s)
	if err != nil {
		return n, err
	}

	err = l.cfg.DB.QueryRow(ctx, `select count(*), count(distinct escrow) from (`+selectReplay+`) p`,
		args).Scan(&n.Events, &n.Escrows)
	if err != nil {
		return n, fmt.Errorf("count the events to replay: %w", err)
	}

	return n, nil
}

// replayStep is how many escrows a step of a replay queues.
const replayStep = 500

// Replay queues events for publication once more, marked as a replay, in their order; the owners of
// the slots publish them. The rows are written in steps of whole escrows, and each reports how many
// events are queued so far.
func (l *Ledger) Replay(ctx context.Context, s Selection, progress func(events int)) (total int, err error) {
	if s == (Selection{}) || s == (Selection{WholeEscrows: true}) {
		return 0, errors.New("replay everything: name a range of blocks, an escrow or an event")
	}

	args, err := l.replayArgs(s)
	if err != nil {
		return 0, err
	}

	rows, _ := l.cfg.DB.Query(ctx, `select distinct escrow from (`+selectReplay+`) p order by escrow`, args)
	escrows, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return 0, fmt.Errorf("list the escrows to replay: %w", err)
	}

	for len(escrows) > 0 {
		n := min(replayStep, len(escrows))
		args["escrows"] = escrows[:n]
		queued, err := l.replay(ctx, args)
		if err != nil {
			return total, fmt.Errorf("queue a replay of %d escrows (%d events are queued already): %w", n, total, err)
		}

		total += queued
		escrows = escrows[n:]
		if progress != nil {
			progress(total)
		}
	}

	return total, nil
}

// replay queues one step. Retention and a rollback wait for it, and it for them: else they could
// take an event away between its choice and its row.
func (l *Ledger) replay(ctx context.Context, args pgx.StrictNamedArgs) (queued int, err error) {
	err = l.tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, HistoryKey(l.cfg.ChainID)); err != nil {
			return fmt.Errorf("lock the history of chain %d: %w", l.cfg.ChainID, err)
		}

		tag, err := tx.Exec(ctx, queueReplay, args) // a statement of its own: it sees what those have done that held the lock
		if err != nil {
			return err
		}

		queued = int(tag.RowsAffected())

		return l.notify(ctx, tx, OutboxChannel)
	})

	return queued, err
}

func (l *Ledger) replayArgs(s Selection) (pgx.StrictNamedArgs, error) {
	var names []string
	for _, n := range l.cfg.EventNames {
		if l.cfg.Publishes(n) {
			names = append(names, n)
		}
	}

	args := pgx.StrictNamedArgs{"chain": l.cfg.ChainID, "from": s.From, "to": s.To, "whole": s.WholeEscrows,
		"names":  names,
		"escrow": []byte(nil), "tx": []byte(nil), "index": 0, "occurrence": 0}
	if s.Escrow != (common.Address{}) {
		args["escrow"] = s.Escrow[:]
	}

	if s.EventID != "" {
		tx, index, occurrence, err := contract.ParseID(s.EventID)
		if err != nil {
			return nil, err
		}

		args["tx"], args["index"], args["occurrence"] = tx[:], int32(index), occurrence
	}

	return args, nil
}

// selectReplay is what a Selection means.
const selectReplay = `
	with kinds as (select id from event_types where name = any(@names)),
	hit as (
		select escrow, block_number, log_index from events
		where chain_id = @chain and type in (select id from kinds)
		  and (@from::bigint = 0 or block_number >= @from) and (@to::bigint = 0 or block_number <= @to)
		  and (@escrow::bytea is null or escrow = @escrow)
		  and (@tx::bytea is null or tx_hash = @tx and log_index = @index::integer and occurrence = @occurrence::smallint))
	select p.slot, p.escrow, p.block_number, p.log_index, p.type from events p
	where p.chain_id = @chain and p.type in (select id from kinds)
	  and (@whole::boolean and p.escrow in (select escrow
		from hit) or (p.block_number, p.log_index) in (select block_number, log_index from hit))`

// queueReplay adds the rows. EscrowDeployed comes before what its own transaction emitted earlier.
// An event that nobody was told of before, since its name was not configured then, counts as told
// from now on: a reorganisation has to retract it.
const queueReplay = `
	with chosen as (
		select * from (` + selectReplay + `) p where escrow = any(@escrows::bytea[])),
	told as (
		update events e set told = true from chosen c
		where e.chain_id = @chain and e.block_number = c.block_number and e.log_index = c.log_index and not e.told
			and e.type <> 1)
	insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type, kind)
	select @chain, block_number, log_index, slot, escrow, (select name from event_types t where t.id = c.type), 2
	from chosen c order by escrow, type <> 1, block_number, log_index`
