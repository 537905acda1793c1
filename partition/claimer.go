package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Channel is the notification channel on which a change of ownership is announced; the payload is
// the chain id. A notification is a hint: Run checks the fleet every Config.Every anyway.
const Channel = "relayer_slots"

// ErrFenced means that another instance took what this one held: everything held is void, and the
// instance has to join again.
var ErrFenced = errors.New("fenced: another instance claimed this instance's slots; its session was seen as dead")

// ErrStale means that every check of the slots has failed for Config.StaleAfter: the others see this
// instance as dead.
var ErrStale = errors.New("the slots could not be checked")

// Config of a Claimer. All fields but Log are required unless they say otherwise.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	LockKey    int64         // advisory lock that the instance's session holds: the others see by it that it lives
	Partition  Partition     // Number is ignored when Auto is set
	Auto       bool          // take a number that no live instance has; while there is none, stand by
	StartBlock int64         // cursor of slots that nobody has ever served
	AdoptAfter time.Duration // how long a slot that nobody alive prefers stays unserved before it is adopted
	StaleAfter time.Duration // an instance that has not checked its slots for so long is dead; 0 means StaleAfter
	StallAfter time.Duration // an instance that is stuck for so long leaves its slots to one that is not; 0 means 15 s
	Every      time.Duration // pause between two checks of the fleet; 0 means 1 s
	Version    string        // shown to operators
	Settings   Settings      // what the fleet has to agree on
	// NewProcess says that this process starts anew: what Join finds to be the instance's slots was
	// served by another process, and what that one published last is not known.
	NewProcess bool

	// Able returns what keeps the instance from processing blocks although another instance might be
	// able to, that is, an error of its nodes. Nil means that nothing ever does.
	Able func() error
	// EndDead ends the open transactions of dead instances, so that a claim does not wait for the rows
	// that they have locked. Nil means that it waits.
	EndDead func(ctx context.Context, instanceIDs []string) error
	// Stepped is called after each check of the fleet that succeeded. Nil means that nothing is called.
	Stepped func()
	// Quiesce stops publishing for slots that are about to be yielded, and waits until what is in flight is acknowledged.
	// An error postpones the yield. Nil means that there is nothing to stop.
	Quiesce func(ctx context.Context, slots []int16) error
	// Resume follows each successful Quiesce: with the new epoch when the slots were released, with 0 when they were not.
	Resume func(slots []int16, epoch int64)
	Log    *slog.Logger
}

// Holding is what an instance holds: the right to commit for Slots under Epoch.
type Holding struct {
	Epoch     int64
	Slots     []int16 // ascending
	Partition Partition
}

// Claimer holds the slots of one instance. Join comes first; then one goroutine calls Run, while any may call Holding.
type Claimer struct {
	cfg Config

	// These belong to the goroutine that calls Join and Run.
	probation time.Duration // if the instance sits out: how long it must be able before it takes part again
	wasStuck  bool
	checked   time.Time // when it last told the others that it checks its slots, and read the fleet
	unclaimed error     // why the last claim failed; nil since one worked, or since there was nothing to claim

	change sync.Mutex // held from before a change in the database until holding shows that change

	mu      sync.Mutex
	holding Holding
	changed chan struct{} // closed when holding changes
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Claimer, error) {
	p := cfg.Partition
	if cfg.Auto {
		p.Number = 0
	}

	if err := p.Validate(); err != nil {
		return nil, err
	}

	if cfg.DB == nil || cfg.InstanceID == "" || cfg.LockKey == 0 {
		return nil, errors.New("partition: DB, InstanceID and LockKey are required")
	}

	if cfg.Every == 0 {
		cfg.Every = time.Second
	}

	if cfg.StaleAfter == 0 {
		cfg.StaleAfter = StaleAfter
	}

	if cfg.StallAfter == 0 {
		cfg.StallAfter = 15 * time.Second
	}

	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	return &Claimer{cfg: cfg, changed: make(chan struct{})}, nil
}

// Holding returns what is held now, and a channel that is closed when that changes.
func (c *Claimer) Holding() (Holding, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holding, c.changed
}

// Settled is Holding after any change that is under way in the database. So when a commit finds its
// epoch raised, either the raised epoch is the one returned here, or another instance raised it.
func (c *Claimer) Settled() (Holding, <-chan struct{}) {
	c.change.Lock()
	defer c.change.Unlock()
	return c.Holding()
}

func (c *Claimer) set(h Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(h.Slots)
	c.holding = h
	close(c.changed)
	c.changed = make(chan struct{})
}

// Run checks the fleet every Config.Every, whenever hint fires, and when slots may be adopted, and
// takes or yields slots. It returns nil when ctx ends, ErrFenced when what it held was taken, and
// ErrStale when every check has failed for Config.StaleAfter. Until then it logs a database error
// and retries. A claim that fails is retried for ever: an instance that cannot claim sits out.
func (c *Claimer) Run(ctx context.Context, hint <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.checked = time.Now()
	for {
		wait, err := c.step(ctx)
		switch {
		case errors.Is(err, ErrFenced):
			return err
		case ctx.Err() != nil:
			return nil
		case err == nil:
		case time.Since(c.checked) > c.cfg.StaleAfter:
			return fmt.Errorf("%w for %s: %w", ErrStale, c.cfg.StaleAfter, err)
		default:
			c.cfg.Log.WarnContext(ctx, "slot check failed, retrying", slog.Any("err", err))
		}

		if wait <= 0 || wait > c.cfg.Every {
			wait = c.cfg.Every
		}

		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-hint:
		}
	}
}

// Step is one turn of Run.
func (c *Claimer) Step(ctx context.Context) error {
	_, err := c.step(ctx)
	return err
}

// step also returns the longest wait before the next check; zero: Config.Every.
func (c *Claimer) step(ctx context.Context) (wait time.Duration, err error) {
	held, _ := c.Holding()
	if err := c.stamp(ctx); err != nil {
		return 0, err
	}

	v, err := c.readNow(ctx)
	if err != nil {
		return 0, err
	}

	if v.epoch != held.Epoch {
		return 0, ErrFenced
	}

	if c.cfg.Auto {
		if err := c.renumber(ctx, v); err != nil {
			return 0, err
		}
	}

	if err := c.markDead(ctx, v); err != nil {
		return 0, err
	}

	if err := c.review(ctx, &v); err != nil {
		return 0, err
	}

	c.checked = time.Now()
	if c.cfg.Stepped != nil {
		c.cfg.Stepped()
	}

	plan := Decide(c.cfg.InstanceID, v.fleet, v.groups, c.cfg.AdoptAfter)
	if len(plan.Yield) > 0 {
		if err := c.yield(ctx, plan.Yield); err != nil {
			return 0, err
		}
	}

	c.unclaimed = c.claim(ctx, plan)

	return plan.Wait, c.unclaimed
}

func (c *Claimer) yield(ctx context.Context, slots []int16) error {
	if c.cfg.Quiesce != nil {
		if err := c.cfg.Quiesce(ctx, slots); err != nil {
			c.cfg.Log.WarnContext(ctx, "slots not yielded yet: messages are still in flight", slog.Int("slots", len(slots)),
				slog.Any("err", err))

			return nil
		}
	}

	err := c.Release(ctx, slots)
	if c.cfg.Resume != nil {
		epoch := int64(0)
		if err == nil {
			held, _ := c.Holding()
			epoch = held.Epoch
		}

		c.cfg.Resume(slots, epoch)
	}

	return err
}

// Join registers the instance, raises its epoch, which fences whatever an earlier process of it still
// has in flight, and takes over those slots of that process which nobody has claimed. It returns
// ErrDisagree when the instance's settings would split the stream. The instance's session must hold
// its lock.
func (c *Claimer) Join(ctx context.Context) error {
	var h Holding
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pgx.StrictNamedArgs{"chain": c.cfg.ChainID, "start": c.cfg.StartBlock}
		if _, err := tx.Exec(ctx, createSlots, args); err != nil {
			return fmt.Errorf("create the slots of chain %d: %w", c.cfg.ChainID, err)
		}

		h.Partition = c.cfg.Partition
		if c.cfg.Auto {
			v, err := c.read(ctx, tx)
			if err != nil {
				return err
			}

			h.Partition.Number = firstNumber(c.cfg.InstanceID, h.Partition, v.fleet)
		}

		if err := c.agree(ctx, tx); err != nil {
			return err
		}

		if err := c.register(ctx, tx, h.Partition); err != nil {
			return fmt.Errorf("register instance %s: %w", c.cfg.InstanceID, err)
		}

		if err := tx.QueryRow(ctx, raiseOwnEpoch, c.cfg.ChainID, c.cfg.InstanceID).Scan(&h.Epoch); err != nil {
			return fmt.Errorf("raise the epoch of %s: %w", c.cfg.InstanceID, err)
		}

		if c.cfg.NewProcess {
			if _, err := tx.Exec(ctx, doubtEarlierProcess, c.cfg.ChainID, c.cfg.InstanceID); err != nil {
				return fmt.Errorf("note what an earlier process of %s may have published: %w", c.cfg.InstanceID, err)
			}
		}

		rows, _ := tx.Query(ctx, heldSlots, c.cfg.ChainID, c.cfg.InstanceID)
		var err error
		if h.Slots, err = pgx.CollectRows(rows, pgx.RowTo[int16]); err != nil {
			return fmt.Errorf("read the slots of %s: %w", c.cfg.InstanceID, err)
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("join the fleet of chain %d: %w", c.cfg.ChainID, err)
	}

	c.set(h)
	c.cfg.Log.InfoContext(ctx, "joined the fleet", slog.String("partition", h.Partition.String()),
		slog.Int64("epoch", h.Epoch), slog.Int("slots", len(h.Slots)))

	return nil
}

// register writes the instance's row.
func (c *Claimer) register(ctx context.Context, tx pgx.Tx, p Partition) error {
	settings, err := json.Marshal(c.cfg.Settings)
	if err != nil {
		return fmt.Errorf("write its settings: %w", err)
	}

	_, err = tx.Exec(ctx, register, pgx.StrictNamedArgs{
		"chain": c.cfg.ChainID, "me": c.cfg.InstanceID, "number": p.Number, "total": p.Total, "strategy": p.Strategy,
		"key": c.cfg.LockKey, "version": c.cfg.Version, "stuck": c.stuck(ctx), "settings": string(settings),
	})

	return err
}

// createSlots makes the chain's slots, all free, where they do not exist yet.
const createSlots = `
	insert into slot_ownership (chain_id, slot, next_block)
	select @chain, s, @start from generate_series(0, 2519) s
	where not exists (select from slot_ownership where chain_id = @chain)
	on conflict do nothing`

// register writes the row by which people and the other instances know this one. An instance that
// sat out because it was stuck, and is still stuck, goes on sitting out.
const register = `
	insert into relayer_instances as i (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key, version, settings, able_since, stuck_since)
	values (@chain, @me, @number, @total, @strategy, 'active', @key, @version, @settings::jsonb, case when not @stuck then now() end, case when @stuck then now() end)
	on conflict (chain_id, instance_id) do update
	set partition_number = excluded.partition_number, total_partitions = excluded.total_partitions, strategy = excluded.strategy,
	    status = 'active', lock_key = excluded.lock_key, version = excluded.version, settings = excluded.settings,
	    able_since = excluded.able_since, stuck_since = case when @stuck then coalesce(i.stuck_since, now()) end, sits_out = i.sits_out and @stuck,
	    last_heartbeat = now(), started_at = now(), seen_at = now(), dead_since = null, left_at = null`

// raiseOwnEpoch fences the earlier process of the instance. The cursor stays: the slots that the
// instance still owns are processed up to it.
const raiseOwnEpoch = `
	insert into cursors (chain_id, instance_id) values ($1, $2)
	on conflict (chain_id, instance_id) do update set epoch = cursors.epoch + 1
	returning epoch`

// highestRow is the seq up to which outbox rows may have been published by an owner that can no longer say so.
const highestRow = `(select coalesce(max(seq), 0) from outbox where chain_id = $1)`

const doubtEarlierProcess = `
	update slot_ownership set doubt_seq = greatest(doubt_seq, ` + highestRow + `) where chain_id = $1 and owner = $2`

// takeSlots takes slots. Any row of a slot that its owner did not release may have been published.
const takeSlots = `
	update slot_ownership
	set owner = $3, since = now(), doubt_seq = case when owner is null then doubt_seq else greatest(doubt_seq, ` + highestRow + `) end
	where chain_id = $1 and slot = any($2)`

const heldSlots = `select slot from slot_ownership where chain_id = $1 and owner = $2 order by slot`

// claim takes slots if the plan has any to take: those that Decide says in the transaction which takes them.
func (c *Claimer) claim(ctx context.Context, plan Plan) error {
	if len(plan.Take) == 0 {
		return nil
	}

	if c.cfg.EndDead != nil && len(plan.From) > 0 {
		if err := c.cfg.EndDead(ctx, plan.From); err != nil {
			return err
		}
	}

	c.change.Lock()
	defer c.change.Unlock()
	held, _ := c.Holding()
	var taken []int16
	var from cursor
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		v, err := c.read(ctx, tx)
		if err != nil {
			return err
		}

		plan := Decide(c.cfg.InstanceID, v.fleet, v.groups, c.cfg.AdoptAfter)
		if v.epoch != held.Epoch {
			return ErrFenced
		}

		if len(plan.Take) == 0 {
			return nil
		}

		taken, from, err = c.take(ctx, tx, plan.Take, len(held.Slots) > 0)

		return err
	})
	if err != nil {
		return fmt.Errorf("claim slots: %w", err)
	}

	if len(taken) == 0 {
		return nil
	}

	held.Epoch++
	held.Slots = append(slices.Clone(held.Slots), taken...)
	c.set(held)
	c.cfg.Log.InfoContext(ctx, "claimed slots", slog.Int("slots", len(taken)), slog.Int("held", len(held.Slots)),
		slog.Int64("epoch", held.Epoch), slog.Int64("block", from.next))

	return nil
}

type cursor struct {
	next int64
	hash *string
	time *time.Time
}

// take moves the slots to this instance: it locks the cursor rows of their owners and its own, in the
// order of their ids, raises their epochs, and goes on from the lowest of the cursors.
func (c *Claimer) take(ctx context.Context, tx pgx.Tx, slots []int16, holding bool) ([]int16, cursor, error) {
	type row struct {
		Slot      int16
		Owner     *string
		NextBlock int64
		BlockHash *string
	}
	rows, _ := tx.Query(ctx, lockSlots, c.cfg.ChainID, slots)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, cursor{}, fmt.Errorf("lock slots: %w", err)
	}

	low := cursor{next: -1}
	lower := func(x cursor) {
		if low.next < 0 || x.next < low.next {
			low = x
		}
	}
	ids := []string{c.cfg.InstanceID}
	for _, r := range found {
		if r.Owner == nil {
			lower(cursor{next: r.NextBlock, hash: r.BlockHash})
		} else if !slices.Contains(ids, *r.Owner) {
			ids = append(ids, *r.Owner)
		}
	}

	slices.Sort(ids)
	rows, _ = tx.Query(ctx, fenceCursors, c.cfg.ChainID, ids)
	var id string
	var next *int64
	var hash *string
	var at *time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &next, &hash, &at}, func() error {
		if next != nil && (id != c.cfg.InstanceID || holding) {
			lower(cursor{*next, hash, at})
		}

		return nil
	}); err != nil {
		return nil, cursor{}, fmt.Errorf("fence the owners of %d slots: %w", len(slots), err)
	}

	batch := &pgx.Batch{}
	batch.Queue(moveCursor, c.cfg.ChainID, c.cfg.InstanceID, low.next, low.hash, low.time)
	batch.Queue(takeSlots, c.cfg.ChainID, slots, c.cfg.InstanceID)
	batch.Queue(notify, c.cfg.ChainID)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, cursor{}, fmt.Errorf("take %d slots: %w", len(slots), err)
	}

	return slots, low, nil
}

const lockSlots = `
	select slot, owner, next_block, block_hash from slot_ownership
	where chain_id = $1 and slot = any($2) order by slot for update`

const moveCursor = `
	update cursors set next_block = $3, block_hash = $4, block_time = $5, updated_at = now()
	where chain_id = $1 and instance_id = $2`

// fenceCursors locks the rows of the owners that are claimed from, and of the claimer, and raises
// their epochs: every commit that was computed before fails.
const fenceCursors = `
	with locked as (
		select instance_id from cursors where chain_id = $1 and instance_id = any($2) order by instance_id for update)
	update cursors c set epoch = c.epoch + 1 from locked l
	where c.chain_id = $1 and c.instance_id = l.instance_id
	returning c.instance_id, c.next_block, c.block_hash, c.block_time`

// Release gives slots back, together with the cursor from which the next owner goes on; nil means all
// slots. It raises the epoch, so that no commit in flight can move past that cursor.
func (c *Claimer) Release(ctx context.Context, slots []int16) error {
	c.change.Lock()
	defer c.change.Unlock()
	held, _ := c.Holding()
	if slots == nil {
		slots = held.Slots
	}

	if len(slots) == 0 {
		return nil
	}

	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pgx.StrictNamedArgs{"chain": c.cfg.ChainID, "me": c.cfg.InstanceID, "epoch": held.Epoch, "slots": slots}
		tag, err := tx.Exec(ctx, releaseSlots, args)
		if err != nil {
			return err
		}

		if int(tag.RowsAffected()) != len(slots) {
			return ErrFenced
		}

		_, err = tx.Exec(ctx, notify, c.cfg.ChainID)

		return err
	})
	if err != nil {
		return fmt.Errorf("release %d slots: %w", len(slots), err)
	}

	held.Epoch++
	held.Slots = slices.DeleteFunc(slices.Clone(held.Slots), func(s int16) bool { return slices.Contains(slots, s) })
	c.set(held)
	c.cfg.Log.InfoContext(ctx, "released slots", slog.Int("slots", len(slots)), slog.Int("held", len(held.Slots)),
		slog.Int64("epoch", held.Epoch))

	return nil
}

const releaseSlots = `
	with mine as (
		update cursors set epoch = epoch + 1
		where chain_id = @chain and instance_id = @me and epoch = @epoch
		returning next_block, block_hash)
	update slot_ownership s set owner = null, since = now(), next_block = mine.next_block, block_hash = mine.block_hash
	from mine where s.chain_id = @chain and s.owner = @me and s.slot = any(@slots)`

// Leave marks the instance as dead after a clean stop, so that the others need not wait until they notice.
func (c *Claimer) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.cfg.DB.Exec(ctx,
		`update relayer_instances set status = 'dead', dead_since = now(), left_at = now() where chain_id = $1 and instance_id = $2`,
		c.cfg.ChainID, c.cfg.InstanceID)
	if err != nil {
		return fmt.Errorf("mark %s as dead: %w", c.cfg.InstanceID, err)
	}

	return nil
}

const notify = `select pg_notify('` + Channel + `', $1::bigint::text)`
