// Package relayer runs one instance: it joins the fleet, watches the escrows of its slots, and the
// factory while it leads, and publishes what it commits.
//
// An instance runs in tenures. A tenure lasts as long as its database session: everything that the
// instance holds (its lock, its slots, the leadership) is void when the session is lost, so
// everything that acts on it stops with the session, and the next tenure joins the fleet again.
//
//	Run ─► checks at start ─► tenure ─► tenure ─► … until ctx ends, or the database is gone for DB_OUTAGE_LIMIT
//	                            │
//	                            ├─ session    probes, notifications            ends last
//	                            ├─ publisher  outbox ─► Pub/Sub                ends when the watches have ended
//	                            ├─ claimer    which slots are this instance's
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
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/blame"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
	"github.com/fusion-prime/escrow-relayer/relayer/trace"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// Relayer is one instance. New checks its configuration; Run runs once.
//
// The first group of fields is set by New and the second by Run, before they are read; both are
// constant afterwards. What changes is in condition, and in handover, which belongs to the current
// tenure.
type Relayer struct {
	cfg      *config.Config
	log      *slog.Logger
	secrets  *redact.Secrets
	gatherer prometheus.Gatherer
	build    fleet.Build
	started  time.Time
	source   *chain.Source
	followed *registry.Followed // the factories
	filters  *watch.Filters
	metrics  partMetrics
	commands *commands
	gauges   *metrics.Gauges

	db       *database.Database
	tracing  *trace.Tracing
	ledger   *ledger.Ledger
	blame    *blame.Keeper
	factory  *watch.FactoryWatch
	past     *watch.PastWatch
	verifier *verify.Verifier
	pubsub   *pubsub.Client

	front     *web.Front // of the process
	condition condition
	handover  publish.Handover // from the publisher of one tenure to that of the next
}

// partMetrics are those of the parts that are created for each tenure or term.
type partMetrics struct {
	watch   *watch.Metrics
	verify  *verify.Metrics
	publish *publish.Metrics
}

// ErrOutage means that the database was out of reach for longer than DB_OUTAGE_LIMIT.
var ErrOutage = errors.New("the database was out of reach for too long")

// New creates an instance and starts nothing. The registry gets its metrics, each with the labels
// chain_id and fleet.
func New(cfg *config.Config, log *slog.Logger, all *prometheus.Registry, build fleet.Build) (*Relayer, error) {
	reg := prometheus.WrapRegistererWith(prometheus.Labels{"chain_id": strconv.FormatInt(cfg.ChainID, 10),
		"fleet": cfg.Fleet}, all) // alerts tell fleets apart by them, wherever the scrape comes from
	r := &Relayer{
		cfg: cfg, log: log.With(slog.String("instance", cfg.InstanceID)), secrets: cfg.Secrets(), gatherer: all,
		build: build, started: time.Now(), followed: registry.NewFollowed(cfg.Factories...),
		metrics: partMetrics{watch: watch.NewMetrics(reg, cfg.ABI.EventNames()), verify: verify.NewMetrics(reg),
			publish: publish.NewMetrics(reg)},
	}
	r.filters = NewFilters(cfg, r.followed)
	r.condition.lastHeartbeat.Store(r.started.UnixNano())
	r.source = NewSource(cfg, r.component("source"), reg)
	var err error
	if r.commands, err = newCommands(cfg, reg); err != nil {
		return nil, start.Refuse(err)
	}

	r.gauges = metrics.NewGauges(reg, r.Instance, build) // last: a scrape asks r for everything

	return r, nil
}

func (r *Relayer) component(name string) *slog.Logger {
	return r.log.With(slog.String("component", name))
}

// Run starts the instance, serves its pages at front, and runs it until ctx ends (nil), it cannot
// continue (start.ErrRefused, election.ErrTaken, election.ErrPooled), or the database is out of reach for
// DB_OUTAGE_LIMIT (ErrOutage). It stops in the order of the data flow, and every goroutine has ended
// when it returns.
func (r *Relayer) Run(ctx context.Context, front *web.Front) (err error) {
	r.front = front
	if r.db, err = database.Open(ctx, r.cfg); err != nil {
		return start.Refuse(err)
	}

	defer r.db.Close()
	if r.tracing, err = trace.Start(ctx, r.component("trace"), map[string]string{
		"service.version": r.build.Version, "service.instance.id": r.cfg.InstanceID,
		"relayer.chain_id": strconv.FormatInt(r.cfg.ChainID, 10),
	}); err != nil {
		return start.Refuse(err)
	}

	defer r.tracing.Stop(context.WithoutCancel(ctx)) // after all that makes spans
	r.assemble()
	defer r.commands.close()
	if err := r.commands.open(ctx, r); err != nil {
		return start.Refuse(err)
	}

	reader := fleet.NewReader(r.db.Pool, r.cfg.ChainID)
	server := front.Mount(web.Config{Source: r, DB: r.db.Pool, ChainID: r.cfg.ChainID, Fleet: reader,
		Metrics: r.gatherer, ExplorerURL: r.cfg.ExplorerURL, Commands: r.commands.handler(r.cfg)})
	// The server and the source outlive the tenures: the page shows how the instance stops, and the
	// head of the chain is known when it joins again.
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, outer := errgroup.WithContext(base)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(outer, cancel)() // when a part of g fails, the tenure ends too
	g.Go(func() error { return server.Run(outer) })
	// These run during the start too, so that the metrics and /readyz are true while it waits.
	g.Go(func() error { return r.source.Run(outer) })
	g.Go(func() error { return r.gauges.Follow(outer, r.db.Pool, reader, r.condition.database.set) })
	g.Go(func() error { return r.reports(outer) })
	g.Go(func() error { return r.reportProgress(outer) })
	g.Go(func() error {
		defer end()

		return r.startAndServe(ctx, outer, g)
	})

	return g.Wait()
}

// assemble creates the parts that read and commit for as long as the instance runs.
func (r *Relayer) assemble() {
	r.ledger = NewLedger(r.cfg, r.db)
	r.blame = &blame.Keeper{DB: r.db.Pool, ChainID: r.cfg.ChainID, Endpoints: r.source, Log: r.component("source")}
	leader := watch.FactoryConfig{
		Config:      r.watchConfig("factory", &r.condition.writes.factory),
		BeatEvery:   min(5*time.Second, r.cfg.LeaderStaleAfter/4),
		ResignAfter: r.cfg.ResignAfter, Health: r.source.Health,
	}
	r.factory, r.past = watch.NewFactoryWatch(leader), watch.NewPastWatch(leader)
	r.verifier = NewVerifier(r.cfg, r.source, r.followed, r.filters, r.ledger, r.component("verifier"), r.metrics.verify)
}

// watchConfig is common to both watches; commits keeps the outcome of the last commit.
func (r *Relayer) watchConfig(component string, commits *lastError) watch.Config {
	return watch.Config{Source: r.source, Ledger: r.ledger, ABI: r.cfg.ABI, Filters: r.filters,
		Log: r.component(component), Metrics: r.metrics.watch, Tracer: r.tracing.Tracer(),
		Latest: r.cfg.Newest(), Stored: commits.set}
}

// startAndServe runs the checks of the start and then serves tenures, until ctx ends (nil). The
// goroutines it starts in g outlive the tenures, and end with outer.
func (r *Relayer) startAndServe(ctx, outer context.Context, g *errgroup.Group) error {
	if err := r.checks().Run(ctx); err != nil {
		self := r.Instance()
		_ = r.report(ctx, &self) // so that status knows why; the process may end before the next report
		if ctx.Err() != nil {
			return nil
		}

		return err
	}

	client, err := pubsub.New(outer, pubsub.Config{Project: r.cfg.Project, Options: pubsub.At(r.cfg.PubSubEndpoint),
		Log: r.component("pubsub")})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}

	defer func() { _ = client.Close() }() // the requests have ended
	r.pubsub = client
	g.Go(func() error { return r.blame.Run(outer) })
	if r.commands.intake != nil { // once the schema is there
		g.Go(func() error { return r.commands.take(outer, r) })
	}

	return r.tenures(ctx)
}

// checks are those of the start.
func (r *Relayer) checks() *start.Checks {
	return &start.Checks{Config: r.cfg, DB: r.db, Source: r.source, Followed: r.followed, Ledger: r.ledger,
		Blame: r.blame, Keys: r.openKeys, Failed: r.condition.lastLoss.set, Log: r.log}
}

// tenures serves one tenure after another, until ctx ends (nil) or an error forbids the next one.
func (r *Relayer) tenures(ctx context.Context) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second, 0
	limit := database.Outage{Limit: r.cfg.DBOutageLimit}
	limit.Good()
	for {
		joined := false
		err := r.serve(ctx, &limit, func() { joined = true; delays.Reset(); r.condition.lastLoss.set(nil) })
		switch {
		case ctx.Err() != nil:
			return r.stopped(ctx, err)
		case errors.Is(err, election.ErrTaken), errors.Is(err, partition.ErrDisagree):
			return start.Refuse(err)
		case limit.Left() <= 0:
			if before := r.condition.lastLoss.get(); before != nil && errors.Is(err, context.Canceled) {
				err = before // the limit ended the attempt, which proves nothing about the database
			}

			return fmt.Errorf("%w (DB_OUTAGE_LIMIT=%s): %w", ErrOutage, r.cfg.DBOutageLimit, database.Explain(err))
		}

		// Old connections may lead elsewhere, as after a failover, or be read-only.
		r.db.Renew()
		r.condition.lastLoss.set(err)
		if joined { // a failed attempt to join has no session to lose
			r.gauges.SessionLost()
		}

		r.log.WarnContext(ctx, "tenure over, joining again", slog.Any("err", err))
		select {
		case <-ctx.Done():
		case <-time.After(min(delays.NextBackOff(), limit.Left())):
		}
	}
}

// withoutCanceled removes from joined errors those that only report the end of the context. Others,
// such as a stop that failed to release its slots, stay.
func withoutCanceled(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case !ok && errors.Is(err, context.Canceled):
		return nil
	case !ok:
		return err
	}

	var others []error
	for _, e := range joined.Unwrap() {
		others = append(others, withoutCanceled(e))
	}

	return errors.Join(others...)
}

// stopped logs how the stop went, and returns nil, the result of Run after ctx has ended.
func (r *Relayer) stopped(ctx context.Context, err error) error {
	if err := withoutCanceled(err); err != nil {
		r.log.WarnContext(ctx, "stopped, but not cleanly: the other instances will claim what was not given back",
			slog.Any("err", err))
	} else {
		r.log.InfoContext(ctx, "stopped")
	}

	return nil
}
