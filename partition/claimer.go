package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Claimer holds the slots of one instance. Join comes first; then one goroutine calls Run, while any may call Holding.
type Claimer struct {
	cfg Config

	// These belong to the goroutine that calls Join and Run.
	progress progress
	checked  time.Time // when it last announced its slot check to the others and read the fleet

	change sync.Mutex // held from before a change in the database until holding shows that change

	lacks atomic.Pointer[string] // as of Member

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

	cfg.StaleAfter = cmp.Or(cfg.StaleAfter, StaleAfter)
	cfg.StallAfter = cmp.Or(cfg.StallAfter, 15*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))

	c := &Claimer{cfg: cfg, changed: make(chan struct{})}
	c.progress.cfg = &c.cfg

	return c, nil
}

// Holding returns what is held now, and a channel that is closed when that changes.
func (c *Claimer) Holding() (Holding, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holding, c.changed
}

// Lacks is an instance that knows event layouts which this one lacks, as of the last check: this one neither owns slots
// nor should lead. Empty: there is none.
func (c *Claimer) Lacks() string {
	if id := c.lacks.Load(); id != nil {
		return *id
	}

	return ""
}

// compare notes whether another instance knows more events, and logs a change.
func (c *Claimer) compare(ctx context.Context, v *view) {
	if my := v.member(c.cfg.InstanceID); my != nil && my.Lacks != c.Lacks() {
		c.lacks.Store(&my.Lacks)
		if my.Lacks == "" {
			c.cfg.Log.InfoContext(ctx, "no other instance knows more events: this one takes part again")
			return
		}

		c.cfg.Log.WarnContext(ctx, "another instance knows events that the ABI of this one lacks: "+
			"this one owns no slots and does not lead until it is started with FACTORY_ABI and ESCROW_ABI of that one",
			slog.String("other", my.Lacks))
	}
}

// Settled is Holding after any change that is under way in the database. So when a commit is
// refused for its epoch, either the newer epoch is the one returned here, or another instance has
// raised it.
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

// Run checks the fleet every checkEvery, whenever hint fires, and when slots may be adopted, and
// claims or yields slots. It returns nil when ctx ends, ErrFenced when another instance has claimed
// what it held, or somebody has changed its slots by hand, ErrUnseen when the fleet does not see this instance, and
// ErrStale when every check has failed for Config.StaleAfter; until then it logs a database error and retries. A failed
// claim is retried for ever: an instance that cannot claim sits out.
func (c *Claimer) Run(ctx context.Context, hint <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.checked = time.Now()
	for {
		wait, err := c.step(ctx)
		switch {
		case errors.Is(err, ErrFenced), errors.Is(err, ErrUnseen):
			return err
		case ctx.Err() != nil:
			return nil
		}

		if err != nil && c.cfg.Stepped != nil {
			c.cfg.Stepped(err)
		}

		switch {
		case err == nil:
		case time.Since(c.checked) > c.cfg.StaleAfter:
			return fmt.Errorf("%w for %s: %w", ErrStale, c.cfg.StaleAfter, err)
		default:
			c.cfg.Log.WarnContext(ctx, "slot check failed, retrying", slog.Any("err", err))
		}

		if wait <= 0 || wait > checkEvery {
			wait = checkEvery
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

// step is one turn of Run. It returns the longest wait before the next check; zero: checkEvery.
func (c *Claimer) step(ctx context.Context) (wait time.Duration, err error) {
	held, _ := c.Holding()
	if err := c.progress.stamp(ctx); err != nil {
		return 0, err
	}

	v, err := readNow(ctx, &c.cfg)
	if err != nil {
		return 0, err
	}

	if v.epoch != held.Epoch || !slices.Equal(v.mine, held.Slots) {
		return 0, ErrFenced
	}

	// It has just been stamped, so what is missing is the lock. The others see that too, and claim
	// its slots.
	if me := v.member(c.cfg.InstanceID); me != nil && !me.Alive {
		return 0, ErrUnseen
	}

	if c.cfg.Auto {
		if err := c.renumber(ctx, v); err != nil {
			return 0, err
		}
	}

	if err := markDead(ctx, &c.cfg, v); err != nil {
		return 0, err
	}

	if err := c.progress.review(ctx, &v); err != nil {
		return 0, err
	}

	c.checked = time.Now()
	if c.cfg.Stepped != nil {
		c.cfg.Stepped(nil)
	}

	c.compare(ctx, &v)
	plan := Decide(c.cfg.InstanceID, v.fleet, v.groups, c.cfg.AdoptAfter)
	if len(plan.Yield) > 0 {
		if err := c.yield(ctx, plan.Yield); err != nil {
			return 0, err
		}
	}

	c.progress.unclaimed = c.claim(ctx, plan)

	return plan.Wait, c.progress.unclaimed
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

// renumber takes a free number if the instance stands by with a number that another one serves.
func (c *Claimer) renumber(ctx context.Context, v view) error {
	held, _ := c.Holding()
	if freeNumber(c.cfg.InstanceID, held.Partition, v.fleet) == held.Partition.Number {
		return nil
	}

	number := held.Partition.Number
	err := transact(ctx, &c.cfg, func(ctx context.Context, tx pgx.Tx) error {
		v, err := read(ctx, &c.cfg, tx)
		if err != nil {
			return err
		}

		number = freeNumber(c.cfg.InstanceID, held.Partition, v.fleet)
		_, err = tx.Exec(ctx, `update relayer_instances set partition_number = $3 where chain_id = $1 and instance_id = $2`,
			c.cfg.ChainID, c.cfg.InstanceID, number)

		return err
	})
	if err != nil {
		return fmt.Errorf("take partition number %d: %w", number, err)
	}

	held.Partition.Number = number
	c.set(held)
	c.cfg.Log.InfoContext(ctx, "took a partition number", slog.String("partition", held.Partition.String()))

	return nil
}

// Join registers the instance, raises its epoch, which fences an earlier process of it, and takes
// over those slots of that process that are still unclaimed. It returns ErrDisagree when the
// instance's settings would split the stream. The instance's session must hold its lock.
func (c *Claimer) Join(ctx context.Context) error {
	var h Holding
	err := transact(ctx, &c.cfg, func(ctx context.Context, tx pgx.Tx) (err error) {
		h, err = join(ctx, &c.cfg, tx, c.progress.stuck(ctx))
		return err
	})
	if err != nil {
		return fmt.Errorf("join the fleet of chain %d: %w", c.cfg.ChainID, err)
	}

	c.set(h)
	c.cfg.Log.InfoContext(ctx, "joined the fleet", slog.String("partition", h.Partition.String()),
		slog.Int64("epoch", h.Epoch), slog.Int("slots", len(h.Slots)))

	return nil
}

// claim takes slots if the plan names any; the transaction decides again which ones.
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
	err := transact(ctx, &c.cfg, func(ctx context.Context, tx pgx.Tx) error {
		v, err := read(ctx, &c.cfg, tx)
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

		taken = plan.Take
		from, err = take(ctx, &c.cfg, tx, taken, len(held.Slots) > 0)

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

// Release gives slots back, with the cursor from which the next owner continues; nil means all
// slots. It raises the epoch, so a commit in flight cannot move past that cursor.
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

	err := transact(ctx, &c.cfg, func(ctx context.Context, tx pgx.Tx) error {
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

// Leave marks the instance as dead after a clean stop, so that the others claim its slots at once.
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
