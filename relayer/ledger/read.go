package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// The read-only side of the ledger.

// SlotPosition reads the cursor of this instance under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) SlotPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, slotPosition, l.cfg.ChainID, epoch, l.cfg.InstanceID)
}

// SettledPosition is SlotPosition after a commit that is under way, since its answer was lost: what is read
// next is then of after that commit, also where it leaves the cursor in its place.
func (l *Ledger) SettledPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, slotPosition+` for share`, l.cfg.ChainID, epoch, l.cfg.InstanceID)
}

const slotPosition = `select next_block, block_hash, generation from cursors
	where chain_id = $1 and epoch = $2 and instance_id = $3 and next_block is not null`

// FactoryPosition reads the cursor of the factory watch under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) FactoryPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, `select next_block, block_hash, generation from leadership where chain_id = $1 and epoch = $2`,
		l.cfg.ChainID, epoch)
}

// Follow reads which factories are followed.
func (l *Ledger) Follow(ctx context.Context, f *registry.Followed) error {
	return f.Refresh(ctx, l.cfg.DB, l.cfg.ChainID)
}

// Start is the position at which the chain's processing began.
func (l *Ledger) Start(ctx context.Context) (Position, error) {
	return l.position(ctx, `select start_block, null::text, generation from leadership where chain_id = $1`, l.cfg.ChainID)
}

func (l *Ledger) position(ctx context.Context, query string, args ...any) (Position, error) {
	p, err := scanPosition(l.cfg.DB.QueryRow(ctx, query, args...))
	if errors.Is(err, pgx.ErrNoRows) {
		return Position{}, ErrFenced
	}

	if err != nil {
		return Position{}, fmt.Errorf("read the cursor: %w", err)
	}

	return p, nil
}

// Late is registry.ListLate for the slots of this instance.
func (l *Ledger) Late(ctx context.Context, r registry.Range, limit int) ([]registry.Late, error) {
	return registry.ListLate(ctx, l.cfg.DB, l.cfg.ChainID, l.cfg.InstanceID, r, limit)
}

// Blocks returns remembered blocks below a number, the highest first; at most limit.
func (l *Ledger) Blocks(ctx context.Context, below int64, limit int) ([]Block, error) {
	rows, _ := l.cfg.DB.Query(ctx,
		`select number, hash from chain_blocks where chain_id = $1 and number < $2 order by number desc limit $3`,
		l.cfg.ChainID, below, limit)
	blocks, err := pgx.CollectRows(rows, scanBlock)
	if err != nil {
		return nil, fmt.Errorf("read remembered blocks below %d: %w", below, err)
	}

	return blocks, nil
}

// Verifiable reads up to where the chain is stored completely.
func (l *Ledger) Verifiable(ctx context.Context) (v Verifiable, err error) {
	var hash string
	err = l.cfg.DB.QueryRow(ctx, verifiable, l.cfg.ChainID).Scan(&v.From, &v.To, &v.generation, &v.Newest.Number, &hash,
		&v.Again)
	v.Newest.Hash = common.HexToHash(hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, fmt.Errorf("no instance has ever run for chain %d on this database: check CHAIN_ID and DATABASE_URL",
			l.cfg.ChainID)
	}

	if err != nil {
		return v, fmt.Errorf("read how far the chain is stored: %w", err)
	}

	return v, nil
}

const verifiable = `
	select l.verified_block + 1,
	       least(l.next_block - 1,
	             (select min(c.next_block) - 1 from cursors c where c.chain_id = $1 and exists (
	                  select from slot_ownership s where s.chain_id = $1 and s.owner = c.instance_id)),
	             (select min(next_block) - 1 from slot_ownership where chain_id = $1 and owner is null),
	             (select min(monitored) from late_escrows where chain_id = $1)),
	       l.generation, l.next_block - 1, coalesce(l.block_hash, ''), l.again_block
	from leadership l where l.chain_id = $1`

// Stored returns the canonical events of a range of blocks, in order.
func (l *Ledger) Stored(ctx context.Context, from, to int64) ([]contract.Event, error) {
	rows, _ := l.cfg.DB.Query(ctx, storedEvents, l.cfg.ChainID, from, to)
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return nil, fmt.Errorf("read the events of blocks %d to %d: %w", from, to, err)
	}

	return events, nil
}

const storedEvents = `
	select ` + eventColumns + ` from events p
	where p.chain_id = $1 and p.block_number between $2 and $3
	order by p.block_number, p.log_index`

// Emitters returns at most so many of our contracts that may have emitted events in a range of
// blocks: the escrows deployed by its end and still active at its start, and those with stored
// events in it.
func (l *Ledger) Emitters(ctx context.Context, from, to int64, most int) ([]common.Address, error) {
	rows, _ := l.cfg.DB.Query(ctx, emitters, l.cfg.ChainID, from, to, most)
	list, err := pgx.CollectRows(rows, pgx.RowTo[common.Address])
	if err != nil {
		return nil, fmt.Errorf("read which escrows may have emitted events in blocks %d to %d: %w", from, to, err)
	}

	return list, nil
}

const emitters = `
	select escrow from events where chain_id = $1 and block_number between $2 and $3
	union
	select address from escrows
	where chain_id = $1 and status <> 4 and discovered_block_number <= $3 and (ended_block is null or ended_block >= $2)
	limit $4`

// Registered returns which of some addresses are registered escrows with all events up to a block
// stored, given that the block is Verifiable: an escrow deployed above it may have been created
// earlier, and its owner reads its earlier events before it admits it.
func (l *Ledger) Registered(ctx context.Context, block int64, addresses []common.Address) (map[common.Address]bool,
	error) {
	return l.addresses(ctx, `
		select address from escrows e where chain_id = $1 and address = any($2) and status <> 4
		and not exists (select from late_escrows l where l.chain_id = e.chain_id and l.address = e.address
			and l.monitored < l.deployed_block and l.deployed_block > $3)`, addresses, block)
}

// Registration is what the registry has of an escrow.
type Registration struct {
	At     contract.Place // of its EscrowDeployed
	Pruned bool           // it has ended, and RETENTION has removed its events
}

// Known returns what the registry has of the escrows that some events deploy; those that it lacks are left out.
func (l *Ledger) Known(ctx context.Context, deployed []contract.Event) (map[common.Address]Registration, error) {
	return registrations(ctx, l.cfg.DB, l.cfg.ChainID, deployed)
}

func registrations(ctx context.Context, db registry.DB, chainID int64,
	deployed []contract.Event) (map[common.Address]Registration, error) {
	known := make(map[common.Address]Registration, len(deployed))
	rows, _ := db.Query(ctx, selectRegistrations, chainID, column.Of(deployed, escrowOf))
	var escrow common.Address
	var r Registration
	if _, err := pgx.ForEachRow(rows, []any{&escrow, &r.At.Block, &r.At.Index, &r.Pruned}, func() error {
		known[escrow] = r
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look up %d escrows: %w", len(deployed), err)
	}

	return known, nil
}

const selectRegistrations = `
	select address, discovered_block_number, log_index, ended_block is not null and not exists (
		select from events p where p.chain_id = e.chain_id and p.escrow = e.address)
	from escrows e where chain_id = $1 and address = any($2) and status <> 4`

// Pruned returns which of some addresses are ended escrows with events that RETENTION has removed.
func (l *Ledger) Pruned(ctx context.Context, addresses []common.Address) (map[common.Address]bool, error) {
	return l.addresses(ctx, `
		select address from escrows e where chain_id = $1 and address = any($2) and ended_block is not null
		and not exists (select from events p where p.chain_id = e.chain_id and p.escrow = e.address)`, addresses)
}

// addresses returns those that a query finds; its arguments are the chain, the addresses and more.
func (l *Ledger) addresses(ctx context.Context, query string, addresses []common.Address,
	more ...any) (map[common.Address]bool, error) {
	if len(addresses) == 0 {
		return nil, nil
	}

	args := append([]any{l.cfg.ChainID, column.Of(addresses, (*common.Address).Bytes)}, more...)
	rows, _ := l.cfg.DB.Query(ctx, query, args...)
	known, err := pgx.CollectRows(rows, pgx.RowTo[common.Address])
	if err != nil {
		return nil, fmt.Errorf("look up %d addresses: %w", len(addresses), err)
	}

	set := make(map[common.Address]bool, len(known))
	for _, a := range known {
		set[a] = true
	}

	return set, nil
}

// ReplayCount is the size of a replay.
type ReplayCount struct {
	Events, Escrows int
}

// Count returns what Replay would publish.
func (l *Ledger) Count(ctx context.Context, s Selection) (n ReplayCount, err error) {
	args, err := s.args(&l.cfg)
	if err != nil {
		return n, err
	}

	err = l.cfg.DB.QueryRow(ctx, `select count(*), count(distinct escrow) from (`+selectReplay+`) p`,
		args).Scan(&n.Events, &n.Escrows)
	if err != nil {
		return n, fmt.Errorf("count the events to replay: %w", err)
	}

	return n, nil
}
