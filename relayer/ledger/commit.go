package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// SlotCommit is what an owner stores for a range of blocks. From.Next == To.Next stores events
// under an unmoved cursor, which is how late escrows are caught up.
type SlotCommit struct {
	Epoch    int64
	From, To Position
	// Inside are blocks of the range, below its last one, with hashes that the caller has read: if the
	// range was assembled from several readings, the last block of each.
	Inside []Block
	// Checked is a remembered block inside the range (BranchError) that the caller has verified to
	// be canonical.
	Checked  Block
	Time     uint64              // of block To.Next-1, unix seconds
	Announce []registry.Late     // their EscrowDeployed goes into the outbox, ahead of everything else
	Progress []registry.Progress // of late escrows
	Events   []contract.Event    // of escrows in the owner's slots, in (block, log index) order
}

// FactoryCommit is what the leader stores for a range of blocks.
type FactoryCommit struct {
	Epoch    int64
	From, To Position
	Inside   []Block          // as of SlotCommit
	Checked  Block            // as of SlotCommit
	Time     uint64           // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// commitSlots is the transaction of CommitSlots.
func commitSlots(ctx context.Context, t *transaction, c SlotCommit) error {
	past, err := advance(ctx, t, advanceSlots, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time})
	if err != nil {
		return err
	}

	if err := announce(ctx, t, c.Announce); err != nil {
		return err
	}

	if past.requests {
		if err := serve(ctx, t); err != nil {
			return err
		}
	}

	fresh, err := store(ctx, t, c.Events, storing{queue: true, orphans: past.orphans})
	if err != nil {
		return err
	}

	if err := registry.End(ctx, t, t.cfg.ChainID, endings(fresh)); err != nil {
		return err
	}

	if err := registry.Advance(ctx, t, t.cfg.ChainID, c.Progress); err != nil {
		return err
	}

	if t.result.Open = past.open || past.requests; !past.open {
		return nil
	}

	return retract(ctx, t, c.To.Next)
}

// commitFactory is the transaction of CommitFactory.
func commitFactory(ctx context.Context, t *transaction, c FactoryCommit) error {
	past, err := advance(ctx, t, advanceFactory, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time})
	if err != nil {
		return err
	}

	return discover(ctx, t, c.Events, past, c.To)
}

// PastCommit is what the leader stores for a range of the past of a factory that was added later.
type PastCommit struct {
	Epoch    int64
	Factory  common.Address
	From, To Position         // their generation is that of the factory watch
	Checked  Block            // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// commitPast is the transaction of CommitPast. Like every writer it locks leadership before factories.
func commitPast(ctx context.Context, t *transaction, c PastCommit) error {
	var p past
	err := t.QueryRow(ctx, holdFactory, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "me": t.cfg.InstanceID,
		"epoch": c.Epoch, "generation": c.From.Generation}).Scan(&p.orphans, &p.open, &p.requests)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrMoved
	}

	if err != nil {
		return fmt.Errorf("hold the cursor of the factory watch: %w", err)
	}

	var done bool
	err = t.QueryRow(ctx, advancePast, t.cfg.ChainID, c.Factory[:], c.From.Next, c.To.Next).Scan(&done)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrMoved
	}

	if err != nil {
		return fmt.Errorf("advance the past of factory %s: %w", c.Factory, err)
	}

	if err := remember(ctx, t, step{epoch: c.Epoch, from: c.From, to: c.To, checked: c.Checked}); err != nil {
		return err
	}

	if done {
		if _, err := t.Exec(ctx, verifyPast, t.cfg.ChainID, c.Factory[:]); err != nil {
			return fmt.Errorf("let the past of factory %s be read again: %w", c.Factory, err)
		}
	}

	return discover(ctx, t, c.Events, p, c.To)
}

const (
	holdFactory = `
	select ` + left + `
	from leadership where chain_id = @chain and instance_id = @me and epoch = @epoch and generation = @generation for share`

	advancePast = `
	update factories
	set past_block = case when $4::bigint < until_block then $4 end, until_block = case when $4 < until_block then until_block end
	where chain_id = $1 and address = $2 and past_block = $3
	returning past_block is null`

	// The second reading has passed these blocks without the factory.
	verifyPast = `
	update leadership l set verified_block = least(l.verified_block, f.start_block - 1)
	from factories f where l.chain_id = $1 and f.chain_id = $1 and f.address = $2`
)

// discover stores deployments, and registers their escrows.
func discover(ctx context.Context, t *transaction, deployed []contract.Event, past past, to Position) error {
	events, err := notPruned(ctx, t, deployed)
	if err != nil {
		return err
	}

	fresh, err := store(ctx, t, events, storing{orphans: past.orphans})
	if err != nil {
		return err
	}

	registered, err := registry.Record(ctx, t, t.cfg.ChainID, discoveries(fresh))
	if err != nil {
		return err
	}

	if again := len(fresh) - registered; again > 0 {
		if err := addFinding(ctx, t, Finding{Kind: AnnouncedAgain, Block: to.Next - 1, Events: again}); err != nil {
			return err
		}
	}

	return t.notify(ctx, registry.Channel)
}

// notPruned drops the deployments of ended escrows after RETENTION has removed their events: they were
// announced, and their later events are skipped. The leader meets them after a rewind.
func notPruned(ctx context.Context, t *transaction, deployed []contract.Event) ([]contract.Event, error) {
	if len(deployed) == 0 {
		return deployed, nil
	}

	blocks, indexes := placesOf(deployed)
	rows, _ := t.Query(ctx, prunedAt, t.cfg.ChainID, column.Of(deployed, escrowOf), blocks, indexes,
		column.Of(deployed, txOf))
	gone := map[contract.Place]bool{}
	var p contract.Place
	if _, err := pgx.ForEachRow(rows, []any{&p.Block, &p.Index}, func() error { gone[p] = true; return nil }); err != nil {
		return nil, fmt.Errorf("look up %d deployments that may have been removed: %w", len(deployed), err)
	}

	if len(gone) == 0 {
		return deployed, nil
	}

	return slices.DeleteFunc(slices.Clone(deployed), func(e contract.Event) bool { return gone[e.Place()] }), nil
}

const prunedAt = `
	select t.block, t.index
	from unnest($2::bytea[], $3::bigint[], $4::integer[], $5::bytea[]) as t(address, block, index, tx)
	join escrows e on e.chain_id = $1 and e.address = t.address
	where e.ended_block is not null and e.discovered_block_number = t.block and e.log_index = t.index and e.tx_hash = t.tx
	  and not exists (select from events p where p.chain_id = $1 and p.escrow = t.address)`

// discoveries are the registry's entries for some EscrowDeployed.
func discoveries(deployed []contract.Event) []registry.Discovery {
	found := make([]registry.Discovery, len(deployed))
	for i := range deployed {
		e := &deployed[i]
		found[i] = registry.Discovery{
			Address: e.Escrow, Slot: partition.Slot(e.Escrow), Block: int64(e.BlockNumber), LogIndex: int32(e.LogIndex),
			TxHash: e.TxHash, Occurrence: e.Occurrence, Factory: e.Factory,
		}
	}

	return found
}

// endings are the registry's entries for the releases and refunds among events in the order of the
// chain: the last one of each escrow.
func endings(events []contract.Event) (ends []registry.Ending) {
	at := map[common.Address]int{}
	for i := range events {
		e := &events[i]
		if !e.Ends() {
			continue
		}

		end := registry.Ending{Address: e.Escrow, Status: registry.Released, Block: int64(e.BlockNumber)}
		if e.Name == contract.Refunded {
			end.Status = registry.Refunded
		}

		if n, again := at[e.Escrow]; again {
			ends[n] = end
		} else {
			at[e.Escrow] = len(ends)
			ends = append(ends, end)
		}
	}

	return ends
}

// announce puts the EscrowDeployed of newly admitted escrows into the outbox, unless they were
// published before.
func announce(ctx context.Context, t *transaction, late []registry.Late) error {
	if len(late) == 0 || !t.cfg.Publishes(contract.Deployed) {
		return nil
	}

	rows, _ := t.Query(ctx, announced, t.cfg.ChainID, column.Of(late, func(l *registry.Late) int64 { return l.Block }),
		column.Of(late, func(l *registry.Late) int32 { return l.LogIndex }))
	told := map[contract.Place]bool{}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (contract.Event, error) {
		var before bool
		e, err := scanEvent(rowWithPrefix{row, []any{&before}})
		told[e.Place()] = before

		return e, err
	})
	if err != nil {
		return fmt.Errorf("announce %d escrows: %w", len(late), err)
	}

	if len(events) != len(late) {
		return fmt.Errorf("announce %d escrows: %d of their %s events are stored: the registry and processed_events disagree; run `escrow-relayer audit`",
			len(late), len(events), contract.Deployed)
	}

	sortEvents(events)

	return enqueue(ctx, t, events, func(e *contract.Event) bool { return !told[e.Place()] })
}

const announced = `
	select p.told, ` + eventColumns + `
	from unnest($2::bigint[], $3::integer[]) as t(block, index)
	join events p on p.chain_id = $1 and p.block_number = t.block and p.log_index = t.index`

// advanceSlots moves the cursor of an instance if its epoch and position still hold; it locks the
// row until the commit, so a claim waits for the commit and sees it.
const advanceSlots = `
	update cursors
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time), updated_at = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation
	returning ` + left

// advanceFactory does the same for the factory watch.
const advanceFactory = `
	update leadership
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time),
	    last_heartbeat = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation
	returning ` + left

// left reports whether the chain has orphaned events, whether some of them are open, and whether
// there are requests.
const left = `exists (select from orphaned_events where chain_id = @chain),
	exists (select from orphaned_events where chain_id = @chain and state <= 2),
	exists (select from requests where chain_id = @chain)`

// step is how a commit moves its cursor.
type step struct {
	epoch    int64
	from, to Position
	inside   []Block
	checked  Block
	time     uint64
}

// past is the state of a chain that a commit handles in addition to its blocks.
type past struct {
	orphans  bool // there are orphaned events: a reorganisation was deeper than the chain's finality
	open     bool // some of them may still reappear, or wait for their retraction
	requests bool // there are requests
}

// latestTime is the last second that a timestamptz holds, at the end of the year 294276.
const latestTime = 9_224_318_015_999

// advance moves a cursor by one of the statements above. ErrMoved: it differs from where the step
// begins.
func advance(ctx context.Context, t *transaction, statement string, s step) (r past, err error) {
	if s.time > latestTime {
		s.time = 0 // unknown: it exceeds a timestamptz
	}

	err = t.QueryRow(ctx, statement, pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "me": t.cfg.InstanceID, "epoch": s.epoch, "from": s.from.Next,
		"was": s.from.hashColumn(), "generation": s.from.Generation, "to": s.to.Next, "hash": s.to.hashColumn(),
		"time": int64(s.time),
	}).Scan(&r.orphans, &r.open, &r.requests)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return r, ErrMoved
	case err != nil:
		return r, fmt.Errorf("advance the cursor: %w", err)
	case s.to.Next == s.from.Next || s.to.Hash == (common.Hash{}):
		return r, nil
	}

	return r, remember(ctx, t, s)
}

// remember stores the hashes of a range's last block and of those read inside it. It compares them,
// the block before the range, and the highest block that others remember inside the range, with
// what others remember. Remembered blocks are of one branch, so each vouches for those below it.
//
// It never waits. Each writer of a block holds an advisory lock for its height until its
// transaction ends; a transaction that misses the lock leaves the block to the other one, which may
// be frozen, and compares with what that one wrote when the next range is committed.
func remember(ctx context.Context, t *transaction, s step) error {
	last := s.to.Next - 1
	blocks := append(slices.Clip(s.inside), Block{last, s.to.Hash})
	read := make(map[int64]common.Hash, len(blocks))
	for _, b := range blocks {
		read[b.Number] = b.Hash
	}

	rows, _ := t.Query(ctx, rememberBlocks, pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "number": last, "from": s.from.Next, "heights": election.Heights,
		"numbers": column.Of(blocks, func(b *Block) int64 { return b.Number }),
		"hashes":  column.Of(blocks, func(b *Block) string { return b.Hash.Hex() }),
	})
	known, err := pgx.CollectRows(rows, scanBlock)
	if err != nil {
		return fmt.Errorf("remember block %d: %w", last, err)
	}

	for _, b := range known {
		hash, isRead := read[b.Number]
		switch {
		case isRead && b.Hash != hash,
			!isRead && b.Number >= s.from.Next && b != s.checked,
			b.Number < s.from.Next && s.from.Hash != (common.Hash{}) && b.Hash != s.from.Hash:
			return &BranchError{b}
		}
	}

	return nil
}

// rememberBlocks adds blocks at free and unlocked heights, and returns the remembered hashes
// of them, of the block before the range, and of the highest block inside.
const rememberBlocks = `
	with added as (
		insert into chain_blocks (chain_id, number, hash)
		select @chain::bigint, t.number, t.hash
			from unnest(@numbers::bigint[], @hashes::text[]) as t(number, hash)
			where pg_try_advisory_xact_lock((select (lock_key(@heights, @chain, '') >> 32)::integer), (t.number % 2147483648)::integer)
		on conflict (chain_id, number) do nothing)
	select number, hash from chain_blocks
	where chain_id = @chain::bigint and (number = any(@numbers::bigint[]) or number = @from::bigint - 1
		or number = (select max(number) from chain_blocks where chain_id = @chain::bigint and number >= @from::bigint
			and number < @number::bigint))
	order by number desc`
