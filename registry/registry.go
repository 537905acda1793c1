// Package registry owns escrow_registry: the escrows that the factory has deployed, found by the leader, followed by the owners
// of their slots.
//
// A row begins with caught_up = false, which means: no cursor vouches for this escrow yet, and its EscrowDeployed is not in the
// outbox. The owner of its slot admits it: it catches the escrow up to its cursor if it is behind, and sets the flag in the
// transaction that commits the last of it. From then on the slot's cursor vouches for the escrow, through every change of owner.
// So "not caught up, in a slot of mine" is all an owner ever has to ask to hear of new escrows; a notification only says when.
package registry

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Channel is the notification channel on which the leader announces new rows and its cursor; the payload is the chain id.
const Channel = "relayer_registry"

// DB is a pool, a connection or a transaction: the caller owns the transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Discovery is a new escrow, as the leader records it.
type Discovery struct {
	Address common.Address
	Slot    int16
	Block   int64  // of its EscrowDeployed
	EventID string // of its EscrowDeployed
	Payer   string // lower case; empty when the event did not say
	Payee   string
	Amount  string // wei, decimal
}

// Late is an escrow that the owner of its slot has not admitted yet.
type Late struct {
	Address   common.Address
	Slot      int16
	Block     int64 // of its EscrowDeployed
	Monitored int64 // newest block whose events of this escrow are stored; Block-1 at first
	EventID   string
	Announced bool // its EscrowDeployed was put into the outbox before a reorganisation took it back; it has reappeared
}

// Record writes discoveries, in the leader's transaction. An address that is there already is left alone, unless a
// reorganisation orphaned it: then the new deployment replaces the old one, and counts as announced only if it is the same event.
func Record(ctx context.Context, tx DB, chainID int64, found []Discovery) error {
	n := len(found)
	if n == 0 {
		return nil
	}
	addresses, slots, blocks, ids := make([]string, n), make([]int16, n), make([]int64, n), make([]string, n)
	payers, payees, amounts := make([]string, n), make([]string, n), make([]string, n)
	for i, d := range found {
		addresses[i], slots[i], blocks[i], ids[i] = Text(d.Address), d.Slot, d.Block, d.EventID
		payers[i], payees[i], amounts[i] = d.Payer, d.Payee, d.Amount
	}
	_, err := tx.Exec(ctx, record, pgx.StrictNamedArgs{
		"chain": chainID, "addresses": addresses, "slots": slots, "blocks": blocks, "ids": ids,
		"payers": payers, "payees": payees, "amounts": amounts,
	})
	if err != nil {
		return fmt.Errorf("record %d escrows: %w", n, err)
	}
	return nil
}

const record = `
	insert into escrow_registry as r
	       (chain_id, address, slot, discovered_block_number, event_id, last_monitored_block, payer, payee, amount)
	select @chain, address, slot, block, id, block - 1, nullif(payer, ''), nullif(payee, ''), nullif(amount, '')
	from unnest(@addresses::text[], @slots::smallint[], @blocks::bigint[], @ids::text[], @payers::text[], @payees::text[], @amounts::text[])
	     as t(address, slot, block, id, payer, payee, amount)
	on conflict (chain_id, address) do update
	set status = 'active', discovered_block_number = excluded.discovered_block_number, event_id = excluded.event_id,
	    announced = r.announced and r.event_id = excluded.event_id, caught_up = false,
	    last_monitored_block = excluded.last_monitored_block, ended_block = null,
	    payer = excluded.payer, payee = excluded.payee, amount = excluded.amount, updated_at = now()
	where r.status = 'orphaned'`

// ListLate returns escrows in slots of the owner that are not admitted yet, by the block at which their catching up goes on; at most limit.
func ListLate(ctx context.Context, db DB, chainID int64, owner string, limit int) ([]Late, error) {
	rows, _ := db.Query(ctx, listLate, chainID, owner, limit)
	late, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Late, err error) {
		var address []byte
		err = row.Scan(&address, &l.Slot, &l.Block, &l.Monitored, &l.EventID, &l.Announced)
		l.Address = common.BytesToAddress(address)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list late escrows: %w", err)
	}
	return late, nil
}

const listLate = `
	select decode(substr(r.address, 3), 'hex'), r.slot, r.discovered_block_number, r.last_monitored_block, r.event_id, r.announced
	from escrow_registry r
	where r.chain_id = $1 and not r.caught_up and r.status <> 'orphaned'
	  and r.slot = any(array(select slot from slot_ownership where chain_id = $1 and owner = $2))
	order by r.last_monitored_block, r.discovered_block_number, r.event_id limit $3`

// Load reads the escrows of some slots that a cursor vouches for and that may still emit events: those which have not ended, or
// ended above the given block (nothing above it is final). endedBlock is 0 while they have not.
func Load(ctx context.Context, db DB, chainID int64, slots []int16, final int64, each func(a common.Address, endedBlock int64)) error {
	rows, _ := db.Query(ctx, load, chainID, slots, final)
	var address []byte
	var ended int64
	_, err := pgx.ForEachRow(rows, []any{&address, &ended}, func() error {
		each(common.BytesToAddress(address), ended)
		return nil
	})
	if err != nil {
		return fmt.Errorf("load the escrows of %d slots: %w", len(slots), err)
	}
	return nil
}

const load = `
	select decode(substr(address, 3), 'hex'), coalesce(ended_block, 0) from escrow_registry
	where chain_id = $1 and slot = any($2) and caught_up and (ended_block is null or ended_block > $3) and status <> 'orphaned'`

// Count returns how many escrows of some slots Load would return, to size memory by.
func Count(ctx context.Context, db DB, chainID int64, slots []int16) (n int, err error) {
	err = db.QueryRow(ctx, `select count(*) from escrow_registry where chain_id = $1 and slot = any($2) and status = 'active'`, chainID, slots).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the escrows of %d slots: %w", len(slots), err)
	}
	return n, nil
}

// Progress is how far the catching up of an escrow has come.
type Progress struct {
	Address   common.Address
	Monitored int64 // newest block whose events of this escrow are stored
	CaughtUp  bool  // the slot's cursor vouches for it from now on; its EscrowDeployed is in the outbox
}

// Advance writes progress, in the owner's transaction.
func Advance(ctx context.Context, tx DB, chainID int64, progress []Progress) error {
	n := len(progress)
	if n == 0 {
		return nil
	}
	addresses, monitored, caughtUp := make([]string, n), make([]int64, n), make([]bool, n)
	for i, p := range progress {
		addresses[i], monitored[i], caughtUp[i] = Text(p.Address), p.Monitored, p.CaughtUp
	}
	_, err := tx.Exec(ctx, advance, pgx.StrictNamedArgs{"chain": chainID, "addresses": addresses, "monitored": monitored, "caught_up": caughtUp})
	if err != nil {
		return fmt.Errorf("advance %d late escrows: %w", n, err)
	}
	return nil
}

const advance = `
	update escrow_registry r
	set last_monitored_block = greatest(r.last_monitored_block, t.monitored), caught_up = r.caught_up or t.caught_up,
	    announced = true, updated_at = now()
	from unnest(@addresses::text[], @monitored::bigint[], @caught_up::boolean[]) as t(address, monitored, caught_up)
	where r.chain_id = @chain and r.address = t.address`

// Ending is a release or a refund.
type Ending struct {
	Address common.Address
	Status  string // released or refunded
	Block   int64
}

// End records endings, in the owner's transaction.
func End(ctx context.Context, tx DB, chainID int64, endings []Ending) error {
	n := len(endings)
	if n == 0 {
		return nil
	}
	addresses, statuses, blocks := make([]string, n), make([]string, n), make([]int64, n)
	for i, e := range endings {
		addresses[i], statuses[i], blocks[i] = Text(e.Address), e.Status, e.Block
	}
	_, err := tx.Exec(ctx, end, pgx.StrictNamedArgs{"chain": chainID, "addresses": addresses, "statuses": statuses, "blocks": blocks})
	if err != nil {
		return fmt.Errorf("end %d escrows: %w", n, err)
	}
	return nil
}

const end = `
	update escrow_registry r set status = t.status, ended_block = t.block, updated_at = now()
	from unnest(@addresses::text[], @statuses::text[], @blocks::bigint[]) as t(address, status, block)
	where r.chain_id = @chain and r.address = t.address`

// Text is an address as the tables have it: 0x and lower case.
func Text(a common.Address) string {
	var b [42]byte
	copy(b[:], "0x")
	hex.Encode(b[2:], a[:])
	return string(b[:])
}

// Next is the block at which its catching up goes on.
func (l Late) Next() int64 { return l.Monitored + 1 }
