package send

import (
	"cmp"
	"context"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/reply"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// ending is the final state of a command.
type ending struct {
	id           string
	state        command.State
	code, detail string
	tx           string // and the block that it is in, or that the event of an `already` is in
	block        *int64
	blockHash    *string
	feePaid      *big.Int
	eventID      string
	event        *event // that eventID is to name; nil: eventID stands, or there is none
}

// event is a log that a command caused.
type event struct {
	escrow common.Address
	tx     common.Hash
	index  uint
	number int64 // of its block
	block  common.Hash
}

// selectEvent finds what is stored under a transaction and log index: the event itself, or others that had
// them before a reorganisation. coming says that the ledger may store something there yet: the leader, or the
// owner of the escrow's slot, has not come to the block, or the escrow is still caught up.
const selectEvent = `
	with stored as (
		select event_id, state = 'canonical' and block_hash = @block as ours
		  from processed_events
		 where chain_id = @chain and escrow_key = bytes(@escrow) and tx_key = bytes(@tx) and log_index = @index)
	select coalesce((select event_id from stored where ours), '') as event_id,
	       exists (select from stored)
	       or exists (select from leadership where chain_id = @chain and next_block <= @number)
	       or exists (select from slot_ownership s
	           left join cursors c on c.chain_id = s.chain_id and c.instance_id = s.owner
	           where s.chain_id = @chain and s.slot = @slot and coalesce(c.next_block, s.next_block) <= @number)
	       or exists (select from late_escrows
	           where chain_id = @chain and address = bytes(@escrow) and monitored < @number) as coming`

// eventID is the id under which an event is published: {tx_hash}:{log_index}, with the number that
// the ledger adds where that had another content before. While the ledger has not stored it and may
// yet, ok is false: it may just be storing what was there before a reorganisation.
func (s *store) eventID(ctx context.Context, e event) (id string, ok bool, err error) {
	type row struct {
		EventID string
		Coming  bool
	}
	plain := message.EventID(e.tx, e.index, 0)
	all, err := collect(ctx, s.db, "the id of event "+plain, pgx.RowToStructByName[row], selectEvent, pgx.StrictNamedArgs{
		"chain": s.chainID, "escrow": registry.Text(e.escrow), "slot": partition.Slot(e.escrow), "tx": e.tx.Hex(),
		"index": e.index, "number": e.number, "block": e.block.Hex()})
	if err != nil {
		return "", false, err
	}

	id = cmp.Or(all[0].EventID, plain)

	return id, id == all[0].EventID || !all[0].Coming, nil
}

// name gives endings the ids of their events, and returns apart those whose event has none yet.
func (s *store) name(ctx context.Context, endings []ending) (named, unnamed []ending, err error) {
	for _, e := range endings {
		ok := true
		if e.event != nil {
			if e.eventID, ok, err = s.eventID(ctx, *e.event); err != nil {
				return nil, nil, err
			}
		}

		if ok {
			named = append(named, e)
		} else {
			unnamed = append(unnamed, e)
		}
	}

	return named, unnamed, nil
}

// finished is the answer to a command, and what of its reservation goes back to the budget of today, or had gone.
type finished struct {
	command.Answer
	FreeFees  wei
	FreeValue wei
}

// finishedColumns are what a finished is read from.
const finishedColumns = reply.Columns + `,
	case when c.reserve_day = (now() at time zone 'utc')::date then c.reserved - coalesce(c.fee_paid, 0) else 0 end as free_fees,
	case when c.reserve_day = (now() at time zone 'utc')::date and c.state not in ('done', 'done_late')
	     then c.value else 0 end as free_value`

// collectFinished reads answers and the sums of what is free with them.
func collectFinished(rows pgx.Rows) (answers []command.Answer, fees, value wei, err error) {
	fees, value = wei{new(big.Int)}, wei{new(big.Int)}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[finished])
	for _, e := range all {
		answers = append(answers, e.Answer)
		fees.Add(fees.Int, e.FreeFees.Int)
		value.Add(value.Int, e.FreeValue.Int)
	}

	return answers, fees, value, err
}

// setEnded writes the final state, under which no more is changed unless a deep reorganisation
// takes it back. What is not under way any more is left alone.
const setEnded = `
	update commands c
	   set state = e.state, code = e.code, detail = e.detail, tx_hash = nullif(e.tx, ''), block_number = e.block, block_hash = e.block_hash, fee_paid = e.fee,
	       event_id = nullif(e.event_id, ''), answered_at = clock_timestamp(), next_look = 'infinity'
	  from unnest(@ids::text[], @states::text[], @codes::text[], @details::text[], @txs::text[], @blocks::bigint[], @block_hashes::text[], @fees::numeric[],
	       @event_ids::text[]) as e (id, state, code, detail, tx, block, block_hash, fee, event_id)
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = e.id and c.answered_at is null
	returning ` + finishedColumns

// dropClaims frees what a command had claimed that ended without that effect, so that it can be asked for again.
const dropClaims = `
	delete from command_claims k
	 using commands c
	 where k.chain_id = @chain and k.command_id = any(@ids) and c.chain_id = k.chain_id and c.command_id = k.command_id
		and c.state not in ('done', 'done_late')`

// addSpent changes what is spent today. Fees and value are below 0 where something is given back.
const addSpent = `
	update senders
	   set spent_fees = greatest(spent_fees + @fees, 0), spent_value = greatest(spent_value + @value, 0),
	       updated_at = now()
	 where chain_id = @chain and address = @sender and spend_day = (now() at time zone 'utc')::date`

// finish is T3: final states, their answers, the claims and the budget, in one transaction.
func (s *store) finish(ctx context.Context, endings []ending) (answers []command.Answer, err error) {
	if len(endings) == 0 {
		return nil, nil
	}

	ids := column.Of(endings, func(e *ending) string { return e.id })
	ended := s.args(pgx.StrictNamedArgs{
		"ids":          ids,
		"states":       column.Of(endings, func(e *ending) string { return string(e.state) }),
		"codes":        column.Of(endings, func(e *ending) string { return e.code }),
		"details":      column.Of(endings, func(e *ending) string { return e.detail }),
		"txs":          column.Of(endings, func(e *ending) string { return e.tx }),
		"blocks":       column.Of(endings, func(e *ending) *int64 { return e.block }),
		"block_hashes": column.Of(endings, func(e *ending) *string { return e.blockHash }),
		"fees":         column.Of(endings, func(e *ending) wei { return wei{e.feePaid} }),
		"event_ids":    column.Of(endings, func(e *ending) string { return e.eventID }),
	})
	err = s.write(ctx, "store final states", func(ctx context.Context, tx pgx.Tx, _ *account) error {
		rows, _ := tx.Query(ctx, setEnded, ended)
		var fees, value wei
		if answers, fees, value, err = collectFinished(rows); err != nil || len(answers) == 0 {
			return err
		}

		if err := reply.Insert(ctx, tx, s.chainID, answers); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, dropClaims, pgx.StrictNamedArgs{"chain": s.chainID, "ids": ids}); err != nil {
			return err
		}

		if fees.Sign() == 0 && value.Sign() == 0 {
			return nil
		}

		back := pgx.StrictNamedArgs{"fees": wei{fees.Neg(fees.Int)}, "value": wei{value.Neg(value.Int)}}
		_, err = tx.Exec(ctx, addSpent, s.args(back))

		return err
	})

	return answers, err
}

const selectBlocks = `
	select distinct block_number as number, bytes(block_hash) as hash
	  from commands
	 where chain_id = @chain and sender = @sender and block_number is not null and block_number < @below
		and answered_at is not null
	 order by block_number desc
	 limit @most`

// answeredBelow returns the blocks below a number that answers rest on, the newest first.
func (s *store) answeredBelow(ctx context.Context, below uint64) ([]Block, error) {
	return collect(ctx, s.db, "the answers of sender "+s.sender, pgx.RowToStructByName[Block], selectBlocks,
		s.args(pgx.StrictNamedArgs{"below": below, "most": HashesAtOnce}))
}

// setReopened takes final states back: what has a nonce is under way again, the rest waits again.
// The two last columns are what finish had given back to the budget of today.
const setReopened = `
	update commands c
	   set state = case when c.nonce is null then 'accepted' else 'sent' end, code = 'reorganisation', reopened = c.reopened + 1, answered_at = null,
	       detail = 'its block is not on the chain any more', tx_hash = null, block_number = null, block_hash = null, fee_paid = null, event_id = null,
	       next_look = clock_timestamp()
	  from commands o
	 where o.chain_id = c.chain_id and o.command_id = c.command_id
	   and c.chain_id = @chain and c.sender = @sender and c.block_hash = any(@blocks) and c.answered_at is not null
	returning ` + reply.Columns + `,
	       case when c.reserve_day = (now() at time zone 'utc')::date then c.reserved - coalesce(o.fee_paid, 0) else 0 end as free_fees,
	       case when c.reserve_day = (now() at time zone 'utc')::date and o.state not in ('done', 'done_late') then c.value else 0 end as free_value`

// reopen says that the answers that rest on blocks are void and makes their commands open again,
// with their part of the budget. Their claims come back where nobody else has them; elsewhere the
// chain decides.
func (s *store) reopen(ctx context.Context, blocks []string) (n int, err error) {
	err = s.write(ctx, "reopen commands", func(ctx context.Context, tx pgx.Tx, _ *account) error {
		rows, _ := tx.Query(ctx, setReopened, s.args(pgx.StrictNamedArgs{"blocks": blocks}))
		answers, fees, value, err := collectFinished(rows)
		if err != nil {
			return err
		}

		n = len(answers)
		ids := make([]string, n)
		for i, a := range answers {
			ids[i], answers[i].State = a.CommandID, command.Reopened
		}

		const claimAgain = `
			insert into command_claims (chain_id, escrow, effect, command_id)
			select chain_id, escrow, effect, command_id from commands where chain_id = $1 and command_id = any($2)
			on conflict do nothing`
		if _, err := tx.Exec(ctx, claimAgain, s.chainID, ids); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, addSpent, s.args(pgx.StrictNamedArgs{"fees": fees, "value": value})); err != nil {
			return err
		}

		return reply.Insert(ctx, tx, s.chainID, answers)
	})

	return n, err
}

const selectDismissible = `
	select command_id, cancel_requested
	  from commands
	 where chain_id = @chain and sender = @sender and state in ('accepted', 'held')
	   and (expires_at <= clock_timestamp() or cancel_requested)
	 order by seq
	 limit @most`

// dismissible are the endings of what expired or was cancelled before it had a nonce.
func (s *store) dismissible(ctx context.Context) ([]ending, error) {
	return collect(ctx, s.db, "what expired of sender "+s.sender, func(row pgx.CollectableRow) (ending, error) {
		var id string
		var cancelled bool
		if err := row.Scan(&id, &cancelled); err != nil || !cancelled {
			return ending{id: id, state: command.Expired, code: command.CodeExpired, detail: tooLate}, err
		}

		return ending{id: id, state: command.Cancelled, code: command.CodeCancelled}, nil
	}, selectDismissible, s.args(pgx.StrictNamedArgs{"most": maxDismissed}))
}
