package intake

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// store is the statements of T0: set-based, whatever the number of commands.
type store struct {
	db      *pgxpool.Pool
	chainID int64
	policy  *Policy
	room    map[common.Address]room // of the requesters that were counted lately; of Run's goroutine alone
}

// room is how many commands of a requester may be stored before its open ones are counted again.
type room struct {
	left    int
	counted time.Time
}

// countAgain is how long a count is good for: other instances take commands too, and commands are answered.
const countAgain = 10 * time.Second

const countOpen = `
	select count(*) from (select from commands where chain_id = @chain and requester = @requester and answered_at is null limit @most) c`

// admit counts a command of a requester that is to be stored. False: it has as many open ones as the policy allows.
func (s *store) admit(ctx context.Context, tx pgx.Tx, by common.Address) (bool, error) {
	r := s.room[by]
	if r.left <= 0 || time.Since(r.counted) > countAgain {
		most, open := s.policy.requesters[by].open, 0
		if err := tx.QueryRow(ctx, countOpen, pgx.StrictNamedArgs{"chain": s.chainID, "requester": registry.Text(by),
			"most": most}).Scan(&open); err != nil {
			return false, err
		}

		r = room{most - open, time.Now()}
	}

	r.left--
	s.room[by] = r

	return r.left >= 0, nil
}

const selectKnown = `select ` + send.AnswerColumns + `
	from commands c where c.chain_id = @chain and c.command_id = any(@ids)`

// takeClaims claims in the order of the keys, so that two transactions cannot wait for each other in
// a circle; of the commands of one transaction that claim the same, the first wins. What is
// expired or forbidden is left out.
const takeClaims = `
	insert into command_claims (chain_id, escrow, effect, command_id)
	select @chain, c.escrow, c.effect, c.id
	  from unnest(@escrows::text[], @effects::text[], @ids::text[], @expires::timestamptz[], @allowed::boolean[]) with ordinality
	       as c (escrow, effect, id, expires, allowed, place)
	 where c.allowed and c.expires > clock_timestamp()
	 order by c.escrow, c.effect, c.place
	on conflict do nothing`

// insertCommands accepts what the command that has the claim has done: its sender answers
// `already`, with the event, or refuses it if a reorganisation took that back meanwhile. It stores
// in the order of the ids: what claims nothing meets the same command of another transaction here
// first, and two that had them in opposite orders would wait for each other.
const insertCommands = `
	insert into commands as c (chain_id, command_id, sender, kind, escrow, effect, requester, message, value, max_fee, not_before, expires_at, reference, reply_to,
	                      state, code, detail, winner, next_look, answered_at)
	select @chain, c.id, c.sender, c.kind, c.escrow, c.effect, c.requester, c.message::json, c.value, c.max_fee, c.not_before, c.expires, c.reference, c.reply_to,
	       v.state, v.code, case v.code when 'not_allowed' then c.refusal when 'conflict' then 'another command was first' when 'expired' then 'expires_at had passed when it came' else '' end,
	       case v.code when 'conflict' then k.command_id end, coalesce(c.not_before, now()),
	       case when v.state in ('refused', 'expired') then clock_timestamp() end
	  from unnest(@ids::text[], @senders::text[], @kinds::text[], @escrows::text[], @effects::text[],
	              @requesters::text[], @messages::text[], @values::numeric[], @fees::numeric[],
	              @not_befores::timestamptz[], @expires::timestamptz[], @references::text[], @reply_tos::text[],
	              @refusals::text[])
	       as c (id, sender, kind, escrow, effect, requester, message, value, max_fee, not_before, expires, reference,
	             reply_to, refusal)
	  left join command_claims k on k.chain_id = @chain and k.escrow = c.escrow and k.effect = c.effect
	  left join commands w on w.command_id = k.command_id and w.command_id <> c.id and w.state in ('done', 'done_late', 'already')
	   and w.kind = c.kind and c.kind <> 'create'
	 cross join lateral (
	       select case when c.refusal <> '' then 'not_allowed' when k.command_id = c.id then ''
	                   when c.expires <= clock_timestamp() then 'expired' when w.command_id is null then 'conflict' else '' end as why) y
	 cross join lateral (
	       select case when y.why = 'expired' then 'expired' when y.why <> '' then 'refused' else 'accepted' end as state,
	              case when y.why = '' and c.not_before > now() then 'not_before' else y.why end as code) v
	 order by c.id
	on conflict do nothing
	returning ` + send.AnswerColumns

// errAgain means that what was read has changed: the transaction is to be run again.
var errAgain = errors.New("commands changed while they were stored")

// accept is T0 for many commands: claims, rows and the answers of what is final at once, in one
// transaction. Each candidate gets its answer.
func (s *store) accept(ctx context.Context, all []*candidate) error {
	for try := 0; ; try++ {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return s.acceptIn(ctx, tx, all) })
		if errors.Is(err, errAgain) && try < 5 {
			continue
		}

		if err != nil {
			return fmt.Errorf("store %d commands: %w", len(all), err)
		}

		return nil
	}
}

// boundLife refuses a command that expires too late.
func (c *candidate) boundLife(now time.Time) {
	if latest := now.Add(maxLife).Unix(); c.refusal == "" && int64(c.signed.ExpiresAt) > latest {
		c.refusal = fmt.Sprintf("expires_at may be at most %d: a week ahead", latest)
	}
}

func (s *store) acceptIn(ctx context.Context, tx pgx.Tx, all []*candidate) error {
	ids := make([]string, 0, len(all))
	byID := map[string]*candidate{}
	for _, c := range all {
		if byID[c.id] == nil {
			byID[c.id] = c
			ids = append(ids, c.id)
		}
	}

	answers, err := readAnswers(ctx, tx, s.chainID, ids)
	if err != nil {
		return err
	}

	var now time.Time // by the clock by which commands expire and leave
	if err := tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
		return err
	}

	known := make(map[string]bool, len(ids))
	fresh := make([]candidate, 0, len(ids))
	var replies []command.Answer
	for _, id := range ids {
		_, known[id] = answers[id]
		if known[id] {
			continue
		}

		c := byID[id]
		c.boundLife(now)
		unstored, err := s.unstored(ctx, tx, c, now)
		switch {
		case err != nil:
			return err
		case unstored.State == "":
			fresh = append(fresh, *c)
			continue
		case c.topic:
			replies = append(replies, unstored)
		}

		answers[id] = unstored
	}

	stored, err := s.storeFresh(ctx, tx, fresh, answers)
	if err != nil {
		return err
	}

	replies = append(replies, stored...)
	for _, c := range all {
		a, ok := answers[c.id]
		if !ok {
			return errAgain // another instance stored it between our two statements
		}

		*c.verdict = Verdict{Answer: a, Known: known[c.id]}
		known[c.id] = true // to those that follow with the same id
		if c.verdict.Known && c.topic && a.State.Final() {
			replies = append(replies, a) // sent again: the stored answer again
		}
	}

	return outbox.AddAnswers(ctx, tx, s.chainID, replies)
}

// leftAfter is how long after it has expired a command may have been answered and have left: less than the least
// RETENTION.
const leftAfter = 30 * time.Minute

// unstored is the answer to a command that is not stored; without a state it is to be. It has revision 0: what has
// expired long ago may have a final answer that has left with it.
func (s *store) unstored(ctx context.Context, tx pgx.Tx, c *candidate, now time.Time) (a command.Answer, err error) {
	a = command.Answer{CommandID: c.id, Kind: c.signed.Kind, Reference: c.signed.Reference, ReplyTo: c.signed.ReplyTo}
	if int64(c.signed.ExpiresAt) < now.Add(-leftAfter).Unix() {
		a.State, a.Code = command.Expired, command.CodeExpired
		a.Detail = "expires_at had passed long before it came; an answer that it had before holds"

		return a, nil
	}

	ok, err := s.admit(ctx, tx, c.requester)
	if err == nil && !ok {
		a.State, a.Code = command.Refused, command.CodeTooMany
		a.Detail = "this requester has as many open commands as its max_open in the policy: it is not stored, and may be sent again"
	}

	return a, err
}

// storeFresh stores what is new, and adds its answers to answers. It returns those that are final.
func (s *store) storeFresh(ctx context.Context, tx pgx.Tx, fresh []candidate,
	answers map[string]command.Answer) (final []command.Answer, err error) {
	if len(fresh) == 0 {
		return nil, nil
	}

	stored, err := s.insert(ctx, tx, fresh)
	if err != nil {
		return nil, err
	}

	for _, a := range stored {
		if a.Code == command.CodeConflict && a.Winner == "" {
			return nil, errAgain // who had the claim has given it up between our two statements
		}

		answers[a.CommandID] = a
		if a.State.Final() {
			final = append(final, a)
		}
	}

	return final, nil
}

// reader is a transaction, or a pool.
type reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// readAnswers returns the answers that commands have.
func readAnswers(ctx context.Context, db reader, chainID int64, ids []string) (map[string]command.Answer, error) {
	rows, _ := db.Query(ctx, selectKnown, pgx.StrictNamedArgs{"chain": chainID, "ids": ids})
	all, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[command.Answer])
	answers := make(map[string]command.Answer, len(all))
	for _, a := range all {
		answers[a.CommandID] = a
	}

	return answers, err
}

func (s *store) insert(ctx context.Context, tx pgx.Tx, fresh []candidate) ([]command.Answer, error) {
	ids := column.Of(fresh, func(c *candidate) string { return c.id })
	escrows := column.Of(fresh, func(c *candidate) string { return registry.Text(c.signed.Escrow) })
	effects := column.Of(fresh, func(c *candidate) string { return c.signed.Effect() })
	expires := column.Of(fresh, func(c *candidate) time.Time { return time.Unix(int64(c.signed.ExpiresAt), 0) })

	if _, err := tx.Exec(ctx, takeClaims, pgx.StrictNamedArgs{
		"chain": s.chainID, "escrows": escrows, "effects": effects, "ids": ids, "expires": expires,
		"allowed": column.Of(fresh, func(c *candidate) bool { return c.refusal == "" }),
	}); err != nil {
		return nil, err
	}

	rows, _ := tx.Query(ctx, insertCommands, pgx.StrictNamedArgs{
		"chain": s.chainID, "ids": ids, "escrows": escrows, "effects": effects, "expires": expires,
		"senders":     column.Of(fresh, func(c *candidate) string { return registry.Text(c.signed.Sender) }),
		"kinds":       column.Of(fresh, func(c *candidate) string { return string(c.signed.Kind) }),
		"requesters":  column.Of(fresh, func(c *candidate) string { return registry.Text(c.requester) }),
		"messages":    column.Of(fresh, func(c *candidate) string { return string(c.raw) }),
		"values":      column.Of(fresh, func(c *candidate) pgtype.Numeric { return numeric(c.signed.Value()) }),
		"fees":        column.Of(fresh, func(c *candidate) pgtype.Numeric { return numeric(c.signed.MaxFee) }),
		"not_befores": column.Of(fresh, notBefore),
		"references":  column.Of(fresh, func(c *candidate) string { return c.signed.Reference }),
		"reply_tos":   column.Of(fresh, func(c *candidate) string { return c.signed.ReplyTo }),
		"refusals":    column.Of(fresh, func(c *candidate) string { return c.refusal }),
	})
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[command.Answer])
	if err != nil {
		return nil, err
	}

	_, err = tx.Exec(ctx, send.Notify, send.Channel, s.chainID)

	return stored, err
}

// cancelUnsigned asks for the end of a command, which send.Follow brings about; one that is cancelled already keeps
// its answer. One that has a nonce is an operator's to cancel: a void costs gas.
const cancelUnsigned = `
	update commands set cancel_requested = true
	 where chain_id = $1 and command_id = $2 and requester = $3 and state in ('accepted', 'cancelled')`

// cancel gives a command up for its requester, the signer of c in the command's domain: that of its factory.
// ErrSignature: c is unsigned.
func (s *store) cancel(ctx context.Context, id common.Hash, c command.Cancellation) (asked bool, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var factory string // empty: there is no such command, and its signature is that of nobody
		err := tx.QueryRow(ctx, `select coalesce(max(message ->> 'factory'), '') from commands where chain_id = $1 and command_id = $2`,
			s.chainID, id.Hex()).Scan(&factory)
		if err != nil {
			return err
		}

		requester, err := c.Requester(uint64(s.chainID), common.HexToAddress(factory), id)
		if err != nil {
			return err
		}

		tag, err := tx.Exec(ctx, cancelUnsigned, s.chainID, id.Hex(), registry.Text(requester))
		if asked = tag.RowsAffected() > 0; err != nil || !asked {
			return err
		}

		_, err = tx.Exec(ctx, send.Notify, send.Channel, s.chainID)

		return err
	})
	if err != nil {
		return false, fmt.Errorf("cancel command %s: %w", id, err)
	}

	return asked, nil
}

// notBefore is nil where a command may be carried out at once.
func notBefore(c *candidate) *time.Time {
	if c.signed.NotBefore == 0 {
		return nil
	}

	return new(time.Unix(int64(c.signed.NotBefore), 0))
}

// refuse stores answers alone.
func (s *store) refuse(ctx context.Context, answers []command.Answer) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return outbox.AddAnswers(ctx, tx, s.chainID, answers) })
	if err != nil {
		return fmt.Errorf("store %d refusals: %w", len(answers), err)
	}

	return nil
}

// Lookup returns what is known of a command; ok is false if it is unknown.
func (i *Intake) Lookup(ctx context.Context, id common.Hash) (a command.Answer, ok bool, err error) {
	answers, err := readAnswers(ctx, i.cfg.DB, i.cfg.ChainID, []string{id.Hex()})
	if err != nil {
		return a, false, fmt.Errorf("read command %s: %w", id, err)
	}

	a, ok = answers[id.Hex()]

	return a, ok, nil
}

func numeric(n *big.Int) pgtype.Numeric { return pgtype.Numeric{Int: n, Valid: true} }
