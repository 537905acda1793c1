// Package start is what has to hold before an instance joins its fleet: the chain, the database, Pub/Sub and the keys
// are as configured. doctor does the same, and keeps nothing of it.
package start

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/blame"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

const (
	// A step of the start without an answer after this time logs what it waits for.
	silentAtMost = time.Second
	// An attempt of a step without an answer after this time is cancelled, and the next one begins.
	attemptTimeout = 10 * time.Second
	// Missing migrations get more time: they may rewrite a large table, and a cancelled one starts
	// over. So do the requests, up to 34, that look for the factory's deployment.
	migrateTimeout    = 2 * time.Hour
	startBlockTimeout = time.Minute
	// The same error is logged again after this time.
	repeatAfter = 30 * time.Second
)

// ErrRefused wraps an error beyond retrying: the configuration does not fit the chain, the
// database, or Pub/Sub.
var ErrRefused = errors.New("refused to start")

// ErrKeys means that a key of SENDERS_FILE does not sign.
var ErrKeys = errors.New("SENDERS_FILE")

// Checks are those of a start. All fields but Trial are required; a trial has neither Ledger, Blame nor Failed.
type Checks struct {
	Config   *config.Config
	DB       *database.Database
	Source   *chain.Source
	Followed *registry.Followed // the factories
	Ledger   *ledger.Ledger
	Blame    *blame.Keeper
	Keys     func(context.Context) error // opens the signers
	Failed   func(error)                 // is told why a step does not hold, and nil once it does
	Log      *slog.Logger
	Trial    bool // nothing is kept
}

// step is a condition that must hold, as configured, before anything else runs.
type step struct {
	what string // chain, database, schema, endpoint faults, start block, topics or keys
	// from names what it waits for and where that is set.
	from string
	// timeout is of one attempt, after which the next one begins.
	timeout time.Duration
	do      func(context.Context) error
	// holds says what is known when it is done.
	holds string
}

// steps are those of the start, in order.
func (c *Checks) steps() []step {
	const db = "the database of DATABASE_URL"
	topics := "Google Pub/Sub (PUBSUB_PROJECT_ID=" + c.Config.Project + "): look at the network and at the credentials"
	if pubsub.Emulated() {
		topics = "the Pub/Sub emulator (PUBSUB_EMULATOR_HOST=" + c.Config.PubSubEmulator +
			"): start it, or correct the variable"
	}

	return []step{
		// The chain comes first: a database is not migrated for the wrong one.
		{"chain", "the RPC endpoints of RPC_URLS", attemptTimeout, c.checkChain,
			"the endpoints serve it, and the factories are there"},
		{"database", db, attemptTimeout, c.checkDatabase, "one connection is one server session, of the pool's database"},
		{"schema", db + ": this or another instance migrates it", migrateTimeout, c.prepareSchema,
			"the version that this binary needs"},
		{"endpoint faults", db, attemptTimeout, c.Blame.Sync, "read"},
		{"start block", "the RPC endpoints of RPC_URLS and " + db, startBlockTimeout, c.prepareChain,
			"the factories may be followed from START_BLOCK"},
		{"topics", topics, attemptTimeout, c.checkTopics, "they exist"},
		{"keys", "the signers of SENDERS_FILE", attemptTimeout, c.Keys, "they sign for their addresses"},
	}
}

// Run does the steps before anything else runs. It waits for what is out of reach, for DB_OUTAGE_LIMIT; a wrong
// configuration is ErrRefused.
func (c *Checks) Run(ctx context.Context) error {
	c.Announce(ctx)
	for _, s := range c.steps() {
		if err := c.retry(ctx, s); err != nil {
			return c.failed(s, err)
		}

		c.Failed(nil)
	}

	return nil
}

// failed tells why this instance is not part of the fleet.
func (c *Checks) failed(s step, err error) error {
	err = fmt.Errorf("start: %s: %w", s.what, err)
	c.Failed(err)

	return err
}

// Try does the steps of these names, of a start and of joining the fleet, once, and tells of each what holds, or what
// does not. It returns whether tell does, every time.
func (c *Checks) Try(ctx context.Context, tell func(what, holds string, err error) bool, names ...string) bool {
	well := true
	for _, s := range append(c.steps(), step{"settings", "the database of DATABASE_URL", attemptTimeout, c.agree,
		"the live instances have the same"}) {
		if s.what == "database" || s.what == "topics" { // they answer at once, and a person waits
			s.timeout = 3 * time.Second
		}

		if slices.Contains(names, s.what) {
			err := fleet.Naming(ctx, c.DB.Session, func(ctx context.Context) error { return c.attempt(ctx, s) })
			well = tell(s.what, s.holds, err) && well
		}
	}

	return well
}

// agree compares the settings with those of the live instances, as an instance does that joins them.
func (c *Checks) agree(ctx context.Context) error {
	cfg := &partition.Config{ChainID: c.Config.ChainID, InstanceID: c.Config.InstanceID, Settings: c.Config.Agreed(),
		StaleAfter: partition.StaleAfter, Log: c.Log}
	err := database.Explain(pgx.BeginFunc(ctx, c.DB.Pool, func(tx pgx.Tx) error { return partition.Agree(ctx, cfg, tx) }))
	if errors.Is(err, database.ErrNoSchema) {
		return nil
	}

	return err
}

// Announce logs, in one line, what this instance is about to do.
func (c *Checks) Announce(ctx context.Context) {
	cfg := c.Config
	c.Log.InfoContext(ctx, "configured",
		slog.Int64("chain", cfg.ChainID), slog.Any("factories", cfg.FactoryAddress),
		slog.Int64("start_block", cfg.StartBlock),
		slog.String("finality", cfg.Processed()),
		slog.String("partition", fmt.Sprintf("%s of %d, %s", cfg.Number, cfg.Total, cfg.Strategy)),
		slog.Any("endpoints", cfg.Endpoints()),
		slog.String("project", cfg.Project), slog.String("topic", cfg.Topic), slog.String("other_topic", cfg.OtherTopic),
		slog.String("retractions_topic", cfg.RetractionsTopic))
	for _, w := range cfg.Warnings {
		c.Log.WarnContext(ctx, "a setting that may not do what it should",
			slog.String("variable", w.Variable), slog.String("value", w.Value), slog.String("remedy", w.Remedy))
	}
}

// retry repeats a step until it succeeds, is refused, or has failed for DB_OUTAGE_LIMIT. It logs an
// error when it changes, and once per repeatAfter.
func (c *Checks) retry(ctx context.Context, s step) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second,
		c.Config.DBOutageLimit

	var heard logging.Repeats
	say := func(err error) {
		_ = c.failed(s, err)
		if heard.Lately(err, time.Now(), repeatAfter) {
			return
		}

		c.Log.WarnContext(ctx, "not ready yet, trying again", slog.String("step", s.what), slog.Any("err", err))
	}

	err := backoff.RetryNotify(func() error { return c.attempt(ctx, s) }, backoff.WithContext(delays, ctx),
		func(err error, _ time.Duration) { say(err) })
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("not ready within DB_OUTAGE_LIMIT=%s: %w", c.Config.DBOutageLimit, err)
	}

	return err
}

// attempt does a step once. Its error has no secret.
func (c *Checks) attempt(ctx context.Context, s step) error {
	attempt, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	waiting := time.AfterFunc(silentAtMost, func() {
		c.Log.InfoContext(ctx, "waiting for an answer", slog.String("step", s.what),
			slog.String("from", c.Config.Secrets().Mask(s.from)))
	})
	defer waiting.Stop()

	err := database.Explain(s.do(attempt))
	if err != nil && attempt.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s from %s: %w", s.timeout, s.from, err)
	}

	if lasting(err) {
		return Refuse(c.Config.Secrets().Error(err))
	}

	return c.Config.Secrets().Error(err)
}

// Refuse marks an error beyond retrying.
func Refuse(err error) error { return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err)) }

// lasting reports whether an error of a step is beyond retrying.
func lasting(err error) bool {
	return database.Lasting(err) || slices.ContainsFunc([]error{
		chain.ErrWrongChain, chain.ErrNoCode, contract.ErrNotFactory, errStartBlock, registry.ErrOtherFactory,
		election.ErrPooled, election.ErrElsewhere, migrations.ErrStale, migrations.ErrFuture, pubsub.ErrNoTopic, ErrKeys,
		partition.ErrDisagree,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// checkDatabase verifies that the server is not too old, that a connection is one server session, and that session
// and pool reach the same database. Otherwise the later steps fail with errors that hide the cause.
func (c *Checks) checkDatabase(ctx context.Context) error {
	var number int
	err := c.DB.Pool.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&number)
	switch {
	case err != nil:
		return fmt.Errorf("connect to the database: %w", err)
	case number < 140_000: // as server_version_num has it
		return &database.Explained{What: fmt.Sprintf("Postgres %d is too old", number/10000), Lasting: true,
			Remedy: "14 is the oldest that is supported"}
	}

	if err := election.CheckPooling(ctx, c.DB.Session); err != nil {
		return err
	}

	return election.CheckSame(ctx, c.DB.Session, c.DB.Pool)
}

// prepareSchema makes sure that the database has the schema of this binary.
func (c *Checks) prepareSchema(ctx context.Context) error {
	err := c.checkSchema(ctx)
	if !errors.Is(err, migrations.ErrStale) || !c.Config.MigrateOnStart {
		return err
	}

	// Migrations create their tables in the first schema of the search path that exists.
	var create bool
	if err := c.DB.Pool.QueryRow(ctx, `select coalesce(has_schema_privilege(current_schema(), 'create'), false)`).
		Scan(&create); err != nil {
		return err
	}

	switch {
	case !create:
		return &database.Explained{What: "the user of DATABASE_URL may not create tables in the schema", Lasting: true,
			Remedy: "grant usage, create on it, or run `escrow-relayer migrate` as somebody who may, and set MIGRATE_ON_START=false"}
	case c.Trial:
		c.Log.WarnContext(ctx, "migrations are missing: the first instance applies them", slog.Any("err", err))
		return nil
	}

	applied, err := migrations.Up(ctx, c.DB.Session)
	if err != nil {
		return err
	}

	if len(applied) > 0 {
		c.Log.InfoContext(ctx, "schema migrated", slog.Any("versions", applied))
	}

	return c.checkSchema(ctx)
}

// checkSchema has the timeout of an ordinary step, so that a silent connection cannot delay a start
// for as long as migrations may take.
func (c *Checks) checkSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	return migrations.Check(ctx, c.DB.Session)
}

func (c *Checks) checkChain(ctx context.Context) error {
	for _, f := range c.Config.Factories {
		if err := c.checkFactory(ctx, f.Address); err != nil {
			return err
		}
	}

	return nil
}

func (c *Checks) checkFactory(ctx context.Context, factory common.Address) error {
	if err := c.Source.Check(ctx, factory); err != nil {
		return err
	}

	err := c.Config.ABI.CheckFactory(ctx, c.Source, factory)
	switch {
	case errors.Is(err, contract.ErrNotFactory):
		return fmt.Errorf("FACTORY_ADDRESS=%s: %w", factory, err)
	case errors.Is(err, contract.ErrUnknownProxy):
		c.Log.WarnContext(ctx, "factory not recognised", slog.String("factory", factory.Hex()), slog.Any("err", err))
		return nil
	}

	return err
}

func (c *Checks) checkTopics(ctx context.Context) error {
	err := pubsub.CheckTopics(ctx, c.Config.Project, c.Config.Topics(), pubsub.At(c.Config.PubSubEndpoint)...)
	if status.Code(err) == codes.Unauthenticated {
		return fmt.Errorf("%w: the credentials are not accepted: check GOOGLE_APPLICATION_CREDENTIALS or the service account", err)
	}

	return err
}
