package send

import (
	"cmp"
	"context"
	"errors"
	"math/big"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// This file is when a nonce is given: when the account is ready, while there is room in flight, and to which commands.

// ready reports whether the account may give its next nonce to a command: it is not one that was seen in use.
func (a *account) ready(look evm.Look) bool {
	return a.State == "active" && a.NextNonce != nil && look.Known() <= *a.NextNonce
}

// room is how many commands may get nonces now: none without the key, since there are no limits then.
func (s *sender) room() int {
	if !s.account.ready(s.seen) {
		return 0
	}

	limit := s.cfg.Limits.MaxInFlight
	for _, f := range s.flights {
		if s.open(f) {
			limit--
		}
	}

	return max(limit, 0)
}

// excludes finds a command u under way that may make c impossible: the last approval releases when the time has
// come, so an approval and a settlement of one escrow are under way one after the other. Only the index by escrow
// fits it as it is written, with a sum and a state too many: until the table is analyzed the index of what is sent is
// believed to be tiny, and was read whole for each candidate.
const excludes = `u.chain_id + 0 = c.chain_id and u.escrow = c.escrow and u.state in ('sent', 'assigned')
	and (u.effect = 'settle') <> (c.effect = 'settle')`

// lockFactories has the retirement of a factory wait for the commands that create escrows of it. It comes before
// claims and commands, as in a rollback.
const lockFactories = `
	select from factories
	 where chain_id = @chain
	   and hex(address) in (select lower(message ->> 'factory') from commands where command_id = any(@ids))
	 order by id for share`

// lockEscrows has commands of one escrow get their nonces one after the other, whichever their senders are.
const lockEscrows = `
	select from command_claims where chain_id = @chain and escrow in (select escrow from commands where command_id = any(@ids))
	 order by escrow, effect for update`

// lockPicks selects those that may have a nonce: their claims are theirs, and what may make them impossible is
// neither under way nor picked before them.
const lockPicks = `
	select c.command_id from commands c
	  join factories f on f.chain_id = c.chain_id and hex(f.address) = lower(c.message ->> 'factory')
	   and (c.kind <> 'create' or f.retired_block is null)
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = any(@ids) and c.state = 'accepted'
	   and not c.cancel_requested and c.expires_at > clock_timestamp()
	   and exists (select from command_claims k where k.command_id = c.command_id)
	   and not exists (select from commands u where ` + excludes + `)
	   and not exists (select from commands u where u.command_id = any(@ids) and u.escrow = c.escrow
	                      and array_position(@ids, u.command_id) < array_position(@ids, c.command_id)
	                      and (u.effect = 'settle') <> (c.effect = 'settle'))
	   for update of c`

const setLaunched = `
	update commands c
	   set state = 'sent', code = '', detail = '', nonce = p.nonce, gas = p.gas, reserved = p.worst,
	       reserve_day = ` + spendDay + `,
	       assigned_at = coalesce(c.assigned_at, clock_timestamp()), sent_at = clock_timestamp()
	  from unnest(@ids::text[], @nonces::bigint[], @gas::bigint[], @worst::numeric[]) as p (id, nonce, gas, worst),
	       senders s
	 where c.command_id = p.id and s.chain_id = c.chain_id and s.address = c.sender`

// spendDay is the day of a sender s, whose sums are of it. A clock that is set back across midnight does not begin the
// day before again: its budget was spent.
const spendDay = `greatest(s.spend_day, (now() at time zone 'utc')::date)`

// reserve takes nonces, and says what of the day's budget is spent with them. What was spent on an earlier day
// is forgotten.
const reserve = `
	update senders s
	   set next_nonce = next_nonce + @count, updated_at = now(), spend_day = ` + spendDay + `,
	       spent_fees = @fees, spent_value = @value
	 where chain_id = @chain and address = @sender`

// errNotRecorded means that the database has not stored what was signed. No statement of this program does that.
var errNotRecorded = errors.New("the database has not stored what was signed as it is: does command_attempts have a " +
	"trigger or a rule, or a void of a nonce that no command has had? Remove it, and find out who else writes there")

// launch is T1: it gives nonces to commands and stores what was signed for them, in one transaction, and returns those
// that may now be broadcast. From the first one on that may not be sent any more, or is beyond the day's budget, they
// are left out: what was signed for them has nonces that are not theirs, and leaves this process never. An operator may
// have changed the account since the round began, so it is looked at again here.
func (s *store) launch(ctx context.Context, all []signed, head uint64, limits Limits,
	look evm.Look) (stored []signed, err error) {
	if len(all) == 0 {
		return nil, nil
	}

	ids := column.Of(all, (*signed).commandID)
	err = s.write(ctx, "give nonces", func(ctx context.Context, tx pgx.Tx, a *account) error {
		stored = nil
		if !a.ready(look) || all[0].f.Nonce != *a.NextNonce {
			return nil
		}

		// A keeper's command lacks its claim until now, as does one that a reorganisation has opened again.
		for _, statement := range []string{lockFactories, claimAgain, lockEscrows} {
			if _, err := tx.Exec(ctx, statement, pgx.StrictNamedArgs{"chain": s.chainID, "ids": ids}); err != nil {
				return err
			}
		}

		rows, _ := tx.Query(ctx, lockPicks, s.args(pgx.StrictNamedArgs{"ids": ids}))
		open, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}

		fees, value := a.SpentFees.Int, a.SpentValue.Int
		for _, x := range all {
			moreFees, moreValue := new(big.Int).Add(fees, x.worst), new(big.Int).Add(value, x.f.Value.Int)
			if !slices.Contains(open, x.f.CommandID) || moreFees.Cmp(limits.DayFees) > 0 || moreValue.Cmp(limits.DayValue) > 0 {
				break
			}

			fees, value, stored = moreFees, moreValue, append(stored, x)
		}

		if len(stored) == 0 {
			return nil
		}

		if _, err := tx.Exec(ctx, setLaunched, pgx.StrictNamedArgs{
			"ids":    column.Of(stored, (*signed).commandID),
			"nonces": column.Of(stored, func(x *signed) uint64 { return x.f.Nonce }),
			"gas":    column.Of(stored, func(x *signed) uint64 { return x.f.Gas }),
			"worst":  column.Of(stored, func(x *signed) wei { return wei{x.worst} }),
		}); err != nil {
			return err
		}

		if recorded, err := s.insert(ctx, tx, stored, head); err != nil || len(recorded) < len(stored) {
			return cmp.Or(err, errNotRecorded)
		}

		_, err = tx.Exec(ctx, reserve,
			s.args(pgx.StrictNamedArgs{"count": len(stored), "fees": wei{fees}, "value": wei{value}}))

		return err
	})
	if err != nil { // nothing of it is known to be stored
		return nil, err
	}

	return stored, nil
}
