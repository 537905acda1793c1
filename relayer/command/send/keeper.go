package send

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// KeeperName is the requester of the commands that the relayer makes itself.
const KeeperName = "keeper"

// Keeper makes a release command for each escrow that is approved and due. Anybody may create
// escrows, so each of its limits is there to keep others from making it spend. It never refunds.
type Keeper struct {
	MinAmount *big.Int         // wei: smaller escrows are left alone
	MaxFee    *big.Int         // wei: of one release
	DayFees   *big.Int         // wei: of all releases of a UTC day
	Payers    []common.Address // only theirs; empty: everybody's
	Every     time.Duration    // between two looks; 0 means a minute

	looked time.Time // of its sender's goroutine alone
}

// refuses says why a command that the keeper seems to have made is not its own; empty: it may be.
// Those have no signature, so this and the simulation are all that bounds what write access to the table makes
// of them: calls of release() without value.
func (k *Keeper) refuses(c *command.Command) string {
	switch {
	case k == nil:
		return "this sender has no keeper"
	case c.Kind != command.Release:
		return "the keeper only releases"
	case c.MaxFee.Cmp(k.MaxFee) > 0:
		return fmt.Sprintf("the keeper pays at most %s wei for a release", k.MaxFee)
	}

	return ""
}

// selectDue finds what is due, as events say that are verified: those that one endpoint has told of, and
// may have invented, are left out. It is due by the time of the block at which the call is tried before it is
// sent: a clock that runs ahead of that block would make a command that can only be refused.
//
// A payee that refuses ether never takes it. So after a release that reverts, or would, its payee is left alone, with
// all its escrows, for five minutes, then ten, twenty, up to a month; after each pause one of them is tried, behind
// the escrows of payees that have had none.
const selectDue = `
	with tried as (
	       select r.payee, count(c.answered_at) as n, max(c.answered_at) as last, bool_or(c.answered_at is null) as open
	         from commands c cross join lateral (
	              select * from escrow_records r where r.chain_id = c.chain_id and r.escrow_key = bytes(c.escrow) limit 1) r
	        where c.chain_id = @chain and c.sender = @sender and c.requester = 'keeper'
	          and (c.answered_at is null or c.code = 'would_revert' and c.answered_at > now() - interval '60 days')
	        group by r.payee
	), due as (
	       select r.escrow, g.factory, r.release_time, coalesce(t.n, 0) as n,
	              row_number() over (partition by r.payee order by r.release_time) as place
	         from (select distinct p.escrow from events p join escrows e on e.chain_id = p.chain_id and e.address = p.escrow
	                where p.chain_id = @chain and p.type = 3 and e.status = 1) approved
	        cross join lateral (
	              select * from escrow_records r where r.chain_id = @chain and r.escrow_key = approved.escrow limit 1) r
	         join escrow_registry g on g.chain_id = r.chain_id and g.address_key = r.escrow_key
	         join leadership l on l.chain_id = r.chain_id
	         left join tried t on t.payee = r.payee
	        where r.chain_id = @chain and r.status in ('created', 'approved') and r.approvals_required > 0
	          and r.approvals >= r.approvals_required and r.release_time <= @now and r.amount >= @min
	          and r.last_event_block <= l.verified_block
	          and (cardinality(@payers::text[]) = 0 or lower(r.payer) = any(@payers))
	          and not exists (select from command_claims k where k.chain_id = r.chain_id and k.escrow = r.escrow
	                             and k.effect = 'settle')
	          and not exists (select from commands c where c.chain_id = r.chain_id and c.escrow = r.escrow
	                             and c.requester = 'keeper' and c.answered_at is null)
	          and (coalesce(t.n, 0) = 0 or not t.open
	               and t.last + least(interval '5 minutes' * power(2, least(t.n, 20) - 1), interval '30 days') <= clock_timestamp()))
	select escrow, factory from due
	 where n = 0 or place = 1
	 order by n, release_time
	 limit @limit`

// dueEscrow is an escrow to be released, and its factory.
type dueEscrow struct{ Escrow, Factory string }

const keeperOpen = `
	select count(*) filter (where answered_at is null),
	       coalesce(sum(coalesce(fee_paid, case when answered_at is null then greatest(reserved, max_fee) else 0 end))
	           filter (where answered_at is null or reserve_day >= (now() at time zone 'utc')::date), 0)
	  from commands
	 where chain_id = @chain and sender = @sender and requester = 'keeper' and received_at > now() - interval '7 days'`

// insertKept leaves the claim for later: it comes with the nonce, once the call has been tried. A requester's command
// comes first until then.
const insertKept = `
	insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at, state)
	values (@chain, @id, @sender, 'release', @escrow, 'settle', 'keeper', @message, @fee, @expires, 'accepted')`

// keeperPatience is how long one command of the keeper may take.
const keeperPatience = 24 * time.Hour

// propose makes commands for what is due at the target, under the sender's epoch, within the day's budget. Without a
// keeper there is nothing to propose.
func (k *Keeper) propose(ctx context.Context, s *sender) error {
	if k == nil || time.Since(k.looked) < cmp.Or(k.Every, time.Minute) {
		return nil
	}

	k.looked = time.Now()
	made := 0
	err := s.store.write(ctx, "make the keeper's commands", func(ctx context.Context, tx pgx.Tx, a *account) error {
		made = 0
		if a.State != "active" {
			return nil
		}

		limit, err := k.room(ctx, tx, s.store)
		if err != nil || limit <= 0 {
			return err
		}

		rows, _ := tx.Query(ctx, selectDue, s.store.args(pgx.StrictNamedArgs{
			"now": s.target.Time, "min": wei{k.MinAmount}, "limit": limit,
			"payers": column.Of(k.Payers, func(p *common.Address) string { return registry.Text(*p) }),
		}))
		due, err := pgx.CollectRows(rows, pgx.RowToStructByName[dueEscrow])
		if err != nil {
			return err
		}

		for _, d := range due {
			if err := k.insert(ctx, tx, s, d, a.Now); err != nil {
				return err
			}
		}

		made = len(due)

		return nil
	})
	if err == nil && made > 0 {
		s.cfg.Log.InfoContext(ctx, "keeper found escrows that are due", slog.Int("escrows", made))
	}

	return err
}

// room is how many commands may be made now: as many as leave 64 open at most, and as the
// day's budget pays for.
func (k *Keeper) room(ctx context.Context, tx pgx.Tx, s *store) (int, error) {
	var open int
	var spent wei
	if err := tx.QueryRow(ctx, keeperOpen, s.args(nil)).Scan(&open, &spent); err != nil {
		return 0, err
	}

	limit := max(64-open, 0)
	affordable := new(big.Int).Sub(k.DayFees, spent.Int)
	if affordable.Div(affordable, k.MaxFee).Cmp(big.NewInt(int64(limit))) < 0 {
		limit = int(affordable.Int64())
	}

	return limit, nil
}

func (k *Keeper) insert(ctx context.Context, tx pgx.Tx, s *sender, d dueEscrow, now time.Time) error {
	expires := now.Add(keeperPatience)
	c := command.Signed{Command: command.Command{
		ChainID: uint64(s.cfg.ChainID), Factory: common.HexToAddress(d.Factory), Kind: command.Release,
		Sender: s.address, Escrow: common.HexToAddress(d.Escrow), ExpiresAt: uint64(expires.Unix()), MaxFee: k.MaxFee,
	}}
	if _, err := rand.Read(c.Salt[:]); err != nil {
		return err
	}

	message, err := json.Marshal(&c)
	if err != nil {
		return fmt.Errorf("encode the keeper's command: %w", err)
	}

	_, err = tx.Exec(ctx, insertKept, s.store.args(pgx.StrictNamedArgs{
		"id": c.ID().Hex(), "escrow": d.Escrow, "message": message, "fee": wei{k.MaxFee}, "expires": expires,
	}))

	return err
}
