package send

import (
	"context"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/reply"
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
	block  common.Hash
}

// selectEvent finds what is stored under a transaction and log index: the event itself, or others
// that had them before a reorganisation.
const selectEvent = `
	select event_id, state = 'canonical' and block_hash = @block
	  from processed_events
	 where chain_id = @chain and escrow_key = bytes(@escrow) and tx_key = bytes(@tx) and log_index = @index`

// eventID is the id under which an event is published: {tx_hash}:{log_index}, with the number that
// the ledger adds where that had another content before. Until the ledger has stored it then, ok is
// false.
func (s *store) eventID(ctx context.Context, e event) (id string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, _ := s.db.Query(ctx, selectEvent, pgx.StrictNamedArgs{"chain": s.chainID, "escrow": text(e.escrow),
		"tx": e.tx.Hex(), "index": int(e.index), "block": e.block.Hex()})
	plain := message.EventID(e.tx, e.index, 0)
	ambiguous, stored := false, false
	_, err = pgx.ForEachRow(rows, []any{&id, &stored}, func() error {
		ambiguous = true
		if stored {
			plain, ok = id, true
		}

		return nil
	})
	if err != nil {
		return "", false, fmt.Errorf("read the id of event %s: %w", plain, err)
	}

	return plain, ok || !ambiguous, nil
}

// name gives endings the ids of their events. Those whose event has no id yet are left out: they
// are looked at again with the next block.
func (s *store) name(ctx context.Context, endings []ending) (named []ending, err error) {
	for _, e := range endings {
		ok := true
		if e.event != nil {
			if e.eventID, ok, err = s.eventID(ctx, *e.event); err != nil {
				return nil, err
			}
		}

		if ok {
			named = append(named, e)
		}
	}

	return named, nil
}

// endedColumns are what scanAnswer takes of a command that has ended: its answer, and what of its
// reservation goes back to the day.
const endedColumns = `
	c.command_id, c.kind, c.sender, c.escrow, c.state, c.code, c.detail, coalesce(c.winner, ''), c.reference,
	c.reply_to, c.reopened, coalesce(c.tx_hash, ''), c.block_number, coalesce(c.block_hash, ''), c.fee_paid,
	coalesce(c.event_id, ''),
	case when c.reserve_day = (now() at time zone 'utc')::date then c.reserved - coalesce(c.fee_paid, 0) else 0 end,
	case when c.reserve_day = (now() at time zone 'utc')::date and c.state not in ('done', 'done_late')
	     then c.value else 0 end`

// setEnded writes the final state, under which no more is changed unless a deep reorganisation
// takes it back. What is not under way any more is left alone.
const setEnded = `
	update commands c
	   set state = e.state, code = e.code, detail = e.detail, tx_hash = nullif(e.tx, ''), block_number = e.block, block_hash = e.block_hash, fee_paid = e.fee,
	       event_id = nullif(e.event_id, ''), answered_at = clock_timestamp(), next_look = 'infinity'
	  from unnest(@ids::text[], @states::text[], @codes::text[], @details::text[], @txs::text[], @blocks::bigint[], @block_hashes::text[], @fees::numeric[],
	       @event_ids::text[]) as e (id, state, code, detail, tx, block, block_hash, fee, event_id)
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = e.id and c.answered_at is null
	returning ` + endedColumns

// dropClaims frees what a command had claimed that ended without that effect, so that it can be asked for again.
const dropClaims = `
	delete from command_claims k
	 using commands c
	 where k.chain_id = @chain and k.command_id = any(@ids) and c.chain_id = k.chain_id and c.command_id = k.command_id
		and c.state not in ('done', 'done_late')`

const giveBack = `
	update senders set spent_fees = greatest(spent_fees - @fees, 0), spent_value = greatest(spent_value - @value, 0), updated_at = now()
	 where chain_id = @chain and address = @sender and spend_day = (now() at time zone 'utc')::date`

// finish is T3: final states, their answers, the claims and the budget, in one transaction.
func (s *store) finish(ctx context.Context, endings []ending) (answers []command.Answer, err error) {
	if len(endings) == 0 {
		return nil, nil
	}

	n := len(endings)
	ids, states, codes, details, txs := make([]string, n), make([]string, n), make([]string, n), make([]string, n),
		make([]string, n)
	blocks, hashes, fees, events := make([]*int64, n), make([]*string, n), make([]pgtype.Numeric, n), make([]string, n)
	for i, e := range endings {
		ids[i], states[i], codes[i], details[i], txs[i] = e.id, string(e.state), e.code, e.detail, e.tx
		blocks[i], hashes[i], fees[i], events[i] = e.block, e.blockHash, numeric(e.feePaid), e.eventID
	}

	err = s.write(ctx, "store final states", func(ctx context.Context, tx pgx.Tx, _ *account) error {
		answers = nil
		freeFees, freeValue := new(big.Int), new(big.Int)
		rows, _ := tx.Query(ctx, setEnded, s.args(pgx.StrictNamedArgs{
			"ids": ids, "states": states, "codes": codes, "details": details, "txs": txs, "blocks": blocks,
			"block_hashes": hashes, "fees": fees, "event_ids": events,
		}))
		answers, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (command.Answer, error) {
			a, fees, value, err := scanAnswer(row)
			freeFees.Add(freeFees, fees)
			freeValue.Add(freeValue, value)

			return a, err
		})
		if err != nil || len(answers) == 0 {
			return err
		}

		if err := reply.Insert(ctx, tx, s.chainID, answers); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, dropClaims, pgx.StrictNamedArgs{"chain": s.chainID, "ids": ids}); err != nil {
			return err
		}

		if freeFees.Sign() == 0 && freeValue.Sign() == 0 {
			return nil
		}

		_, err = tx.Exec(ctx, giveBack, s.args(pgx.StrictNamedArgs{"fees": numeric(freeFees), "value": numeric(freeValue)}))

		return err
	})
	if err != nil {
		return nil, err
	}

	return answers, nil
}

func scanAnswer(row pgx.CollectableRow) (a command.Answer, fees, value *big.Int, err error) {
	var reopened int
	var block *int64
	var paid, freeFees, freeValue pgtype.Numeric
	err = row.Scan(&a.CommandID, &a.Kind, &a.Sender, &a.Escrow, &a.State, &a.Code, &a.Detail, &a.Winner, &a.Reference,
		&a.ReplyTo, &reopened, &a.Transaction,
		&block, &a.BlockHash, &paid, &a.EventID, &freeFees, &freeValue)
	a.Revision = 2*reopened + 1
	if block != nil {
		a.Block = *block
	}

	if paid.Valid {
		a.FeePaid = integer(paid).String()
	}

	return a, integer(freeFees), integer(freeValue), err
}

const selectBlocks = `
	select distinct block_number, block_hash
	  from commands
	 where chain_id = @chain and sender = @sender and block_number is not null and block_number < @below
		and answered_at is not null
	 order by block_number desc
	 limit @most`

// answeredBelow returns the blocks below a number that answers rest on, the newest first.
func (s *store) answeredBelow(ctx context.Context, below uint64) ([]Block, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, _ := s.db.Query(ctx, selectBlocks, s.args(pgx.StrictNamedArgs{"below": int64(below), "most": HashesAtOnce}))
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Block, err error) {
		var number int64
		var hash string
		err = row.Scan(&number, &hash)
		b = Block{uint64(number), common.HexToHash(hash)}

		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the answers of sender %s: %w", s.sender, err)
	}

	return all, nil
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
	returning c.command_id, c.kind, c.sender, c.escrow, 'reopened', c.code, c.detail, '', c.reference, c.reply_to, c.reopened, '', c.block_number, '', c.fee_paid, '',
	       case when c.reserve_day = (now() at time zone 'utc')::date then c.reserved - coalesce(o.fee_paid, 0) else 0 end,
	       case when c.reserve_day = (now() at time zone 'utc')::date and o.state not in ('done', 'done_late') then c.value else 0 end`

const takeAgain = `
	update senders set spent_fees = spent_fees + @fees, spent_value = spent_value + @value, updated_at = now()
	 where chain_id = @chain and address = @sender and spend_day = (now() at time zone 'utc')::date`

// reopen says that the answers that rest on blocks are void and makes their commands open again,
// with their part of the budget. Their claims come back where nobody else has them; elsewhere the
// chain decides.
func (s *store) reopen(ctx context.Context, blocks []string) (n int, err error) {
	err = s.write(ctx, "reopen commands", func(ctx context.Context, tx pgx.Tx, _ *account) error {
		fees, value := new(big.Int), new(big.Int)
		rows, _ := tx.Query(ctx, setReopened, s.args(pgx.StrictNamedArgs{"blocks": blocks}))
		answers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (command.Answer, error) {
			a, hadFees, hadValue, err := scanAnswer(row)
			a.Revision-- // even: not final
			fees.Add(fees, hadFees)
			value.Add(value, hadValue)

			return a, err
		})
		if err != nil {
			return err
		}

		n = len(answers)
		ids := make([]string, n)
		for i, a := range answers {
			ids[i] = a.CommandID
		}

		const claimAgain = `
			insert into command_claims (chain_id, escrow, effect, command_id)
			select chain_id, escrow, effect, command_id from commands where chain_id = $1 and command_id = any($2)
			on conflict do nothing`
		if _, err := tx.Exec(ctx, claimAgain, s.chainID, ids); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, takeAgain,
			s.args(pgx.StrictNamedArgs{"fees": numeric(fees), "value": numeric(value)})); err != nil {
			return err
		}

		return reply.Insert(ctx, tx, s.chainID, answers)
	})

	return n, err
}
