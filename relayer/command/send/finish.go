package send

import (
	"context"
	"errors"
	"math/big"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// ending is the final answer to a command, as far as the row does not say it. Its block is that of the transaction, or
// the one that decided what the answer says; 0: none did.
type ending struct {
	command.Answer
	event // that the answer rests on; zero: it needs none
}

// event is what the ledger has to have stored, in the block of the ending.
type event struct {
	Tx   string `json:"tx"` // empty: there is none
	Name string `json:"name"`
}

// effects are the events that commands cause.
var effects = map[command.Kind]string{command.Approve: "Approved", command.Release: "EscrowReleased",
	command.Refund: "EscrowRefunded", command.Create: "EscrowDeployed"}

// finished is the answer to a command, and what of its reservation goes back to the sums of its sender, or had gone.
type finished struct {
	command.Answer
	FreeFees  wei
	FreeValue wei
}

// AnswerColumns are what pgx.RowToStructByNameLax[command.Answer] reads of a command c of the table commands.
const AnswerColumns = `
	c.command_id, 2 * c.reopened + (c.answered_at is not null)::int as revision, c.state, c.code,
	c.detail, coalesce(c.winner, '') as winner,
	c.kind, c.sender, c.escrow, c.reference, c.reply_to, coalesce(c.tx_hash, '') as transaction,
	coalesce(c.block_number, 0) as block,
	coalesce(c.block_hash, '') as block_hash, coalesce(c.event_id, '') as event_id,
	coalesce(c.fee_paid::text, '') as fee_paid`

// finishedColumns are what a finished is read from.
const finishedColumns = AnswerColumns + `,
	case when ` + counted + ` then c.reserved - coalesce(c.fee_paid, 0) else 0 end as free_fees,
	case when ` + counted + ` and c.state not in ('done', 'done_late') then c.value else 0 end as free_value`

// counted is whether the sums of its sender, which are those of one day, have what was reserved for a command c.
const counted = `
	c.reserve_day = (select s.spend_day from senders s where s.chain_id = c.chain_id and s.address = c.sender)`

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

// setEnded writes the final state, under which no more is changed unless a rollback of the ledger
// takes it back. What is not under way any more is left alone, and so is what rests on an event that the
// ledger has not stored, or has taken back.
const setEnded = `
	update commands c
	   set state = case when e.state = 'done' and p.block_timestamp > extract(epoch from c.expires_at) then 'done_late' else e.state end,
	       code = coalesce(e.code, ''), detail = coalesce(e.detail, ''), winner = e.winner, tx_hash = e.transaction_hash,
	       block_number = e.block_number, block_hash = e.block_hash, fee_paid = e.fee_paid,
	       event_id = case when e.state <> 'refused' then p.event_id end, answered_at = clock_timestamp(), next_look = 'infinity'
	  from json_to_recordset(@endings::json)
	       as e (command_id text, state text, code text, detail text, winner text, transaction_hash text, block_number bigint, block_hash text,
	             fee_paid numeric, tx text, name text)
	  left join commands o on o.command_id = e.command_id
	  left join lateral (
	       select event_id, block_timestamp from processed_events
	        where e.tx <> '' and chain_id = @chain and escrow_key = bytes(o.escrow) and tx_key = bytes(e.tx) and event_type = e.name
	          and state = 'canonical' and block_hash = e.block_hash limit 1) p on true
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = e.command_id and c.answered_at is null
	   and (e.tx = '' or p.event_id is not null)
	returning ` + finishedColumns

// dropClaims frees what a command had claimed that ended without that effect, so that it can be asked for again.
const dropClaims = `
	with free as (
	  select k.command_id from command_claims k join commands c using (chain_id, command_id)
	   where k.chain_id = @chain and k.command_id = any(@ids) and c.state not in ('done', 'done_late')
	   order by k.escrow, k.effect for update of k)
	delete from command_claims k using free where k.chain_id = @chain and k.command_id = free.command_id`

// addSpent changes the sums of a sender. Fees and value are below 0 where something is given back.
const addSpent = `
	update senders
	   set spent_fees = greatest(spent_fees + @fees, 0), spent_value = greatest(spent_value + @value, 0),
	       updated_at = now()
	 where chain_id = @chain and address = @sender`

// keepGeneration keeps the ledger from rolling back until the transaction ends, and tells how often it has.
const keepGeneration = `select generation from leadership where chain_id = $1 for share`

// errMoved means that the ledger has rolled back since the chain was looked at.
var errMoved = errors.New("the ledger has rolled back meanwhile")

// finish is T3: final states, their answers, the claims and the budget, in one transaction. What was read of the
// chain to decide them has to be of the ledger's branch, as of its generation: then a later rollback finds the
// answers by their blocks (Reopen). errMoved where the generation is another one. Endings with an event that the ledger
// lacks are left out.
func (s *store) finish(ctx context.Context, endings []ending, generation int64) (answers []command.Answer, err error) {
	if len(endings) == 0 {
		return nil, nil
	}

	err = s.locked(ctx, "store final states", pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if !slices.ContainsFunc(endings, func(e ending) bool { return e.Block != 0 }) {
			return nil
		}

		var now int64
		if err := tx.QueryRow(ctx, keepGeneration, s.chainID).Scan(&now); err != nil || now == generation {
			return err
		}

		return errMoved
	}, func(ctx context.Context, tx pgx.Tx, _ *account) error {
		rows, _ := tx.Query(ctx, setEnded, s.args(pgx.StrictNamedArgs{"endings": endings}))
		var fees, value wei
		if answers, fees, value, err = collectFinished(rows); err != nil || len(answers) == 0 {
			return err
		}

		if err := outbox.AddAnswers(ctx, tx, s.chainID, answers); err != nil {
			return err
		}

		ids := column.Of(answers, func(a *command.Answer) string { return a.CommandID })
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

// setReopened takes final states back: what has a nonce is under way again, the rest waits again. The order is
// that of finish: the senders' rows before those of their commands.
// The two last columns are what finish had given back to the sums.
const setReopened = `
	with gone as (
	  select command_id, sender, state, fee_paid from commands
	   where chain_id = @chain and block_number between @from and @to and answered_at is not null),
	held as materialized (
	  select from senders where chain_id = @chain and address in (select sender from gone) order by address for update)
	update commands c
	   set state = case when c.nonce is null then 'accepted' else 'sent' end, code = 'reorganisation', reopened = c.reopened + 1, answered_at = null,
	       detail = 'its block is not on the chain any more', tx_hash = null, block_number = null, block_hash = null, fee_paid = null, event_id = null,
	       next_look = clock_timestamp()
	  from gone o
	 where o.command_id = c.command_id and (select count(*) from held) >= 0
	returning ` + AnswerColumns + `,
	       case when ` + counted + ` then c.reserved - coalesce(o.fee_paid, 0) else 0 end as free_fees,
	       case when ` + counted + ` and o.state not in ('done', 'done_late') then c.value else 0 end as free_value`

// claimAgain gives claims to commands that lack them, where no other one has them: elsewhere the chain decides. The
// order is that of takeClaims in relayer/command/intake.
const claimAgain = `
	insert into command_claims (chain_id, escrow, effect, command_id)
	select chain_id, escrow, effect, command_id from commands where chain_id = @chain and command_id = any(@ids)
	 order by escrow, effect, seq
	on conflict do nothing`

// Reopen takes back the answers that rest on blocks from..to, in a transaction of the ledger that takes back what it
// has stored of these blocks, and that keeps finish from answering meanwhile. Their commands are under way again, with
// their part of the budget, whichever instance has their senders.
func Reopen(ctx context.Context, tx pgx.Tx, chainID, from, to int64) error {
	rows, _ := tx.Query(ctx, setReopened, pgx.StrictNamedArgs{"chain": chainID, "from": from, "to": to})
	all, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[finished])
	if err != nil || len(all) == 0 {
		return err
	}

	ids, answers := make([]string, len(all)), make([]command.Answer, len(all))
	for i, e := range all {
		ids[i], answers[i] = e.CommandID, e.Answer
		answers[i].State = command.Reopened
		if _, err := tx.Exec(ctx, addSpent, pgx.StrictNamedArgs{"chain": chainID, "sender": e.Sender,
			"fees": e.FreeFees, "value": e.FreeValue}); err != nil {
			return err
		}
	}

	if _, err := tx.Exec(ctx, claimAgain, pgx.StrictNamedArgs{"chain": chainID, "ids": ids}); err != nil {
		return err
	}

	if _, err := tx.Exec(ctx, Notify, Channel, chainID); err != nil {
		return err
	}

	return outbox.AddAnswers(ctx, tx, chainID, answers)
}
