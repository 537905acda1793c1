package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// Factory is a contract with followed deployments.
type Factory struct {
	ID      int16          `json:"-"` // in the table escrows
	Address common.Address `json:"address"`
	Start   int64          `json:"start_block"`             // first block whose deployments are followed
	Retired int64          `json:"retired_block,omitempty"` // first block whose deployments are not; 0: it is not retired
	// Past and Until are of a factory that was added behind the cursor of the factory watch: its deployments
	// in the blocks from Past up to Until, exclusive, are still to be read, beside that watch. Both are 0 once
	// they have been read.
	Past  int64 `json:"past_block,omitempty"`
	Until int64 `json:"until_block,omitempty"`
}

// Deploys reports whether the deployments of a block are followed.
func (f *Factory) Deploys(block uint64) bool {
	return int64(block) >= f.Start && (f.Retired == 0 || int64(block) < f.Retired)
}

// Follows reports whether the factory watch reads the deployments of a block: they are followed, and not of
// the past that is read beside it.
func (f *Factory) Follows(block uint64) bool {
	return f.Deploys(block) && int64(block) >= f.Until
}

// MaxFactories is the most factories of a chain, retired ones included.
const MaxFactories = 200

// FactoryOf is the SQL for the factory of an event p, of events or orphaned_events: the emitter of an EscrowDeployed,
// else the factory of the escrow. An escrow that a reorganisation took out of the registry is known by its deployment
// among the orphans: retractions of its other events may leave after that one.
const FactoryOf = `coalesce(p.emitter, (select f.address from escrows r
	join factories f on f.chain_id = r.chain_id and f.id = r.factory
	where r.chain_id = p.chain_id and r.address = p.escrow), (select d.emitter from orphaned_events d
	where d.chain_id = p.chain_id and d.escrow = p.escrow and d.emitter is not null limit 1))`

// Factories returns the factories of a chain in the order in which they were added, retired ones included.
func Factories(ctx context.Context, db DB, chainID int64) ([]Factory, error) {
	rows, _ := db.Query(ctx, `
		select id, address, start_block, coalesce(retired_block, 0), coalesce(past_block, 0), coalesce(until_block, 0)
		from factories where chain_id = $1 order by id`, chainID)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Factory])
	if err != nil {
		return nil, fmt.Errorf("read the factories of chain %d: %w", chainID, err)
	}

	return list, nil
}

// Followed is an instance's copy of its chain's factories. It is safe for concurrent use.
type Followed struct{ list atomic.Pointer[[]Factory] }

// NewFollowed returns these factories, until Set or Refresh.
func NewFollowed(list ...Factory) *Followed {
	f := &Followed{}
	f.Set(list)

	return f
}

// Refresh reads the factories from the database.
func (f *Followed) Refresh(ctx context.Context, db DB, chainID int64) error {
	list, err := Factories(ctx, db, chainID)
	if err == nil {
		f.Set(list)
	}

	return err
}

// Set replaces the factories.
func (f *Followed) Set(list []Factory) { f.list.Store(&list) }

// List returns the factories. The caller must not change it.
func (f *Followed) List() []Factory { return *f.list.Load() }

// Has reports whether the factory watch reads a contract's deployments in a block.
func (f *Followed) Has(address common.Address, block uint64) bool {
	return slices.ContainsFunc(f.List(), func(k Factory) bool { return k.Address == address && k.Follows(block) })
}

// Deploys reports whether a contract's deployments in a block are followed, by whichever watch.
func (f *Followed) Deploys(address common.Address, block uint64) bool {
	return slices.ContainsFunc(f.List(), func(k Factory) bool { return k.Address == address && k.Deploys(block) })
}

// Past is the lowest block that is still to be read of a past; false: there is none.
func (f *Followed) Past() (block int64, left bool) {
	for _, k := range f.List() {
		if k.Past < k.Until && (!left || k.Past < block) {
			block, left = k.Past, true
		}
	}

	return block, left
}

// Addresses are those of all factories.
func (f *Followed) Addresses() []common.Address {
	list := f.List()
	addresses := make([]common.Address, len(list))
	for i := range list {
		addresses[i] = list[i].Address
	}

	return addresses
}

// ErrUnknownFactory means that the chain has no such factory in this database.
var ErrUnknownFactory = errors.New("this database does not follow the factory")

// AddFactories makes the leader follow further factories: their deployments from the cursor of the factory watch
// on come with those of the others; earlier ones, from each Start on, are read beside the watch. Known factories
// stay as they are.
//
// The new generation voids what the leader and the owners have read without them.
func AddFactories(ctx context.Context, tx pgx.Tx, chainID int64, more []Factory) error {
	if err := lookAgain(ctx, tx, chainID); err != nil {
		return err
	}

	return PutFactories(ctx, tx, chainID, more)
}

// lookAgain voids what was read with other factories, wherever the cursors are, and holds them: what comes after it in
// the transaction sees where they stand. Owners are told. Rows are locked in the order leadership, cursors.
func lookAgain(ctx context.Context, tx pgx.Tx, chainID int64) error {
	for _, statement := range []string{`update leadership set generation = generation + 1 where chain_id = $1`,
		`update cursors set generation = generation + 1 where chain_id = $1`,
		`select pg_notify('` + Channel + `', $1::bigint::text)`} {
		if _, err := tx.Exec(ctx, statement, chainID); err != nil {
			return fmt.Errorf("make the watches of chain %d look again: %w", chainID, err)
		}
	}

	return nil
}

// PutFactories is AddFactories for a chain that is still to be read.
func PutFactories(ctx context.Context, tx pgx.Tx, chainID int64, more []Factory) error {
	for _, f := range more {
		if _, err := tx.Exec(ctx, addFactory, chainID, f.Address[:], f.Start); err != nil {
			return fmt.Errorf("add factory %s: %w", f.Address, err)
		}
	}

	if _, err := tx.Exec(ctx, beginEarlier, chainID); err != nil {
		return fmt.Errorf("move the first block of chain %d: %w", chainID, err)
	}

	return nil
}

const beginEarlier = `
	update leadership
	set start_block = least(start_block, (select min(start_block) from factories where chain_id = $1)) where chain_id = $1`

const addFactory = `
	insert into factories (chain_id, id, address, start_block, past_block, until_block)
	select l.chain_id, (select coalesce(max(id), 0) + 1 from factories where chain_id = $1), $2, $3::bigint,
	       case when $3 < l.next_block then $3 end, case when $3 < l.next_block then l.next_block end
	from leadership l where l.chain_id = $1
	on conflict (chain_id, address) do nothing`

// RetireFactory ends the following of a factory's new deployments at a block, and returns it: 0 is the one after the
// newest head that an instance has seen, or where it is retired already. What the factory watch has not reached of the
// blocks before it is read first. Its escrows are followed to their end. ErrCreating: a transaction that creates an
// escrow of it is under way, and that escrow would be lost.
func RetireFactory(ctx context.Context, tx pgx.Tx, chainID int64, address common.Address, at int64) (block int64,
	err error) {
	if err := lookAgain(ctx, tx, chainID); err != nil {
		return 0, err
	}

	var next, before int64
	err = tx.QueryRow(ctx, retireFactory, chainID, address[:], at).Scan(&block, &next, &before)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: %s on chain %d, or it still reads its past: `escrow-relayer factory list` tells which",
			ErrUnknownFactory, address, chainID)
	}

	if err != nil {
		return 0, fmt.Errorf("retire factory %s: %w", address, err)
	}

	switch {
	case at > 0 && at != block:
		return 0, fmt.Errorf("retire factory %s at block %d: it is retired at block %d already; follow it again first",
			address, at, block)
	case at > 0 && at < next && before == 0:
		return 0, fmt.Errorf("retire factory %s at block %d: its deployments before block %d are followed already; "+
			"name that one or a later one", address, at, next)
	}

	// The row's lock is held: no further one gets a nonce.
	var open int
	if err := tx.QueryRow(ctx, countCreating, chainID, address[:]).Scan(&open); err != nil {
		return 0, fmt.Errorf("retire factory %s: %w", address, err)
	}

	if open > 0 {
		return 0, fmt.Errorf("%w: %d of factory %s; wait until they are answered, or cancel them, and retire it again",
			ErrCreating, open, address)
	}

	return block, nil
}

// next is the block that no watch has passed.
const retireFactory = `
	with l as (
		select greatest(next_block, (select max(next_block) from cursors where chain_id = $1)) as next_block
		from leadership where chain_id = $1)
	update factories set retired_block = coalesce(retired_block, nullif($3::bigint, 0), greatest(l.next_block,
		(select max(head_block) + 1 from relayer_instances where chain_id = $1)))
	from l where chain_id = $1 and address = $2 and past_block is null
	returning retired_block, next_block, coalesce((select f.retired_block from factories f
		where f.chain_id = $1 and f.address = $2), 0)`

// FollowFactory undoes RetireFactory. What was deployed since, up to the cursor of the factory watch, is read as a
// past.
func FollowFactory(ctx context.Context, tx pgx.Tx, chainID int64, address common.Address) error {
	if err := lookAgain(ctx, tx, chainID); err != nil {
		return err
	}

	tag, err := tx.Exec(ctx, followFactory, chainID, address[:])
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("%w, or it is not retired: `escrow-relayer factory list` tells which; one is added by FACTORY_ADDRESS",
			ErrUnknownFactory)
	}

	if err != nil {
		return fmt.Errorf("follow factory %s of chain %d again: %w", address, chainID, err)
	}

	return nil
}

const followFactory = `
	update factories
	set past_block = case when retired_block < l.next_block then coalesce(past_block, retired_block) else past_block end,
	    until_block = case when retired_block < l.next_block then l.next_block else until_block end, retired_block = null
	from (select next_block from leadership where chain_id = $1) l
	where chain_id = $1 and address = $2 and retired_block is not null`

// ErrCreating means that transactions which create escrows of a factory are under way.
var ErrCreating = errors.New("transactions that create escrows are under way")

const countCreating = `
	select count(*) from commands
	where chain_id = $1 and kind = 'create' and state = 'sent' and lower(message ->> 'factory') = hex($2)`
