// Package ledger owns every transaction on events: what an owner commits for its slots, what the leader commits for the
// factory, and the rollback of a reorganisation.
//
// One processed range is one transaction: the cursor advances, under the epoch of whoever holds the right, together with
// everything that the range brought. Events that are stored already are recognised by processed_events and change nothing.
// A commit therefore either happened as a whole or not at all, can be repeated, and fails with ErrMoved when somebody else took
// the right or moved the cursor: then nothing is written, and the caller looks again where it stands.
//
//	advance cursor (epoch, from) ─► processed_events ─► escrow_records, registry ─► outbox ─► commit
//
// Outbox rows of a slot are written by its owner only, and one commit after the other, so seq order is the order in which they
// were committed and have to be published. (A replay and the verifier write rows too, and say so on OutboxChannel.)
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// OutboxChannel is the notification channel on which somebody other than a slot's owner says that it wrote outbox rows.
const OutboxChannel = "relayer_outbox"

// Deployed is the event of the factory that announces an escrow.
const Deployed = "EscrowDeployed"

// ErrMoved means that a commit found its cursor moved or its epoch raised: a claim, a release, a rollback or another owner
// came in between. Nothing was written.
var ErrMoved = errors.New("the cursor moved or the right to commit changed hands")

// BranchError means that a range holds the height of a block that was remembered before and that nobody has compared with it: the last block of the
// range is another one, or the block lies inside it. Nothing was written. One of the two branches is not the chain's.
type BranchError struct{ Block Block }

func (e *BranchError) Error() string {
	return fmt.Sprintf("block %d was processed before as %s: one of the two is not canonical", e.Block.Number, e.Block.Hash)
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
}

// New returns a Ledger.
func New(cfg Config) *Ledger { return &Ledger{cfg} }

// Position is a cursor: the next block to process, and the hash of the block before it (zero when unknown). A rollback raises the generation of
// every cursor, also of those that it does not move: what was read before it, of the chain or of the registry, can no longer be committed.
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
	return l.position(ctx, `select next_block, block_hash, generation from cursors where chain_id = $1 and epoch = $2 and instance_id = $3 and next_block is not null`,
		l.cfg.ChainID, epoch, l.cfg.InstanceID)
}

// FactoryPosition reads the cursor of the factory watch under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) FactoryPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, `select next_block, block_hash, generation from leadership where chain_id = $1 and epoch = $2`, l.cfg.ChainID, epoch)
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

// Discovered reads both at one moment. At most limit late escrows are returned, those furthest behind first.
func (l *Ledger) Discovered(ctx context.Context, limit int) (d Discovered, err error) {
	err = pgx.BeginTxFunc(ctx, l.cfg.DB, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select next_block from leadership where chain_id = $1`, l.cfg.ChainID).Scan(&d.Next); err != nil {
			return fmt.Errorf("read the factory cursor: %w", err)
		}
		d.Late, err = registry.ListLate(ctx, tx, l.cfg.ChainID, l.cfg.InstanceID, limit)
		return err
	})
	return d, err
}

// SlotCommit is what an owner stores for a range of blocks. From.Next == To.Next stores events without moving the cursor, which is how
// late escrows are caught up.
type SlotCommit struct {
	Epoch    int64
	From, To Position
	Checked  Block               // a block inside the range that was remembered (BranchError) and that the caller has found canonical
	Doubtful bool                // a row in the outbox may have been published: what is retracted is retracted all the same
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
	Retracted  int              // orphans of a reorganisation that did not reappear: their rows are in the outbox, not in Pending
	Revived    int              // orphans that reappeared: their rows may be in the outbox, not in Pending
}

// CommitSlots stores a range for the slots of this instance. ErrMoved: nothing was written.
func (l *Ledger) CommitSlots(ctx context.Context, c SlotCommit) (r Result, err error) {
	ahead := foldAhead(c.Events)
	defer func() { <-ahead.done }()
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		if err := l.advance(ctx, tx, advanceSlots, step{c.Epoch, c.From, c.To, c.Checked, c.Time}); err != nil {
			return err
		}
		if err := l.announce(ctx, tx, c.Announce, &r); err != nil {
			return err
		}
		fresh, err := l.store(ctx, tx, c.Events, true, &r)
		if err != nil {
			return err
		}
		if err := l.project(ctx, tx, fresh, ahead); err != nil {
			return err
		}
		if err := registry.Advance(ctx, tx, l.cfg.ChainID, c.Progress); err != nil {
			return err
		}
		return l.retract(ctx, tx, c.To.Next, c.Doubtful, &r)
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
	Checked  Block            // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
	Found    []registry.Discovery
}

// CommitFactory stores a range of the factory watch. ErrMoved: nothing was written.
func (l *Ledger) CommitFactory(ctx context.Context, c FactoryCommit) (r Result, err error) {
	ahead := foldAhead(c.Events)
	defer func() { <-ahead.done }()
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		if err := l.advance(ctx, tx, advanceFactory, step{c.Epoch, c.From, c.To, c.Checked, 0}); err != nil {
			return err
		}
		fresh, err := l.store(ctx, tx, c.Events, false, &r)
		if err != nil {
			return err
		}
		if err := l.project(ctx, tx, fresh, ahead); err != nil {
			return err
		}
		if err := l.record(ctx, tx, c.Found); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `select pg_notify('`+registry.Channel+`', $1::bigint::text)`, l.cfg.ChainID)
		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("commit %d discoveries of blocks %d to %d: %w", len(c.Events), c.From.Next, c.To.Next-1, err)
	}
	return r, nil
}

// advanceSlots moves the cursor of an instance if its epoch still holds and nobody moved it; it locks the row until the commit,
// so a claim waits for the commit and sees it.
const advanceSlots = `
	update cursors
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time), updated_at = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from and block_hash is not distinct from @was
	  and generation = @generation`

// advanceFactory does the same for the factory watch.
const advanceFactory = `
	update leadership set next_block = @to, block_hash = @hash, last_heartbeat = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from and block_hash is not distinct from @was
	  and generation = @generation and @time::bigint is not null`

type step struct {
	epoch    int64
	from, to Position
	checked  Block
	time     uint64
}

func (l *Ledger) advance(ctx context.Context, tx pgx.Tx, statement string, s step) error {
	tag, err := tx.Exec(ctx, statement, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "me": l.cfg.InstanceID, "epoch": s.epoch, "from": s.from.Next, "was": hash(s.from.Hash),
		"generation": s.from.Generation, "to": s.to.Next, "hash": hash(s.to.Hash), "time": int64(s.time),
	})
	if err != nil {
		return fmt.Errorf("advance the cursor: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrMoved
	}
	if s.to.Next == s.from.Next || s.to.Hash == (common.Hash{}) {
		return nil
	}
	return l.remember(ctx, tx, s)
}

// remember keeps the hash of a range's last block, if the range is of the branch that is remembered. Remembered blocks are of one branch, so the
// highest inside the range vouches for those below it.
func (l *Ledger) remember(ctx context.Context, tx pgx.Tx, s step) error {
	last := Block{s.to.Next - 1, s.to.Hash}
	if s.from.Next < last.Number {
		var inside Block
		var h string
		err := tx.QueryRow(ctx, `select number, hash from chain_blocks where chain_id = $1 and number between $2 and $3 order by number desc limit 1`,
			l.cfg.ChainID, s.from.Next, last.Number-1).Scan(&inside.Number, &h)
		inside.Hash = common.HexToHash(h)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return fmt.Errorf("look for remembered blocks below %d: %w", last.Number, err)
		case inside != s.checked:
			return &BranchError{inside}
		}
	}
	var h string
	err := tx.QueryRow(ctx, rememberBlock, l.cfg.ChainID, last.Number, last.Hash.Hex()).Scan(&h)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // it was there
	case err != nil:
		return fmt.Errorf("remember block %d: %w", last.Number, err)
	case common.HexToHash(h) != last.Hash:
		return &BranchError{Block{last.Number, common.HexToHash(h)}}
	}
	return nil
}

// rememberBlock returns the hash that the height has now; no row when it was there already and is the same. It waits for another commit
// of that height.
const rememberBlock = `
	insert into chain_blocks as b (chain_id, number, hash) values ($1, $2, $3)
	on conflict (chain_id, number) do update set hash = b.hash where b.hash <> excluded.hash
	returning hash`

// tx runs f in a transaction. Cancellation in the middle rolls back; a commit that was sent is waited for, under a deadline of
// its own: its outcome matters more than a quick end.
func (l *Ledger) tx(ctx context.Context, f func(pgx.Tx) error) error {
	tx, err := l.cfg.DB.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // after a commit it does nothing; after a failure the connection is thrown away if this fails too
	}()
	if err := f(tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return tx.Commit(ctx)
}

// commitTimeout bounds a commit whose caller has been told to stop: half of the 10 s that Cloud Run leaves after SIGTERM.
const commitTimeout = 5 * time.Second

// Start is the position at which the chain's processing began.
func (l *Ledger) Start(ctx context.Context) (Position, error) {
	return l.position(ctx, `select start_block, null::text, generation from leadership where chain_id = $1`, l.cfg.ChainID)
}
