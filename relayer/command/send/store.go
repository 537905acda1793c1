package send

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Channel is the notification channel on which commands that came in, cancellations and operators'
// changes are announced. The payload is the chain id: a session passes on its own chain's.
const Channel = "relayer_commands"

// Notify announces something on a channel, to the instances of a chain.
const Notify = `select pg_notify($1, $2::bigint::text)`

// ErrFenced means that the sender has another owner now: writing under this epoch is over.
var ErrFenced = errors.New("another instance owns the sender")

// storeTimeout bounds each transaction.
const storeTimeout = 15 * time.Second

// store is every statement of one owner of one sender. Each of its writes names the epoch and takes
// the lock of the sender's row first. So when load has that lock, every commit that was under way
// before, also one with a lost answer, has happened or never will.
type store struct {
	db      *pgxpool.Pool
	chainID int64
	sender  string
	epoch   int64
}

// takeEpoch makes the caller the owner. The number is of the server's clock, so that it is
// unique, even in a database that was restored to an earlier time while a process of then is still
// about.
const takeEpoch = `
	insert into senders as s (chain_id, address, epoch, instance_id, since, name, lock_key, max_in_flight, max_fee, day_fees, day_value)
	values (@chain, @sender, (extract(epoch
		from clock_timestamp()) * 1000)::bigint, @instance, clock_timestamp(), @name, lock_key(@purpose, @chain, @sender),
	       @in_flight, @max_fee, @day_fees, @day_value)
	on conflict (chain_id, address) do update
	   set epoch = greatest(s.epoch + 1, excluded.epoch), instance_id = excluded.instance_id, since = excluded.since,
	       name = excluded.name, lock_key = excluded.lock_key, max_in_flight = excluded.max_in_flight, max_fee = excluded.max_fee,
	       day_fees = excluded.day_fees, day_value = excluded.day_value, updated_at = now()
	returning epoch`

func own(ctx context.Context, cfg *Config, sender common.Address) (*store, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	s := &store{db: cfg.DB, chainID: cfg.ChainID, sender: registry.Text(sender)}
	err := s.db.QueryRow(ctx, takeEpoch, pgx.StrictNamedArgs{
		"chain": s.chainID, "sender": s.sender, "instance": cfg.InstanceID, "name": cfg.Name,
		"purpose": election.Sender, "in_flight": cfg.Limits.MaxInFlight,
		"max_fee": wei{cfg.Limits.MaxFee}, "day_fees": wei{cfg.Limits.DayFees}, "day_value": wei{cfg.Limits.DayValue},
	}).Scan(&s.epoch)
	if err != nil {
		return nil, fmt.Errorf("take the epoch of sender %s: %w", sender, err)
	}

	return s, nil
}

const lockSender = `
	select case when s.wait_final >= 0 then s.next_nonce end as next_nonce, s.state, coalesce(s.stranger, '') as stranger, coalesce(s.checked_block, 0) as checked,
	       clock_timestamp() as now,
	       case when s.spend_day >= (now() at time zone 'utc')::date then s.spent_fees else 0 end as spent_fees,
	       case when s.spend_day >= (now() at time zone 'utc')::date then s.spent_value else 0 end as spent_value,
	       coalesce(l.next_block - 1, 0) as ledger_block, coalesce(l.block_hash, '') as ledger_hash,
	       coalesce(extract(epoch from l.block_time)::bigint, 0) as ledger_time, coalesce(l.generation, 0) as generation
	  from senders s
	  left join leadership l on l.chain_id = s.chain_id
	 where s.chain_id = @chain and s.address = @sender and s.epoch = @epoch
	   for update of s`

// write runs f in a transaction that holds the lock of the sender's row under our epoch. ErrFenced
// if that is another's now.
func (s *store) write(ctx context.Context, what string, f func(context.Context, pgx.Tx, *account) error) error {
	return s.locked(ctx, what, pgx.TxOptions{}, nothing, f)
}

// nothing has to be locked before the sender's row.
func nothing(context.Context, pgx.Tx) error { return nil }

// locked is write with a transaction that begins with before: what has to be locked before the sender's row.
func (s *store) locked(ctx context.Context, what string, options pgx.TxOptions,
	before func(context.Context, pgx.Tx) error, f func(context.Context, pgx.Tx, *account) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, s.db, options, func(tx pgx.Tx) error {
		if err := before(ctx, tx); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, lockSender, s.args(pgx.StrictNamedArgs{"epoch": s.epoch}))
		a, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[account])
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrFenced
		}

		if err != nil {
			return err
		}

		return f(ctx, tx, a)
	})
	if err != nil {
		return fmt.Errorf("%s of sender %s: %w", what, s.sender, err)
	}

	return nil
}

// exec is write with one statement. It reports whether that changed anything.
func (s *store) exec(ctx context.Context, what, statement string, args pgx.StrictNamedArgs) (changed bool, err error) {
	err = s.write(ctx, what, func(ctx context.Context, tx pgx.Tx, _ *account) error {
		tag, err := tx.Exec(ctx, statement, s.args(args))
		changed = tag.RowsAffected() > 0
		return err
	})

	return changed, err
}

// set is exec where it does not matter whether there was anything to change.
func (s *store) set(ctx context.Context, what, statement string, args pgx.StrictNamedArgs) error {
	_, err := s.exec(ctx, what, statement, args)
	return err
}

// args are the arguments that every statement has, and more.
func (s *store) args(more pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args := pgx.StrictNamedArgs{"chain": s.chainID, "sender": s.sender}
	maps.Copy(args, more)

	return args
}

// collect reads rows outside of a transaction. what says in an error what was to be read.
func collect[T any](ctx context.Context, db *pgxpool.Pool, what string, scan pgx.RowToFunc[T], query string,
	args pgx.StrictNamedArgs) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, _ := db.Query(ctx, query, args) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}

	return all, nil
}

const selectFlights = `
	select ` + requestColumns + `, c.nonce, c.gas, c.cancel_requested, c.code, c.detail,
	       c.expires_at <= clock_timestamp() as expired, c.reserved
	  from commands c
	 where c.chain_id = @chain and c.sender = @sender and c.state = 'sent'
	 order by c.nonce`

const selectAttempts = `
	select a.nonce, a.attempt, a.purpose, bytes(a.tx_hash) as hash, a.raw, a.gas, a.fee_cap, a.tip_cap, a.head,
	       clock_timestamp() - a.signed_at as age
	  from command_attempts a
	  join commands c on c.chain_id = a.chain_id and c.sender = a.sender and c.nonce = a.nonce
	 where c.chain_id = @chain and c.sender = @sender and c.state = 'sent'
	 order by a.nonce, a.attempt`

// nextLook is in what time the next waiting command is to be looked at, by the database's clock.
const nextLook = `
	select least(min(next_look) - clock_timestamp(), interval '1 hour')
	  from commands
	 where chain_id = @chain and sender = @sender and state = 'accepted' and not cancel_requested and expires_at > clock_timestamp()`

// withoutFlush begins a transaction that only locks: its end may stay in memory.
var withoutFlush = pgx.TxOptions{BeginQuery: `begin; set local synchronous_commit = off`}

// load reads the state of each round afresh.
func (s *store) load(ctx context.Context) (a *account, flights []*flight, err error) {
	err = s.locked(ctx, "read the state", withoutFlush, nothing, func(ctx context.Context, tx pgx.Tx, row *account) error {
		a = row
		if err := tx.QueryRow(ctx, nextLook, s.args(nil)).Scan(&a.Due); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, selectFlights, s.args(nil)) // CollectRows returns its error
		flights, err = pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[flight])
		if err != nil || len(flights) == 0 {
			return err
		}

		rows, _ = tx.Query(ctx, selectAttempts, s.args(nil))
		attempts, err := pgx.CollectRows(rows, pgx.RowToStructByName[attempt])
		if err != nil {
			return err
		}

		for _, f := range flights {
			f.Attempts = slices.DeleteFunc(slices.Clone(attempts), func(x attempt) bool { return x.Nonce != f.Nonce })
		}

		flights = slices.DeleteFunc(flights, func(f *flight) bool { return len(f.Attempts) == 0 }) // none of ours

		return nil
	})

	return a, flights, err
}

const setFromChain = `
	update senders set next_nonce = n.nonce, first_nonce = least(first_nonce, n.nonce), wait_final = 0, updated_at = now()
	  from (select greatest(@nonce, (select max(nonce) + 1 from commands where chain_id = @chain and sender = @sender),
	               (select max(nonce) + 1 from used_nonces
	                 where chain_id = @chain and sender = bytes(@sender))) as nonce) n
	 where chain_id = @chain and address = @sender and n.nonce <= @final
	   and (next_nonce is null or wait_final < 0 and not @silent)`

// fromChain sets the next nonce before a sender's first owner, and where an operator asks for that (AdoptNonce): above
// all that the nodes know, once all of it is final. A node that lies about it is waited for no longer than it lies. So
// is, once the sender was used, one that does not answer: its pool may have what a lost database had signed.
func (s *store) fromChain(ctx context.Context, look evm.Look) (known bool, err error) {
	return s.exec(ctx, "take the next nonce from the chain", setFromChain,
		pgx.StrictNamedArgs{"nonce": look.Known(), "final": look.Final, "silent": look.Silent})
}

const setHalted = `
	update senders set state = 'halted', reason = @reason, stranger = nullif(@stranger, ''), updated_at = now()
	 where chain_id = @chain and address = @sender and next_nonce = @next and wait_final >= 0
	   and (state = 'active' or stranger is null and @stranger <> '')`

// halt stops the sender. Where it names a stranger's transaction, an operator has to look; else it may end by itself,
// and takes the place of no pause: a paused sender gives no nonce, and would go on when the halt ends.
// next is the next nonce that the halt was judged by: it is obsolete once an operator has asked for another one, and
// until that is known (nil).
func (s *store) halt(ctx context.Context, next *uint64, reason, stranger string) (changed bool, err error) {
	return s.exec(ctx, "halt", setHalted, pgx.StrictNamedArgs{"next": next, "reason": reason, "stranger": stranger})
}

const setResumed = `
	update senders set state = 'active', reason = null, updated_at = now()
	 where chain_id = @chain and address = @sender and state = 'halted' and stranger is null`

// resume ends a halt with a reason that is gone.
func (s *store) resume(ctx context.Context) error {
	return s.set(ctx, "resume", setResumed, nil)
}

const setChecked = `
	update senders
	   set checked_block = case when @known <= next_nonce then @block else checked_block end, balance = @balance,
	       updated_at = now()
	 where chain_id = @chain and address = @sender`

// checked notes the block up to which receipts were read: up to there nobody else has used the next nonce. While the
// nodes know of a nonce from elsewhere the transaction that has used it is still looked for above the block before.
func (s *store) checked(ctx context.Context, block uint64, look evm.Look) error {
	return s.set(ctx, "note the block", setChecked,
		pgx.StrictNamedArgs{"block": block, "known": look.Known(), "balance": wei{look.Balance}})
}

// selectWaiting reads what is due. Requesters take turns: the first command of each, then the second ones.
// Of a requester the one comes first that has waited longest since it was last looked at, and so do the
// requesters of a turn.
const selectWaiting = `
	with recursive requesters as (
	  (select requester from commands where chain_id = @chain and sender = @sender and state = 'accepted' order by requester limit 1)
	   union all
	  select (select c.requester from commands c
	           where c.chain_id = @chain and c.sender = @sender and c.state = 'accepted' and c.requester > q.requester
	           order by c.requester limit 1)
	    from requesters q where q.requester is not null
	), due as (
	  select d.command_id, d.turn, d.next_look, d.seq
	    from requesters q
	   cross join lateral (
	         select command_id, next_look, seq, row_number() over (order by next_look, seq) as turn from (
	           select command_id, next_look, seq from commands
	            where chain_id = @chain and sender = @sender and requester = q.requester and state = 'accepted'
	              and next_look <= now() and expires_at > now() and not cancel_requested
	            order by next_look, seq limit @limit) o) d
	   order by d.turn, d.next_look, d.seq limit @limit)
	select ` + requestColumns + `, clock_timestamp() as now, c.code, c.holds,
	       g.address is not null as registered, coalesce(r.status, '') as status, coalesce(r.payer, '') as payer, coalesce(r.payee, '') as payee,
	       coalesce(r.arbiter, '') as arbiter, coalesce(r.amount, 0) as amount, r.release_delay as delay,
	       coalesce(r.release_time, 0) as release_time, coalesce(r.approvals_required, 0) as required,
	       coalesce(r.approvers, '{}') as approvers, coalesce(e.tx, '') as event_tx,
	       coalesce(e.event_type, '') as event_name, coalesce(e.block_number, 0) as event_block, coalesce(e.block_hash, '') as event_hash,
	       coalesce((select k.command_id from command_claims k where k.chain_id = c.chain_id and k.escrow = c.escrow and k.effect = c.effect
	                    and k.command_id <> c.command_id), '') as winner,
	       coalesce((select min(u.command_id) from commands u where ` + excludes + `), '') as rival
	  from due d
	  join commands c using (command_id)
	  left join escrow_registry g on g.chain_id = c.chain_id and g.address_key = bytes(c.escrow) and g.status <> 'orphaned'
	    and g.factory = lower(c.message ->> 'factory')
	  left join lateral (select * from escrow_records r where r.chain_id = c.chain_id and r.escrow_key = bytes(c.escrow) limit 1) r on true
	 cross join lateral (
	       select case c.kind when 'approve' then 'Approved' when 'release' then 'EscrowReleased'
	                          when 'refund' then 'EscrowRefunded' else 'EscrowDeployed' end as effect) k
	  left join lateral (
	       select p.transaction_hash as tx, p.event_type, p.block_number, p.block_hash
	         from processed_events p
	        where p.chain_id = c.chain_id and p.escrow_key = bytes(c.escrow) and p.state = 'canonical'
	          and (p.event_type = k.effect and (c.kind <> 'approve' or lower(p.args ->> 'approver') = c.sender)
	               or c.kind <> 'create' and p.event_type in ('EscrowReleased', 'EscrowRefunded'))
	        order by p.event_type <> k.effect, p.block_number limit 1) e on true
	 order by d.turn, d.next_look, d.seq`

func (s *store) waiting(ctx context.Context, limit int) ([]*waiting, error) {
	return collect(ctx, s.db, "the waiting commands of sender "+s.sender, pgx.RowToAddrOfStructByName[waiting],
		selectWaiting, s.args(pgx.StrictNamedArgs{"limit": limit}))
}

// hold is a command that has to wait, and why.
type hold struct {
	ID     string        `json:"id"`
	Code   string        `json:"code"`
	Detail string        `json:"detail"`
	Pause  time.Duration `json:"pause"`
}

// setHeld notes why commands wait, and at how many looks in a row it was for that. The first time that a signature is
// all that one lacks is its turn.
const setHeld = `
	update commands c
	   set code = h.code, detail = h.detail, holds = case when c.code = h.code then c.holds + 1 else 1 end, next_look = clock_timestamp() + h.pause / 1000 * interval '1 microsecond',
	       assigned_at = case when h.code = 'signer' then coalesce(c.assigned_at, clock_timestamp()) end
	  from json_to_recordset(@holds::json) as h (id text, code text, detail text, pause bigint)
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = h.id and c.state = 'accepted'`

func (s *store) hold(ctx context.Context, holds []hold) error {
	if len(holds) == 0 {
		return nil
	}

	return s.set(ctx, "hold commands", setHeld, pgx.StrictNamedArgs{"holds": holds})
}

// insertAttempts stores what was signed for commands under way, but no call at a nonce that has a void, and says what
// is stored now. The follower of a sender writes under the epoch of its last owner, which may still sign: so one may
// have answered meanwhile what the other one has read.
const insertAttempts = `
	insert into command_attempts (chain_id, sender, nonce, attempt, command_id, purpose, tx_hash, raw, gas, fee_cap, tip_cap, epoch, head)
	select @chain, @sender, a.nonce, a.attempt, a.id, a.purpose, a.hash, a.raw, a.gas, a.fee_cap, a.tip_cap, @epoch, @head
	  from unnest(@nonces::bigint[], @attempts::int[], @ids::text[], @purposes::text[], @hashes::text[], @raws::bytea[], @gas::bigint[], @caps::numeric[],
	       @tips::numeric[]) as a (nonce, attempt, id, purpose, hash, raw, gas, fee_cap, tip_cap)
	  join commands c on c.command_id = a.id and c.state = 'sent'
	 where a.purpose = 'void'
	    or not exists (select from command_attempts v where v.chain_id = @chain and v.sender = @sender and v.nonce = a.nonce and v.purpose = 'void')
	returning raw`

// setReplaced notes what the attempts may cost, and why a nonce is given up.
const setReplaced = `
	update commands c
	   set reserved = greatest(c.reserved, a.worst), sent_at = coalesce(c.sent_at, clock_timestamp()), code = a.code, detail = a.detail
	  from unnest(@ids::text[], @worst::numeric[], @codes::text[], @details::text[]) as a (id, worst, code, detail)
	 where c.chain_id = @chain and c.sender = @sender and c.command_id = a.id`

// record is T2: it stores further attempts of commands as load has read them, under the same epoch, and returns those
// that may now be broadcast. The others must stay in the process.
func (s *store) record(ctx context.Context, all []signed, head uint64, limits Limits) (stored []signed, err error) {
	if len(all) == 0 {
		return nil, nil
	}

	err = s.write(ctx, "store attempts", func(ctx context.Context, tx pgx.Tx, a *account) error {
		stored = nil
		if a.State == "halted" {
			return nil
		}

		left := new(big.Int).Sub(limits.DayFees, a.SpentFees.Int)
		for _, x := range all {
			if more := x.more(); more.Sign() > 0 {
				if more.Cmp(left) > 0 {
					continue
				}

				left.Sub(left, more)
			}

			stored = append(stored, x)
		}

		var err error
		if stored, err = s.insert(ctx, tx, stored, head); err != nil {
			return err
		}

		fees := new(big.Int).Set(a.SpentFees.Int)
		for i := range stored { // what was answered meanwhile has given its reservation back, and takes no more
			fees.Add(fees, stored[i].more())
		}

		if _, err := tx.Exec(ctx, setReplaced, s.args(pgx.StrictNamedArgs{
			"ids":     column.Of(stored, (*signed).commandID),
			"worst":   column.Of(stored, func(x *signed) wei { return wei{x.worst} }),
			"codes":   column.Of(stored, func(x *signed) string { return x.why.code }),
			"details": column.Of(stored, func(x *signed) string { return x.why.detail }),
		})); err != nil {
			return err
		}

		if fees.Cmp(a.SpentFees.Int) == 0 {
			return nil
		}

		_, err = tx.Exec(ctx, reserve,
			s.args(pgx.StrictNamedArgs{"count": 0, "fees": wei{fees}, "value": a.SpentValue}))

		return err
	})
	if err != nil { // nothing of it is known to be stored
		return nil, err
	}

	return stored, nil
}

// insert stores attempts, and returns those that are stored now as they were signed: nothing else may be broadcast.
func (s *store) insert(ctx context.Context, tx pgx.Tx, all []signed, head uint64) (stored []signed, err error) {
	rows, _ := tx.Query(ctx, insertAttempts, s.args(pgx.StrictNamedArgs{
		"epoch":    s.epoch,
		"head":     head,
		"nonces":   column.Of(all, func(x *signed) uint64 { return x.f.Nonce }),
		"attempts": column.Of(all, func(x *signed) int { return x.attempt.Number }),
		"ids":      column.Of(all, (*signed).commandID),
		"purposes": column.Of(all, func(x *signed) string { return x.attempt.Purpose }),
		"hashes":   column.Of(all, func(x *signed) string { return x.attempt.Hash.Hex() }),
		"raws":     column.Of(all, func(x *signed) []byte { return x.attempt.Raw }),
		"gas":      column.Of(all, func(x *signed) uint64 { return x.attempt.Gas }),
		"caps":     column.Of(all, func(x *signed) wei { return x.attempt.FeeCap }),
		"tips":     column.Of(all, func(x *signed) wei { return x.attempt.TipCap }),
	}))
	raws, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])

	return slices.DeleteFunc(slices.Clone(all), func(x signed) bool {
		return !slices.ContainsFunc(raws, func(raw []byte) bool { return bytes.Equal(raw, x.attempt.Raw) })
	}), err
}

const setCode = `
	update commands set code = @code, detail = @detail
	 where chain_id = @chain and sender = @sender and command_id = @id and state = 'sent'
		and (code, detail) is distinct from (@code, @detail)`

// note says what keeps a command under way.
func (s *store) note(ctx context.Context, id, code, detail string) (changed bool, err error) {
	return s.exec(ctx, "note why a command waits", setCode,
		pgx.StrictNamedArgs{"id": id, "code": code, "detail": detail})
}
