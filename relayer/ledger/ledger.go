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
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// OutboxChannel is the notification channel on which somebody other than a slot's owner says that it wrote outbox rows.
const OutboxChannel = "relayer_outbox"

// Deployed is the event of the factory that announces an escrow.
const Deployed = "EscrowDeployed"

// ErrMoved means that a commit found its cursor moved or its epoch raised: a claim, a release, a rollback or another owner
// came in between. Nothing was written.
var ErrMoved = errors.New("the cursor moved or the right to commit changed hands")

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

// Position is a cursor: the next block to process, and the hash of the block before it (zero when unknown).
type Position struct {
	Next int64
	Hash common.Hash
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

func position(next int64, hash *string) Position {
	p := Position{Next: next}
	if hash != nil {
		p.Hash = common.HexToHash(*hash)
	}
	return p
}

// SlotPosition reads the cursor of this instance under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) SlotPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, `select next_block, block_hash from cursors where chain_id = $1 and epoch = $2 and instance_id = $3 and next_block is not null`,
		l.cfg.ChainID, epoch, l.cfg.InstanceID)
}

// FactoryPosition reads the cursor of the factory watch under an epoch; ErrFenced when the epoch is over.
func (l *Ledger) FactoryPosition(ctx context.Context, epoch int64) (Position, error) {
	return l.position(ctx, `select next_block, block_hash from leadership where chain_id = $1 and epoch = $2`, l.cfg.ChainID, epoch)
}

func (l *Ledger) position(ctx context.Context, query string, args ...any) (Position, error) {
	var next int64
	var h *string
	err := l.cfg.DB.QueryRow(ctx, query, args...).Scan(&next, &h)
	if errors.Is(err, pgx.ErrNoRows) {
		return Position{}, ErrFenced
	}
	if err != nil {
		return Position{}, fmt.Errorf("read the cursor: %w", err)
	}
	return position(next, h), nil
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
	Time     uint64              // of block To.Next-1, unix seconds
	Announce []registry.Late     // their EscrowDeployed goes into the outbox, before all else
	Progress []registry.Progress // of late escrows
	Events   []contract.Event    // of escrows in the owner's slots, in (block, log index) order
}

// Result is what a commit changed.
type Result struct {
	Pending    []publish.Pending // new outbox rows, in seq order
	New        int               // events stored
	Duplicates int               // events that were stored already
	Retracted  int               // orphans of a reorganisation that did not reappear: their rows are in the outbox, not in Pending
	Revived    int               // orphans that reappeared: their rows may be in the outbox, not in Pending
}

// CommitSlots stores a range for the slots of this instance. ErrMoved: nothing was written.
func (l *Ledger) CommitSlots(ctx context.Context, c SlotCommit) (r Result, err error) {
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		if err := l.advance(ctx, tx, advanceSlots, c.Epoch, c.From, c.To, c.Time); err != nil {
			return err
		}
		if err := l.announce(ctx, tx, c.Announce, &r); err != nil {
			return err
		}
		fresh, err := l.store(ctx, tx, c.Events, true, &r)
		if err != nil {
			return err
		}
		if err := l.project(ctx, tx, fresh); err != nil {
			return err
		}
		if err := registry.Advance(ctx, tx, l.cfg.ChainID, c.Progress); err != nil {
			return err
		}
		return l.retract(ctx, tx, c.To.Next, &r)
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
	Events   []contract.Event // EscrowDeployed of the factory, in order
	Found    []registry.Discovery
}

// CommitFactory stores a range of the factory watch. ErrMoved: nothing was written.
func (l *Ledger) CommitFactory(ctx context.Context, c FactoryCommit) (r Result, err error) {
	err = l.tx(ctx, func(tx pgx.Tx) error {
		r = Result{}
		if err := l.advance(ctx, tx, advanceFactory, c.Epoch, c.From, c.To, 0); err != nil {
			return err
		}
		fresh, err := l.store(ctx, tx, c.Events, false, &r)
		if err != nil {
			return err
		}
		if err := l.project(ctx, tx, fresh); err != nil {
			return err
		}
		if err := registry.Record(ctx, tx, l.cfg.ChainID, c.Found); err != nil {
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
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from and block_hash is not distinct from @was`

// advanceFactory does the same for the factory watch.
const advanceFactory = `
	update leadership set next_block = @to, block_hash = @hash, last_heartbeat = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from and block_hash is not distinct from @was
	  and @time::bigint is not null`

func (l *Ledger) advance(ctx context.Context, tx pgx.Tx, statement string, epoch int64, from, to Position, time uint64) error {
	tag, err := tx.Exec(ctx, statement, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "me": l.cfg.InstanceID, "epoch": epoch, "from": from.Next, "was": hash(from.Hash),
		"to": to.Next, "hash": hash(to.Hash), "time": int64(time),
	})
	if err != nil {
		return fmt.Errorf("advance the cursor: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrMoved
	}
	if to.Next == from.Next || to.Hash == (common.Hash{}) {
		return nil
	}
	_, err = tx.Exec(ctx, `insert into chain_blocks (chain_id, number, hash) values ($1, $2, $3) on conflict do nothing`,
		l.cfg.ChainID, to.Next-1, to.Hash.Hex())
	if err != nil {
		return fmt.Errorf("remember block %d: %w", to.Next-1, err)
	}
	return nil
}

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
	return l.position(ctx, `select start_block, null::text from leadership where chain_id = $1`, l.cfg.ChainID)
}
