package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// tenure is one database session and everything that ends with it. Its fields are set before work
// begins, and are constant.
type tenure struct {
	r         *Relayer
	limit     *database.Outage
	session   *election.Session
	claimer   *partition.Claimer
	publisher *publish.Publisher
	slots     *watch.SlotWatch
	elector   *election.Elector
}

// serve opens a session, joins the fleet and works until ctx ends (nil) or the tenure is over (an
// error). It calls joined once the instance is part of the fleet; until then limit bounds it.
func (r *Relayer) serve(ctx context.Context, limit *database.Outage, joined func()) (err error) {
	attempt, end := limit.Bound(ctx)
	defer end()
	session, err := election.Open(attempt, election.SessionConfig{
		Conn: r.db.Session, ChainID: r.cfg.ChainID, InstanceID: r.cfg.InstanceID, ProbeEvery: r.cfg.SessionProbeInterval,
		Wait: r.cfg.InstanceLockWait, Waiting: func(taken error) {
			limit.Good() // the database answers
			r.condition.lastLoss.set(taken)
		},
		Channels: append([]string{partition.Channel, registry.Channel, ledger.RequestsChannel, election.Channel},
			r.commands.channels()...),
		Started: processStarted, Log: r.component("session"),
	})
	if err != nil {
		return err
	}

	// The session outlives ctx: slots and leadership are released through it.
	sessionCtx, endSession := context.WithCancel(context.WithoutCancel(ctx))
	sessionDone := make(chan error, 1)
	go func() { sessionDone <- session.Run(sessionCtx) }()
	defer func() {
		endSession()
		err = errors.Join(err, <-sessionDone)
	}()
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.db.Bind(session.Memory(), cancel)
	defer r.db.Unbind()
	t := &tenure{r: r, limit: limit, session: session}
	if err := t.assemble(); err != nil {
		return err
	}

	if err := t.join(attempt); err != nil {
		return err
	}

	end()
	limit.Good()
	joined()
	r.condition.tenure.Store(t)
	defer r.condition.tenure.Store(nil)
	r.condition.writes.reset()
	err = t.work(working)
	if ctx.Err() == nil && working.Err() != nil {
		return errors.Join(context.Cause(working), err) // the slots to release are on another server
	}

	return errors.Join(err, t.leave(ctx))
}

// join makes the instance part of the fleet. It first ends the open transactions of an earlier
// process of the instance, because those lock the rows that joining needs.
func (t *tenure) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("not joined within %s", joinTimeout))
	defer cancel()
	if err := t.session.Find(ctx, t.r.db.Pool); err != nil {
		return err
	}

	if _, err := t.session.EndFormer(ctx, t.r.db.Pool); err != nil {
		return err
	}

	return t.claimer.Join(ctx)
}

// joinTimeout bounds join: a few statements.
const joinTimeout = 15 * time.Second

// work runs everything until ctx or the session ends, or one part fails. The publisher ends after
// the parts that feed it.
func (t *tenure) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	publishCtx, endPublishing := context.WithCancel(context.WithoutCancel(ctx))
	defer endPublishing()
	published := make(chan error, 1)
	go func() {
		err := t.publisher.Run(publishCtx)
		if err != nil {
			cancel(err)
		}

		published <- err
	}()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { // the end of the session ends everything
		select {
		case <-t.session.Done():
			endPublishing()
			t.r.db.Renew() // the pool's connections may have broken together with the session's
			return election.ErrLost
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return t.claimer.Run(ctx, t.session.Hint(partition.Channel)) })
	g.Go(func() error { return t.slots.Run(ctx) })
	g.Go(func() error { return t.elector.Run(ctx, t.lead) })
	g.Go(func() error { return t.heartbeats(ctx) })
	if len(t.r.commands.channels()) > 0 {
		g.Go(func() error { return t.r.commands.work(ctx, t) })
	}

	err := g.Wait()
	endPublishing()

	return errors.Join(err, <-published)
}

// lead serves one term as leader.
func (t *tenure) lead(ctx context.Context, term election.Term) error {
	t.r.condition.leading.Store(true)
	t.r.condition.writes.factory.set(nil)
	defer t.r.condition.leading.Store(false)
	if err := t.readWith(ctx, term); err != nil {
		return err
	}

	beat := t.elector.Beats(term)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := t.r.factory.Run(ctx, term.Epoch, func(ctx context.Context) error {
			if other := t.claimer.Lacks(); other != "" {
				return fmt.Errorf("%w: %s knows events that this instance lacks", election.ErrResign, other)
			}

			return beat(ctx)
		})
		switch {
		case errors.Is(err, ledger.ErrFenced):
			return fmt.Errorf("%w: %w", election.ErrFenced, err)
		case errors.Is(err, watch.ErrNoProgress):
			return fmt.Errorf("%w: %w", election.ErrResign, err)
		}

		return err
	})
	g.Go(func() error { return t.r.past.Run(ctx, term.Epoch) })
	g.Go(func() error { return t.r.verifier.Run(ctx, term.Epoch) })
	g.Go(func() error {
		return retention.Run(ctx, retention.Config{DB: t.r.db.Pool, ChainID: t.r.cfg.ChainID, Events: t.r.cfg.Retention,
			Log: t.r.component("retention")})
	})

	return g.Wait()
}

// readWith notes which event layouts the term reads with. What was read with fewer is read again.
func (t *tenure) readWith(ctx context.Context, term election.Term) error {
	deployments, others := t.r.cfg.ABI.Layouts()
	gained, err := registry.ReadWith(ctx, t.r.db.Pool, t.r.cfg.ChainID, term.Epoch,
		registry.Layouts{Deployments: deployments, Others: others})
	switch {
	case errors.Is(err, registry.ErrUnknown):
		return fmt.Errorf("%w: %w", election.ErrFenced, err)
	case err != nil:
		return err
	case len(gained) > 0:
		t.r.log.InfoContext(ctx, "what was read without some event layouts is read again", slog.Any("layouts", gained))
	}

	return t.r.ledger.Follow(ctx, t.r.followed)
}

// heartbeats writes the heartbeat every HeartbeatInterval.
func (t *tenure) heartbeats(ctx context.Context) error {
	ticker := time.NewTicker(t.r.cfg.HeartbeatInterval)
	defer ticker.Stop()
	defer func() { // the last heartbeat announces the stop
		if !t.session.Valid() {
			return
		}

		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = t.heartbeat(ctx, true)
	}()
	for {
		if err := t.heartbeat(ctx, false); err == nil {
			t.r.condition.lastHeartbeat.Store(time.Now().UnixNano())
			t.r.condition.writes.heartbeat.set(nil)
		} else if ctx.Err() == nil {
			t.r.condition.writes.heartbeat.set(err)
			t.r.log.WarnContext(ctx, "heartbeat failed, retrying", slog.Any("err", err))
		}

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (t *tenure) heartbeat(ctx context.Context, stopping bool) error {
	s, view := t.slots.Status(), t.r.source.View()
	return election.Heartbeat(ctx, t.r.db.Pool, t.r.cfg.ChainID, t.r.cfg.InstanceID, election.Vitals{
		CurrentBlock: max(s.Next-1, 0), HeadBlock: int64(view.Head), HeadTime: view.HeadTime, TargetTime: view.TargetTime,
		Trust: string(t.r.source.Trust()), Escrows: s.Escrows, Stopping: stopping})
}

// leave releases the slots after a clean stop and notifies the others. After the loss of the
// session the slots are left to the others, which claim them.
func (t *tenure) leave(ctx context.Context) error {
	switch {
	case t.session.Valid():
	case ctx.Err() != nil:
		return fmt.Errorf("give the slots back: %w", election.ErrLost)
	default:
		return nil
	}

	if !t.publisher.Settled() {
		return errors.New("give the slots back: it is not stored yet which of their messages may have been published")
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()

	return errors.Join(t.claimer.Release(ctx, nil), t.claimer.Leave(ctx))
}

// leaveTimeout bounds the release of the slots: the last step of the 10 s that Cloud Run leaves
// after SIGTERM.
const leaveTimeout = 2 * time.Second

// assemble creates the parts of a tenure.
func (t *tenure) assemble() (err error) {
	cfg := t.r.cfg
	t.r.ledger.Renew()
	t.publisher, err = publish.New(publish.Config{
		DB: t.r.db.Pool, ChainID: cfg.ChainID, Owner: cfg.InstanceID, Sender: t.r.pubsub, Topics: cfg.Topics(),
		BySlot: cfg.OrderingKey == "slot", CloudEvents: cfg.CloudEvents, Valid: t.session.Valid,
		Memory: t.session.Memory(), Handover: &t.r.handover,
		Log: t.r.component("publisher"), Metrics: t.r.metrics.publish, Tracer: t.r.tracing.Tracer(),
	})
	if err != nil {
		return err
	}

	t.claimer, err = partition.New(partition.Config{
		DB: t.r.db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID,
		LockKey: t.session.Key(), Partition: cfg.Partition, Auto: cfg.Auto,
		StartBlock: cfg.StartBlock, AdoptAfter: cfg.AdoptAfter, StallAfter: cfg.ResignAfter,
		Version: t.r.build.Version, Settings: cfg.Agreed(), NewProcess: !t.r.handover.Known(t.session.Memory()),
		Able: t.able, EndDead: t.endDead, Stepped: t.stepped,
		Quiesce: t.quiesce, Resume: t.publisher.Resume, Log: t.r.component("partition"),
	})
	if err != nil {
		return err
	}

	t.slots = watch.NewSlotWatch(watch.SlotConfig{
		Config: t.r.watchConfig("slots", &t.r.condition.writes.slots), DB: t.r.db.Pool,
		Holder: t.claimer, Publisher: t.publisher, ChainID: cfg.ChainID,
		Discovered: t.session.Hint(registry.Channel), Requested: t.session.Hint(ledger.RequestsChannel),
	})
	t.elector, err = election.NewElector(election.ElectorConfig{
		Session: t.session, DB: t.r.db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID,
		StaleAfter: cfg.LeaderStaleAfter, Log: t.r.component("election"),
		Eligible: func() bool { return t.r.source.Health() == nil && t.claimer.Lacks() == "" },
	})

	return err
}

// stepped handles the outcome of a check of the fleet.
func (t *tenure) stepped(err error) {
	t.r.condition.writes.check.set(err)
	if err == nil {
		t.limit.Good()
	}
}

// quiesce stops publishing for slots that are about to be yielded, and waits for what is in flight.
// After a timeout, the slots are yielded later.
func (t *tenure) quiesce(ctx context.Context, slots []int16) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quiesceTimeout,
		fmt.Errorf("messages are still in flight after %s", quiesceTimeout))
	defer cancel()

	return t.publisher.Quiesce(ctx, slots)
}

// quiesceTimeout is a little longer than the publisher waits for requests before it cancels them.
const quiesceTimeout = 6 * time.Second

// able returns what keeps this instance, but perhaps not another one, from reading the next blocks
// of its slots: its nodes are down, or refuse those blocks.
func (t *tenure) able() error {
	if err := t.r.source.Health(); err != nil {
		return err
	}

	return t.unread(0)
}

// endDead ends the open transactions of dead instances, before their slots are claimed.
func (t *tenure) endDead(ctx context.Context, instances []string) error {
	ended, err := election.EndTransactions(ctx, t.r.db.Pool, instances)
	if ended > 0 {
		t.r.log.WarnContext(ctx, "ended transactions of dead instances", slog.Int("transactions", ended),
			slog.Any("instances", instances))
	}

	return err
}
