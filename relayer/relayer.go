// Package relayer runs one instance: it joins the fleet, watches the escrows of its slots, and the factory while it leads, and
// publishes what it commits.
//
// An instance lives in tenures. A tenure lasts as long as its database session: everything it holds (its lock, its slots, the leadership)
// is void when the session is lost, so everything that acts on it stops with it, and the next tenure joins anew.
//
//	Run ─► start-up checks ─► tenure ─► tenure ─► …             until ctx ends, or the database is gone for DB_OUTAGE_LIMIT
//	                            │
//	                            ├─ session    probes, notifications            ends last
//	                            ├─ publisher  outbox ─► Pub/Sub                ends when the watches have ended
//	                            ├─ claimer    which slots are ours
//	                            ├─ slot watch blocks ─► ledger ─► publisher
//	                            ├─ elector ─► factory watch, verifier, retention    while leading
//	                            └─ heartbeat
package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
	"github.com/fusion-prime/escrow-relayer/relayer/trace"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// Relayer is one instance. New checks its configuration, Run runs it, once.
type Relayer struct {
	cfg      *config.Config
	log      *slog.Logger
	secrets  *redact.Secrets
	gatherer prometheus.Gatherer
	version  string
	started  time.Time

	source   *source.Source
	filters  *watch.Filters
	watching *watch.Metrics
	verified *verify.Metrics
	sending  *publish.Metrics
	carry    publish.Carry
	gauges   *gauges

	db       *database.Database // from here on set by Run
	tracing  *trace.Tracing
	ledger   *ledger.Ledger
	factory  *watch.FactoryWatch
	verifier *verify.Verifier

	current  atomic.Pointer[tenure]
	leading  atomic.Bool
	lastBeat atomic.Int64 // unix nanoseconds
	dbError  atomic.Pointer[error]
	lastLoss atomic.Pointer[error]
}

// ErrOutage means that the database was out of reach for longer than DB_OUTAGE_LIMIT.
var ErrOutage = errors.New("the database was out of reach for too long")

// ErrRefused wraps what no retry can mend: the configuration does not fit the chain, the database, or Pub/Sub.
var ErrRefused = errors.New("refused to start")

// New makes an instance and starts nothing. The registry gets its metrics, each with the label chain_id.
func New(cfg *config.Config, log *slog.Logger, metrics *prometheus.Registry, version, revision string) (*Relayer, error) {
	reg := prometheus.WrapRegistererWith(chainLabels(cfg.ChainID), metrics)
	r := &Relayer{
		cfg: cfg, log: log.With(slog.String("instance", cfg.InstanceID)), secrets: cfg.Secrets(), gatherer: metrics, version: version, started: time.Now(),
		filters:  watch.NewFilters(cfg.ABI, cfg.Factory, watch.FilterMode(cfg.LogFilter), cfg.RPCMaxAddress, cfg.RPCRequestPrice),
		watching: watch.NewMetrics(reg, cfg.ABI.EventNames()), verified: verify.NewMetrics(reg), sending: publish.NewMetrics(reg),
	}
	r.lastBeat.Store(r.started.UnixNano())
	var err error
	r.source, err = source.New(source.Config{
		URLs: cfg.RPCURLs, ChainID: uint64(cfg.ChainID), Finality: cfg.Finality, Confirmations: cfg.Confirmations, PollInterval: cfg.PollInterval,
		Timeout: cfg.RPCTimeout, MaxRPS: cfg.RPCMaxRPS, MaxRange: cfg.RPCMaxRange, MaxAddresses: cfg.RPCMaxAddress,
		Logger: r.component("source"), Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	r.gauges = newGauges(reg, r, version, revision) // last: a scrape asks r for everything
	return r, nil
}

func (r *Relayer) component(name string) *slog.Logger {
	return r.log.With(slog.String("component", name))
}

// start makes sure that chain, database and Pub/Sub are what the configuration says, before anything else runs. What is out of
// reach is waited for; what is wrong is ErrRefused.
func (r *Relayer) start(ctx context.Context) error {
	cfg := r.cfg
	steps := []struct {
		what string
		do   func(context.Context) error
	}{
		{"database", func(ctx context.Context) error { return r.prepareDatabase(ctx) }},
		{"chain", func(ctx context.Context) error {
			err := r.source.Check(ctx, cfg.Factory)
			if errors.Is(err, source.ErrWrongChain) || errors.Is(err, source.ErrNoCode) {
				return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err))
			}
			return err
		}},
		{"topics", func(ctx context.Context) error {
			err := publish.CheckTopics(ctx, cfg.Project, r.topics())
			if errors.Is(err, publish.ErrNoTopic) {
				return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err))
			}
			return err
		}},
	}
	for _, step := range steps {
		delays := backoff.NewExponentialBackOff()
		delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second, cfg.DBOutageLimit
		err := backoff.RetryNotify(func() error {
			attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			return r.secrets.Error(step.do(attempt))
		}, backoff.WithContext(delays, ctx), func(err error, wait time.Duration) {
			r.log.WarnContext(ctx, "not ready yet, trying again", slog.String("step", step.what), slog.Any("err", err), slog.Duration("in", wait))
		})
		if err != nil {
			return fmt.Errorf("start: %s: %w", step.what, err)
		}
	}
	return nil
}

func (r *Relayer) prepareDatabase(ctx context.Context) error {
	refuse := func(err error) error { return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err)) }
	// Before anything else: what comes next fails in obscure ways behind such a proxy.
	if err := election.CheckPooling(ctx, r.db.Session); errors.Is(err, election.ErrPooled) {
		return refuse(err)
	}
	if r.cfg.MigrateOnStart {
		applied, err := migrations.Up(ctx, r.db.Session)
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && (pg.Code[:2] == "28" || pg.Code == "3D000" || pg.Code[:2] == "42"): // no login, no database, no right or a broken migration
			return refuse(fmt.Errorf("DATABASE_URL: %w", err))
		case err != nil:
			return err
		case len(applied) > 0:
			r.log.InfoContext(ctx, "schema migrated", slog.Any("versions", applied))
		}
	} else if err := migrations.Check(ctx, r.db.Session); errors.Is(err, migrations.ErrStale) {
		return refuse(err)
	} else if err != nil {
		return err
	}
	err := election.Prepare(ctx, r.db.Pool, r.cfg.ChainID, r.cfg.StartBlock, registry.Text(r.cfg.Factory))
	if errors.Is(err, election.ErrOtherFactory) {
		return refuse(err)
	}
	return err
}

func (r *Relayer) topics() publish.Topics {
	return publish.Topics{Default: r.cfg.Topic, Other: r.cfg.OtherTopic, Retractions: r.cfg.RetractionsTopic}
}

// Run starts the instance and runs it until ctx ends (nil), something makes it impossible to go on (ErrRefused, election.ErrTaken,
// election.ErrPooled), or the database is out of reach for DB_OUTAGE_LIMIT (ErrOutage). It stops in the order in which data flows, and
// leaves no goroutine behind.
func (r *Relayer) Run(ctx context.Context) (err error) {
	r.db, err = database.Open(ctx, r.cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	defer r.db.Close()
	if r.tracing, err = trace.Start(ctx, r.component("trace"), map[string]string{
		"service.version": r.version, "service.instance.id": r.cfg.InstanceID, "relayer.chain_id": strconv.FormatInt(r.cfg.ChainID, 10),
	}); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	defer r.tracing.Stop(context.WithoutCancel(ctx)) // after all that makes spans
	r.ledger = ledger.New(ledger.Config{
		DB: r.db.Pool, ChainID: r.cfg.ChainID, InstanceID: r.cfg.InstanceID, EventNames: r.cfg.ABI.EventNames(), Publishes: r.cfg.Publishes,
	})
	r.factory = watch.NewFactoryWatch(watch.FactoryConfig{
		Source: r.source, Ledger: r.ledger, ABI: r.cfg.ABI, Filters: r.filters, Factory: r.cfg.Factory,
		BeatEvery: min(5*time.Second, r.cfg.LeaderStaleAfter/4), ResignAfter: r.cfg.ResignAfter, Health: r.source.Health,
		Log: r.component("factory"), Metrics: r.watching, Tracer: r.tracing.Tracer(),
	})
	r.verifier = verify.New(verify.Config{
		Source: r.source, Ledger: r.ledger, ABI: r.cfg.ABI, Factory: r.cfg.Factory, Every: r.cfg.VerifyInterval, Log: r.component("verifier"), Metrics: r.verified,
	})
	server, err := web.New(web.Config{
		Addr: ":" + strconv.Itoa(r.cfg.Port), Source: r, DB: r.db.Pool, ChainID: r.cfg.ChainID, Metrics: r.gatherer, ExplorerURL: r.cfg.ExplorerURL,
		Mask: r.secrets.Mask, Log: r.component("web"),
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	// The server and the source outlive the tenures: a stop is visible, and a rejoin does not lose the head of the chain.
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, outer := errgroup.WithContext(base)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(outer, cancel)() // when one of those fails, the tenure ends too
	g.Go(func() error { return server.Run(outer) })
	// What the metrics and /readyz say is true from the first second, whatever start-up waits for.
	g.Go(func() error { return r.source.Run(outer) })
	g.Go(func() error { return r.measure(outer) })
	g.Go(func() error {
		defer end()
		if err := r.start(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		return r.tenures(ctx)
	})
	return g.Wait()
}

// tenures serves one tenure after another.
func (r *Relayer) tenures(ctx context.Context) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second, 0
	limit := outage{limit: r.cfg.DBOutageLimit}
	limit.good()
	for {
		err := r.serve(ctx, &limit, func() { delays.Reset(); r.lastLoss.Store(nil) })
		switch {
		case ctx.Err() != nil:
			return r.stopped(ctx, err)
		case errors.Is(err, election.ErrTaken):
			return fmt.Errorf("%w: %w", ErrRefused, err)
		case limit.over():
			return fmt.Errorf("%w (DB_OUTAGE_LIMIT=%s): %w", ErrOutage, r.cfg.DBOutageLimit, err)
		}
		r.lastLoss.Store(&err)
		r.gauges.sessionLosses.Inc()
		r.log.WarnContext(ctx, "tenure over, joining again", slog.Any("err", err))
		timer := time.NewTimer(delays.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tenure is one database session and everything that lives by it.
type tenure struct {
	*Relayer
	session   *election.Session
	claimer   *partition.Claimer
	publisher *publish.Publisher
	slots     *watch.SlotWatch
	elector   *election.Elector
}

// serve opens a session, joins the fleet and works until ctx ends (nil) or the tenure is over (an error). joined is called
// once the instance is part of the fleet; up to there limit bounds it.
func (r *Relayer) serve(ctx context.Context, limit *outage, joined func()) (err error) {
	attempt, end := limit.bound(ctx)
	defer end()
	session, err := election.Open(attempt, election.SessionConfig{
		Conn: r.db.Session, ChainID: r.cfg.ChainID, InstanceID: r.cfg.InstanceID, ProbeEvery: r.cfg.SessionProbeInterval, Wait: r.cfg.InstanceLockWait, Waiting: limit.good,
		Channels: []string{partition.Channel, registry.Channel, ledger.OutboxChannel, election.Channel}, Log: r.component("session"),
	})
	if err != nil {
		return err
	}
	// The session outlives ctx: slots and leadership are given back through it.
	sessionCtx, endSession := context.WithCancel(context.WithoutCancel(ctx))
	sessionDone := make(chan error, 1)
	go func() { sessionDone <- session.Run(sessionCtx) }()
	defer func() {
		endSession()
		err = errors.Join(err, <-sessionDone)
	}()
	t := &tenure{Relayer: r, session: session}
	if err := t.assemble(); err != nil {
		return err
	}
	if err := t.join(attempt); err != nil {
		return err
	}
	end()
	joined()
	r.current.Store(t)
	defer func() { r.current.Store(nil); limit.good() }()
	err = t.work(ctx)
	return errors.Join(err, t.leave(ctx))
}

// join makes the instance part of the fleet. What a former life of it has under way is ended first: it holds the rows that joining needs.
func (t *tenure) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("not joined within %s", joinTimeout))
	defer cancel()
	if _, err := t.session.EndFormer(ctx, t.db.Pool); err != nil {
		return err
	}
	return t.claimer.Join(ctx)
}

// joinTimeout bounds the joining: a few statements.
const joinTimeout = 15 * time.Second

// work runs everything until ctx or the session ends, or one part fails. The publisher ends after what feeds it.
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
			t.db.Renew() // so that nothing waits on a connection which went the way of the session's
			return election.ErrLost
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return t.claimer.Run(ctx, t.session.Hint(partition.Channel)) })
	g.Go(func() error { return t.slots.Run(ctx) })
	g.Go(func() error { return t.elector.Run(ctx, t.lead) })
	g.Go(func() error { return t.beat(ctx) })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.session.Hint(ledger.OutboxChannel):
				t.publisher.Reload()
			}
		}
	})
	err := g.Wait()
	endPublishing()
	return errors.Join(err, <-published)
}

// lead serves one term as leader.
func (t *tenure) lead(ctx context.Context, term election.Term) error {
	t.leading.Store(true)
	defer t.leading.Store(false)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := t.factory.Run(ctx, term.Epoch, t.elector.Beats(term))
		switch {
		case errors.Is(err, ledger.ErrFenced):
			return fmt.Errorf("%w: %w", election.ErrDeposed, err)
		case errors.Is(err, watch.ErrNoProgress):
			return fmt.Errorf("%w: %w", election.ErrResign, err)
		}
		return err
	})
	g.Go(func() error { return t.verifier.Run(ctx, term.Epoch) })
	g.Go(func() error {
		return retention.Run(ctx, retention.Config{DB: t.db.Pool, ChainID: t.cfg.ChainID, Events: t.cfg.Retention, Log: t.component("retention")})
	})
	return g.Wait()
}

// beat writes the heartbeat every HeartbeatInterval.
func (t *tenure) beat(ctx context.Context) error {
	ticker := time.NewTicker(t.cfg.HeartbeatInterval)
	defer ticker.Stop()
	defer func() { // the last one says that it is about to stop
		if !t.session.Valid() {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = election.Heartbeat(ctx, t.db.Pool, t.cfg.ChainID, t.cfg.InstanceID, t.vitals(true))
	}()
	for {
		if err := election.Heartbeat(ctx, t.db.Pool, t.cfg.ChainID, t.cfg.InstanceID, t.vitals(false)); err == nil {
			t.lastBeat.Store(time.Now().UnixNano())
		} else if ctx.Err() == nil {
			t.log.WarnContext(ctx, "heartbeat not written, trying again", slog.Any("err", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (t *tenure) vitals(stopping bool) election.Vitals {
	s, view := t.slots.Status(), t.source.View()
	return election.Vitals{CurrentBlock: max(s.Next-1, 0), HeadBlock: int64(view.Head), Escrows: s.Escrows, Stopping: stopping}
}

// leave gives the slots back after a clean stop, waking the others. With the session gone there is nothing to give back: the
// others claim it.
func (t *tenure) leave(ctx context.Context) error {
	switch {
	case t.session.Valid():
	case ctx.Err() != nil:
		return fmt.Errorf("give the slots back: %w", election.ErrLost)
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	return errors.Join(t.claimer.Release(ctx, nil), t.claimer.Leave(ctx))
}

// leaveTimeout bounds the return of the slots: the last step of the 10 s that Cloud Run leaves after SIGTERM.
const leaveTimeout = 2 * time.Second

// stopped is what Run returns after ctx has ended: nothing, unless the stop itself failed.
func (r *Relayer) stopped(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		r.log.WarnContext(ctx, "stopped, but not cleanly: the other instances will claim what was not given back", slog.Any("err", err))
	} else {
		r.log.InfoContext(ctx, "stopped")
	}
	return nil
}

// assemble makes the parts of a tenure.
func (t *tenure) assemble() (err error) {
	cfg := t.cfg
	t.publisher, err = publish.New(publish.Config{
		DB: t.db.Pool, ChainID: cfg.ChainID, Owner: cfg.InstanceID, Project: cfg.Project, Topics: t.topics(), OtherNames: cfg.Other,
		BySlot: cfg.OrderingKey == "slot", Valid: t.session.Valid, Log: t.component("publisher"), Metrics: t.sending, Carry: &t.carry,
		Tracer: t.tracing.Tracer(),
	})
	if err != nil {
		return err
	}
	t.claimer, err = partition.New(partition.Config{
		DB: t.db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID, LockKey: election.InstanceKey(cfg.ChainID, cfg.InstanceID), Partition: cfg.Partition,
		Auto: cfg.Auto, StartBlock: cfg.StartBlock, AdoptAfter: cfg.AdoptAfter, Version: t.version,
		Quiesce: t.publisher.Quiesce, Resume: t.publisher.Resume, Log: t.component("partition"),
	})
	if err != nil {
		return err
	}
	t.slots = watch.NewSlotWatch(watch.SlotConfig{
		Source: t.source, Ledger: t.ledger, DB: t.db.Pool, Holder: t.claimer, Publisher: t.publisher, ABI: cfg.ABI, Filters: t.filters, ChainID: cfg.ChainID,
		DiscoveryWait: cfg.DiscoveryWait, Discovered: t.session.Hint(registry.Channel), Log: t.component("slots"), Metrics: t.watching,
		Tracer: t.tracing.Tracer(),
	})
	t.elector, err = election.NewElector(election.ElectorConfig{
		Session: t.session, DB: t.db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID, StaleAfter: cfg.LeaderStaleAfter,
		Eligible: func() bool { return t.source.Health() == nil }, Busy: partition.LockKey(cfg.ChainID), Log: t.component("election"),
	})
	return err
}
