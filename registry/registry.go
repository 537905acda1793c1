// Package registry owns the factories that are followed, and the escrows that they have deployed.
//
// The owner of an escrow's slot registers it, in the transaction that stores its EscrowDeployed. What an owner has
// passed without it, the leader registers: a deployment that the owner did not see, or one of the past of a factory
// that was added later. Such an escrow is late, and has a row in late_escrows: it is outside the cursor of its slot.
// So is one that its owner registers before it has read all of its events (Postpone). The owner catches it up
// (relayer/watch/late.go), and removes the row in the transaction that commits the last of its past events (Advance).
// From then on the slot's cursor covers the escrow, through every change of owner. So "late, in a slot of mine" is
// the one query by which an owner learns of escrows that it has not seen; a notification only hurries it.
package registry

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Channel is the notification channel that tells owners to look again: there are late escrows, or what they have read
// is void. The payload is the chain id.
const Channel = "relayer_registry"

// DB is a pool, a connection or a transaction: the caller owns the transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Values of escrows.status. Orphaned: a reorganisation removed its EscrowDeployed.
const (
	Active   int16 = 1
	Released int16 = 2
	Refunded int16 = 3
	Orphaned int16 = 4
)

// Discovery is a new escrow.
type Discovery struct {
	Address    common.Address
	Factory    common.Address
	Slot       int16
	Block      int64 // of its EscrowDeployed
	LogIndex   int32
	TxHash     common.Hash
	Occurrence int16 // of its event id
}

// Late is an escrow outside the cursor of its slot.
type Late struct {
	Address   common.Address
	Slot      int16
	Block     int64 // of its EscrowDeployed
	LogIndex  int32
	Monitored int64 // newest block whose events of this escrow are stored; Block-1 at first
	Factory   common.Address
	Ended     int64 // block of its release or refund; 0: none is stored
	Announced bool  // its EscrowDeployed is stored
}

// Next is the block from which the catch-up continues.
func (l Late) Next() int64 { return l.Monitored + 1 }

// Writer is who registers escrows.
type Writer int

// The writers.
const (
	Owner  Writer = iota // of their slots, with the block of their deployment
	Leader               // what the owners of their slots have passed, which is late
	Past                 // the leader, beside the cursors: every one is late
)

// Record registers escrows, in the writer's transaction, and returns how many rows it has written. It fails for
// an escrow of a factory that the database does not follow. A known address keeps its row, unless a reorganisation
// orphaned it: then the new deployment replaces the old one. Of several discoveries of an address the first counts.
func Record(ctx context.Context, tx DB, chainID int64, by Writer, found []Discovery) (registered int, err error) {
	n := len(found)
	if n == 0 {
		return 0, nil
	}

	addresses, slots, blocks, indexes := make([][]byte, n), make([]int16, n), make([]int64, n), make([]int32, n)
	txs, occurrences, factories := make([][]byte, n), make([]int16, n), make([][]byte, n)
	for i := range found {
		d := &found[i]
		addresses[i], slots[i], blocks[i], indexes[i] = d.Address[:], d.Slot, d.Block, d.LogIndex
		txs[i], occurrences[i], factories[i] = d.TxHash[:], d.Occurrence, d.Factory[:]
	}

	tag, err := tx.Exec(ctx, records[by], pgx.StrictNamedArgs{
		"chain": chainID, "addresses": addresses, "slots": slots, "blocks": blocks, "indexes": indexes, "txs": txs,
		"occurrences": occurrences, "factories": factories,
	})
	if err != nil {
		return 0, fmt.Errorf("record %d escrows: %w", n, err)
	}

	return int(tag.RowsAffected()), nil
}

// records are the statements of Record. Writers insert in the order of addresses, so that none waits for another that
// waits for it.
var records = [...]string{
	Owner:  fmt.Sprintf(record, ""),
	Leader: `with put as (` + fmt.Sprintf(record, "where block < ("+cursor+")") + `)` + makeLate,
	Past:   `with put as (` + fmt.Sprintf(record, "") + `)` + makeLate,
}

const (
	// cursor is the SQL for the cursor of the slot of t.
	cursor = `select coalesce(c.next_block, s.next_block) from slot_ownership s
		left join cursors c on c.chain_id = s.chain_id and c.instance_id = s.owner
		where s.chain_id = @chain and s.slot = t.slot`

	record = `
		insert into escrows as r (chain_id, address, slot, discovered_block_number, log_index, tx_hash, occurrence, factory)
		select distinct on (address) @chain::bigint, t.address, slot, block, index, tx, occurrence, f.id
		from unnest(@addresses::bytea[], @slots::smallint[], @blocks::bigint[], @indexes::integer[], @txs::bytea[], @occurrences::smallint[],
			@factories::bytea[]) as t(address, slot, block, index, tx, occurrence, factory)
		left join factories f on f.chain_id = @chain and f.address = t.factory
		%s
		order by address, block, index
		on conflict (chain_id, address) do update
		set status = 1, discovered_block_number = excluded.discovered_block_number, log_index = excluded.log_index, tx_hash = excluded.tx_hash,
		    occurrence = excluded.occurrence, factory = excluded.factory, ended_block = null, updated_at = now()
		where r.status = 4
		returning address, slot, discovered_block_number, log_index`

	makeLate = `
	insert into late_escrows (chain_id, address, slot, deployed_block, log_index, monitored)
	select @chain, address, slot, discovered_block_number, log_index, discovered_block_number - 1 from put
	on conflict do nothing`
)

// Postpone makes registered escrows late, in their owner's transaction: it has not read all of their events.
func Postpone(ctx context.Context, tx DB, chainID int64, addresses []common.Address) error {
	if len(addresses) == 0 {
		return nil
	}

	if _, err := tx.Exec(ctx, postpone, pgx.StrictNamedArgs{"chain": chainID, "addresses": addresses}); err != nil {
		return fmt.Errorf("make %d escrows late: %w", len(addresses), err)
	}

	return nil
}

const postpone = `
	with put as (
		select address, slot, discovered_block_number, log_index from escrows
		where chain_id = @chain and address = any(@addresses::bytea[]) and status <> 4)` + makeLate

// Range selects late escrows: those that are deployed below the block Cursor, and continue in the blocks From up to
// Before, exclusive.
type Range struct{ From, Before, Cursor int64 }

// ListLate returns at most limit late escrows of a range in slots of the owner, ordered by the block in which they
// continue, and that are open.
func ListLate(ctx context.Context, db DB, chainID int64, owner string, r Range, limit int) ([]Late, error) {
	rows, _ := db.Query(ctx, listLate, chainID, owner, limit, r.From-1, r.Before-1, r.Cursor)
	late, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Late])
	if err != nil {
		return nil, fmt.Errorf("list late escrows: %w", err)
	}

	return late, nil
}

const (
	// Announced is the SQL for a late escrow l whose EscrowDeployed is stored.
	Announced = `exists (select from events d
		where d.chain_id = l.chain_id and d.block_number = l.deployed_block and d.log_index = l.log_index)`

	// open is the SQL for a late escrow l that its owner can catch up. One waits while the publication of its events is
	// requested: they come first. Another one waits for the second reading, once its owner has not seen its
	// EscrowDeployed either.
	open = `(l.monitored < l.deployed_block or ` + Announced + `) and not exists (
		select from requests q where q.chain_id = l.chain_id and q.escrow = l.address)`
)

const listLate = `
	select address, slot, deployed_block, log_index, monitored, e.factory, e.ended, ` + Announced + `
	from late_escrows l
	cross join lateral (
		select f.address as factory, coalesce(r.ended_block, 0) as ended
		from escrows r join factories f on f.chain_id = r.chain_id and f.id = r.factory
		where r.chain_id = l.chain_id and r.address = l.address limit 1) e
	where chain_id = $1 and slot = any(array(select slot from slot_ownership where chain_id = $1 and owner = $2))
	  and monitored >= $4 and monitored < $5 and deployed_block < $6 and ` + open + `
	order by monitored, deployed_block, log_index limit $3`

// Loaded is an escrow of Load.
type Loaded struct {
	Address  common.Address
	Factory  common.Address
	Ended    int64 // block of its release or refund; 0: it is active
	Block    int64 // of its EscrowDeployed
	LogIndex int32
}

// Load reads the escrows of some slots that may still emit events: active ones, and those that ended above the block
// final, since a reorganisation may undo that end. A cursor at the block next covers them, but for those deployed at
// it or above: it was moved back, and is to meet their deployments again.
func Load(ctx context.Context, db DB, chainID int64, slots []int16, next, final int64, each func(Loaded)) error {
	list, err := Factories(ctx, db, chainID)
	if err != nil {
		return err
	}

	factories := map[int16]common.Address{}
	for _, f := range list {
		factories[f.ID] = f.Address
	}

	rows, _ := db.Query(ctx, load, chainID, slots, final, next)
	var address pgtype.DriverBytes // the driver's memory: a slice per row would be 32 MB of garbage per million
	var l Loaded
	var factory int16
	_, err = pgx.ForEachRow(rows, []any{&address, &l.Ended, &factory, &l.Block, &l.LogIndex}, func() error {
		l.Address, l.Factory = common.BytesToAddress(address), factories[factory]
		each(l)

		return nil
	})
	if err != nil {
		return fmt.Errorf("load the escrows of %d slots: %w", len(slots), err)
	}

	return nil
}

const load = `
	select address, coalesce(ended_block, 0), factory, discovered_block_number, log_index from escrows e
	where chain_id = $1 and slot = any($2) and (ended_block is null or ended_block > $3) and status <> 4
	  and (discovered_block_number >= $4
	       or not exists (select from late_escrows l where l.chain_id = e.chain_id and l.address = e.address))`

// Progress is the state of an escrow's catch-up.
type Progress struct {
	Address   common.Address
	Monitored int64 // newest block whose events of this escrow are stored
	CaughtUp  bool  // the slot's cursor covers it from now on
}

// Advance writes progress, in the owner's transaction.
func Advance(ctx context.Context, tx DB, chainID int64, progress []Progress) error {
	var done, going [][]byte
	var monitored []int64
	for i := range progress {
		if p := &progress[i]; p.CaughtUp {
			done = append(done, p.Address[:])
		} else {
			going, monitored = append(going, p.Address[:]), append(monitored, p.Monitored)
		}
	}

	if len(done) > 0 {
		if _, err := tx.Exec(ctx, `delete from late_escrows where chain_id = $1 and address = any($2)`, chainID,
			done); err != nil {
			return fmt.Errorf("admit %d late escrows: %w", len(done), err)
		}
	}

	if len(going) > 0 {
		if _, err := tx.Exec(ctx, advance, chainID, going, monitored); err != nil {
			return fmt.Errorf("advance %d late escrows: %w", len(going), err)
		}
	}

	return nil
}

const advance = `
	update late_escrows l set monitored = greatest(l.monitored, t.monitored)
	from unnest($2::bytea[], $3::bigint[]) as t(address, monitored)
	where l.chain_id = $1 and l.address = t.address`

// Ending is a release or a refund.
type Ending struct {
	Address common.Address
	Status  int16 // Released or Refunded
	Block   int64
}

// End records endings, in the owner's transaction.
func End(ctx context.Context, tx DB, chainID int64, endings []Ending) error {
	n := len(endings)
	if n == 0 {
		return nil
	}

	addresses, statuses, blocks := make([][]byte, n), make([]int16, n), make([]int64, n)
	for i := range endings {
		addresses[i], statuses[i], blocks[i] = endings[i].Address[:], endings[i].Status, endings[i].Block
	}

	if _, err := tx.Exec(ctx, end, chainID, addresses, statuses, blocks); err != nil {
		return fmt.Errorf("end %d escrows: %w", n, err)
	}

	return nil
}

const end = `
	update escrows r set status = t.status, ended_block = t.block, updated_at = now()
	from unnest($2::bytea[], $3::smallint[], $4::bigint[]) as t(address, status, block)
	where r.chain_id = $1 and r.address = t.address`

// EndAgain derives the endings of escrows from the events that are stored, after some were removed or
// added out of order. An escrow without a stored event keeps its own: RETENTION has removed them.
func EndAgain(ctx context.Context, tx DB, chainID int64, escrows [][]byte) error {
	if _, err := tx.Exec(ctx, endAgain, chainID, escrows); err != nil {
		return fmt.Errorf("derive the endings of %d escrows: %w", len(escrows), err)
	}

	return nil
}

// endAgain has the types 5 and 6, of which contract.Event.Ends is true, as Released and Refunded.
const endAgain = `
	update escrows r set status = coalesce(t.status, 1), ended_block = t.block, updated_at = now()
	from (
		select a.address, l.status, l.block
		from unnest($2::bytea[]) as a(address) left join lateral (
			select p.type - 3 as status, p.block_number as block from events p
			where p.chain_id = $1 and p.escrow = a.address and p.type in (5, 6)
			order by p.block_number desc, p.log_index desc limit 1) l on true) t
	where r.chain_id = $1 and r.address = t.address and r.status <> 4 and r.ended_block is distinct from t.block
	  and exists (select from events p where p.chain_id = $1 and p.escrow = t.address)`

// Text is an address as in the tables: 0x and lower case.
func Text(a common.Address) string {
	var b [42]byte
	copy(b[:], "0x")
	hex.Encode(b[2:], a[:])

	return string(b[:])
}
