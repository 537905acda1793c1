// Package ledger owns every transaction on events: what an owner commits for its slots, what the leader commits for the
// factory, and the rollback of a reorganisation.
//
// One processed range is one transaction: the cursor advances, under the epoch of whoever holds the
// right, together with everything that the range brought. An event is (block hash, log index);
// those that are stored already change nothing. A commit therefore either happened as a whole or
// not at all, can be repeated, and fails with ErrMoved when somebody else took the right or moved
// the cursor: then nothing is written, and the caller looks again where it stands.
//
//	advance cursor (epoch, from) ─► events, outbox ─► records, registry ─► commit
//
// Outbox rows of a slot are written by its owner only, and one commit after the other, so seq order
// is the order in which they were committed and have to be published. (A replay and the verifier
// write rows too, and say so on OutboxChannel.)
package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// OutboxChannel is the notification channel on which somebody other than a slot's owner says that it wrote outbox rows.
const OutboxChannel = "relayer_outbox"

// ErrMoved means that a commit found its cursor moved or its epoch raised: a claim, a release, a
// rollback or another owner came in between. Nothing was written.
var ErrMoved = errors.New("the cursor moved or the right to commit changed hands")

// BranchError means that a range meets a block that was remembered before, or that a stored event
// is in, and that nobody has compared with it: the last block of the range or the one before the
// range is another one, or the block lies inside the range. Nothing was written. One of the two
// branches is not the chain's.
type BranchError struct{ Block Block }

func (e *BranchError) Error() string {
	return fmt.Sprintf("block %d was processed before as %s: one of the two is not canonical",
		e.Block.Number, e.Block.Hash)
}

// ErrFenced means that the epoch is over: whatever was held under it is void.
var ErrFenced = errors.New("fenced: the epoch is over")

// Config of a Ledger. All fields are required.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	EventNames []string                    // of the ABIs
	Publishes  func(eventName string) bool // whether events of this name go to Pub/Sub
}

// Ledger commits. It is safe for concurrent use; commits under one right are serial by nature.
type Ledger struct {
	cfg Config

	mu    sync.Mutex
	known *names // nil until they are needed
}

// New returns a Ledger.
func New(cfg Config) *Ledger { return &Ledger{cfg: cfg} }

// Position is a cursor: the next block to process, and the hash of the block before it (zero when
// unknown). A rollback raises the generation of every cursor, also of those that it does not move:
// what was read before it, of the chain or of the registry, can no longer be committed.
type Position struct {
	Next       int64
	Hash       common.Hash
	Generation int64
}

// To is the position behind a block, in the same generation.
func (p Position) To(next int64, hash common.Hash) Position {
	return Position{next, hash, p.Generation}
}

func (p Position) String() string { return fmt.Sprintf("block %d", p.Next) }

// hash is the column value of a block hash: null for the zero hash.
func hash(h common.Hash) *string {
	if h == (common.Hash{}) {
		return nil
	}

	s := h.Hex()

	return &s
}

func position(next int64, hash *string, generation int64) Position {
	p := Position{Next: next, Generation: generation}
	if hash != nil {
		p.Hash = common.HexToHash(*hash)
	}

	return p
}

// SlotPosition reads the cursor of this instance under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) SlotPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx,
		`select next_block, block_hash, generation from cursors where chain_id = $1 and epoch = $2 and instance_id = $3 and next_block is not null`,
		l.cfg.ChainID, epoch, l.cfg.InstanceID)
}

// FactoryPosition reads the cursor of the factory watch under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) FactoryPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, `select next_block, block_hash, generation from leadership where chain_id = $1 and epoch = $2`,
		l.cfg.ChainID, epoch)
}

func (l *Ledger) position(ctx context.Context, query string, args ...any) (Position, error) {
	var next, generation int64
	var h *string
	err := l.cfg.DB.QueryRow(ctx, query, args...).Scan(&next, &h, &generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return Position{}, ErrFenced
	}

	if err != nil {
		return Position{}, fmt.Errorf("read the cursor: %w", err)
	}

	return position(next, h, generation), nil
}

// Discovered says how far the factory watch has come, and which escrows wait to be admitted in slots of this instance.
type Discovered struct {
	Next int64 // next block of the factory watch: everything below it is in the registry
	Late []registry.Late
}

// Discovered reads the cursor first and then the escrows: what is in the registry below the one is
// among the others, unless it was admitted. At most limit late escrows are returned, those furthest
// behind first.
func (l *Ledger) Discovered(ctx context.Context, limit int) (d Discovered, err error) {
	if err := l.cfg.DB.QueryRow(ctx, `select next_block from leadership where chain_id = $1`,
		l.cfg.ChainID).Scan(&d.Next); err != nil {
		return d, fmt.Errorf("read the factory cursor: %w", err)
	}

	d.Late, err = registry.ListLate(ctx, l.cfg.DB, l.cfg.ChainID, l.cfg.InstanceID, limit)

	return d, err
}

// SlotCommit is what an owner stores for a range of blocks. From.Next == To.Next stores events
// without moving the cursor, which is how late escrows are caught up.
type SlotCommit struct {
	Epoch    int64
	From, To Position
	// Inside are blocks of the range, below its last one, whose hashes the caller has read: where the
	// range was put together from several readings, the last block of each.
	Inside []Block
	// a block inside the range that was remembered (BranchError) and that the caller has found
	// canonical
	Checked  Block
	Time     uint64              // of block To.Next-1, unix seconds
	Announce []registry.Late     // their EscrowDeployed goes into the outbox, before all else
	Progress []registry.Progress // of late escrows
	Events   []contract.Event    // of escrows in the owner's slots, in (block, log index) order
}

// Result is what a commit changed.
type Result struct {
	Pending    []outbox.Pending // new outbox rows, in seq order
	New        int              // events stored
	Duplicates int              // events that were stored already
	// orphans of a reorganisation that did not reappear: their rows are in the outbox, not in Pending
	Retracted int
	Revived   int // orphans that reappeared: their rows may be in the outbox, not in Pending
	Dropped   int // orphans that did not, and that nobody was told of

	revived map[place]bool
}

// CommitSlots stores a range for the slots of this instance. ErrMoved: nothing was written.
func (l *Ledger) CommitSlots(ctx context.Context, c SlotCommit) (r Result, err error) {
	if _, err := l.names(ctx); err != nil {
		return Result{}, err
	}

	ahead := foldAhead(c.Events)
	defer func() { <-ahead.done }()
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		past, err := l.advance(ctx, tx, advanceSlots, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time})
		if err != nil {
			return err
		}

		if err := l.announce(ctx, tx, c.Announce, &r); err != nil {
			return err
		}

		settle := func(ctx context.Context, tx pgx.Tx, r *Result) error {
			return l.retract(ctx, tx, c.To.Next, r)
		}
		fresh, err := l.store(ctx, tx, c.Events, storing{queue: true, orphans: past.orphans, settle: settle}, &r)
		if err != nil {
			return err
		}

		if err := l.project(ctx, tx, fresh, ahead); err != nil {
			return err
		}

		if err := registry.Advance(ctx, tx, l.cfg.ChainID, c.Progress); err != nil {
			return err
		}

		if !past.open {
			return nil
		}

		return settle(ctx, tx, &r)
	})
	if err != nil {
		return Result{}, fmt.Errorf("commit %d events of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
	}

	return r, nil
}

// FactoryCommit is what the leader stores for a range of blocks.
type FactoryCommit struct {
	Epoch    int64
	From, To Position
	Inside   []Block          // as of SlotCommit
	Checked  Block            // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// CommitFactory stores a range of the factory watch, and registers the escrows. ErrMoved: nothing was written.
func (l *Ledger) CommitFactory(ctx context.Context, c FactoryCommit) (r Result, err error) {
	if _, err := l.names(ctx); err != nil {
		return Result{}, err
	}

	ahead := foldAhead(c.Events)
	defer func() { <-ahead.done }()
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		past, err := l.advance(ctx, tx, advanceFactory, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, 0})
		if err != nil {
			return err
		}

		fresh, err := l.store(ctx, tx, c.Events, storing{orphans: past.orphans}, &r)
		if err != nil {
			return err
		}

		if err := l.project(ctx, tx, fresh, ahead); err != nil {
			return err
		}

		if err := registry.Record(ctx, tx, l.cfg.ChainID, discoveries(fresh, r.revived)); err != nil {
			return err
		}

		return l.notify(ctx, tx, registry.Channel)
	})
	if err != nil {
		return Result{}, fmt.Errorf("commit %d discoveries of blocks %d to %d: %w", len(c.Events), c.From.Next,
			c.To.Next-1, err)
	}

	return r, nil
}

// discoveries are what the registry keeps of some EscrowDeployed. Those that reappeared were announced before.
func discoveries(deployed []contract.Event, revived map[place]bool) []registry.Discovery {
	found := make([]registry.Discovery, len(deployed))
	for i := range deployed {
		e := &deployed[i]
		found[i] = registry.Discovery{
			Address: e.Escrow, Slot: partition.Slot(e.Escrow), Block: int64(e.BlockNumber), LogIndex: int32(e.LogIndex),
			TxHash:     e.TxHash,
			Occurrence: e.Occurrence, Announced: revived[placeOf(e)],
		}
	}

	return found
}

// advanceSlots moves the cursor of an instance if its epoch still holds and nobody moved it; it
// locks the row until the commit, so a claim waits for the commit and sees it.
const advanceSlots = `
	update cursors
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time), updated_at = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation
	returning ` + lookPast

// advanceFactory does the same for the factory watch.
const advanceFactory = `
	update leadership set next_block = @to, block_hash = @hash, last_heartbeat = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation and @time::bigint is not null
	returning ` + lookPast

// lookPast says whether the chain has orphaned events, and whether the fate of some is open.
const lookPast = `exists (select from orphaned_events where chain_id = @chain), exists (select from orphaned_events where chain_id = @chain and state <= 2)`

type step struct {
	epoch    int64
	from, to Position
	inside   []Block
	checked  Block
	time     uint64
}

// reorganised says what a chain has of reorganisations deeper than its finality.
type reorganised struct {
	orphans bool // there are orphaned events
	open    bool // the fate of some is open
}

func (l *Ledger) advance(ctx context.Context, tx pgx.Tx, statement string, s step) (r reorganised, err error) {
	err = tx.QueryRow(ctx, statement, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "me": l.cfg.InstanceID, "epoch": s.epoch, "from": s.from.Next, "was": hash(s.from.Hash),
		"generation": s.from.Generation, "to": s.to.Next, "hash": hash(s.to.Hash), "time": int64(s.time),
	}).Scan(&r.orphans, &r.open)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return r, ErrMoved
	case err != nil:
		return r, fmt.Errorf("advance the cursor: %w", err)
	case s.to.Next == s.from.Next || s.to.Hash == (common.Hash{}):
		return r, nil
	}

	return r, l.remember(ctx, tx, s)
}

// remember keeps the hashes of a range's last block and of those that were read inside it. It
// compares them, and the block before the range, with what others remember, and so the highest
// block of others inside the range. Remembered blocks are of one branch, so that one vouches for
// those below it.
//
// It waits for nobody. Who remembers a block holds an advisory lock for its height until its
// transaction ends; who does not get that lock leaves the block to the other one, which may be
// frozen, and compares with what it wrote when the next range is committed.
func (l *Ledger) remember(ctx context.Context, tx pgx.Tx, s step) error {
	last := Block{s.to.Next - 1, s.to.Hash}
	read := make(map[int64]common.Hash, len(s.inside)+1)
	numbers, hashes := make([]int64, 0, len(s.inside)+1), make([]string, 0, len(s.inside)+1)
	for _, b := range append(slices.Clip(s.inside), last) {
		read[b.Number] = b.Hash
		numbers, hashes = append(numbers, b.Number), append(hashes, b.Hash.Hex())
	}

	rows, _ := tx.Query(ctx, rememberBlocks, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "numbers": numbers, "hashes": hashes, "number": last.Number, "from": s.from.Next,
		"group": heightGroup(l.cfg.ChainID),
	})
	known, err := pgx.CollectRows(rows, scanBlock)
	if err != nil {
		return fmt.Errorf("remember block %d: %w", last.Number, err)
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

// rememberBlocks adds blocks, unless their height is there or somebody is at it, and returns what
// was there of them, of the block before the range, and of the highest block inside.
const rememberBlocks = `
	with added as (
		insert into chain_blocks (chain_id, number, hash)
		select @chain::bigint, t.number, t.hash
			from unnest(@numbers::bigint[], @hashes::text[]) as t(number, hash)
			where pg_try_advisory_xact_lock(@group::integer, (t.number % 2147483648)::integer)
		on conflict (chain_id, number) do nothing)
	select number, hash from chain_blocks
	where chain_id = @chain::bigint and (number = any(@numbers::bigint[]) or number = @from::bigint - 1
		or number = (select max(number) from chain_blocks where chain_id = @chain::bigint and number >= @from::bigint
			and number < @number::bigint))
	order by number desc`

// heightGroup is the first half of the advisory locks for the heights of a chain.
func heightGroup(chainID int64) int32 {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "escrow-relayer heights of chain %d", chainID)
	return int32(h.Sum32())
}

// HistoryKey is the advisory lock that a replay shares, and that retention and a rollback hold
// alone while they change which events are stored.
func HistoryKey(chainID int64) int64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "escrow-relayer history of chain %d", chainID)
	return int64(h.Sum64())
}

// tx runs f in a transaction. Cancellation in the middle rolls back; a commit that was sent is
// waited for, under a deadline of its own: its outcome matters more than a quick end.
func (l *Ledger) tx(ctx context.Context, f func(pgx.Tx) error) error {
	tx, err := l.cfg.DB.Begin(ctx)
	if err != nil {
		return err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		// after a commit it does nothing; after a failure the connection is thrown away if this fails too
		_ = tx.Rollback(ctx)
	}()
	if err := f(tx); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()

	return tx.Commit(ctx)
}

// commitTimeout bounds a commit whose caller has been told to stop: half of the 10 s that Cloud Run
// leaves after SIGTERM.
const commitTimeout = 5 * time.Second

// Start is the position at which the chain's processing began.
func (l *Ledger) Start(ctx context.Context) (Position, error) {
	return l.position(ctx, `select start_block, null::text, generation from leadership where chain_id = $1`, l.cfg.ChainID)
}
