package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/ethereum/go-ethereum/common"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
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

// startStep is a condition that must hold, as configured, before anything else runs.
type startStep struct {
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
func (r *Relayer) steps() []startStep {
	const db = "the database of DATABASE_URL"
	topics := "Google Pub/Sub (PUBSUB_PROJECT_ID=" + r.cfg.Project + "): look at the network and at the credentials"
	if pubsub.Emulated() {
		topics = "the Pub/Sub emulator (PUBSUB_EMULATOR_HOST=" + r.cfg.PubSubEmulator + "): start it, or correct the variable"
	}

	return []startStep{
		// The chain comes first: a database is not migrated for the wrong one.
		{"chain", "the RPC endpoints of RPC_URLS", attemptTimeout, r.checkChain,
			"the endpoints serve it, and the factories are there"},
		{"database", db, attemptTimeout, r.checkDatabase, "one connection is one server session, of the pool's database"},
		{"schema", db + ": this or another instance migrates it", migrateTimeout, r.prepareSchema,
			"the version that this binary needs"},
		{"endpoint faults", db, attemptTimeout, r.blame.Sync, "read"},
		{"start block", "the RPC endpoints of RPC_URLS and " + db, startBlockTimeout, r.prepareChain,
			"the factories may be followed from START_BLOCK"},
		{"topics", topics, attemptTimeout, r.checkTopics, "they exist"},
		{"keys", "the signers of SENDERS_FILE", attemptTimeout, r.openKeys, "they sign for their addresses"},
	}
}

// start verifies that chain, database and Pub/Sub are as configured, before anything else runs. It
// waits for what is out of reach, for DB_OUTAGE_LIMIT; a wrong configuration is ErrRefused.
func (r *Relayer) start(ctx context.Context) error {
	r.announce(ctx)
	for _, step := range r.steps() {
		if err := r.retry(ctx, step); err != nil {
			r.failed(step, err)
			self := r.Instance()
			_ = r.report(ctx, &self) // so that status knows why; the process may end before the next report

			return r.condition.lastLoss.get()
		}

		r.condition.lastLoss.set(nil)
	}

	return nil
}

// failed notes why this instance is not part of the fleet.
func (r *Relayer) failed(step startStep, err error) {
	r.condition.lastLoss.set(fmt.Errorf("start: %s: %w", step.what, err))
}

// announce logs, in one line, what this instance is about to do.
func (r *Relayer) announce(ctx context.Context) {
	cfg := r.cfg
	finality := cfg.Finality
	if finality == chain.Confirmations {
		finality = fmt.Sprintf("%d confirmations", cfg.Confirmations)
	}

	partition := fmt.Sprintf("%s of %d, %s", cfg.Number, cfg.Total, cfg.Strategy)

	r.log.InfoContext(ctx, "configured",
		slog.Int64("chain", cfg.ChainID), slog.Any("factories", cfg.FactoryAddress),
		slog.Int64("start_block", cfg.StartBlock),
		slog.String("finality", finality), slog.String("partition", partition), slog.Any("endpoints", cfg.Endpoints()),
		slog.String("project", cfg.Project), slog.String("topic", cfg.Topic), slog.String("other_topic", cfg.OtherTopic),
		slog.String("retractions_topic", cfg.RetractionsTopic))
	for _, w := range cfg.Warnings {
		r.log.WarnContext(ctx, "a setting that may not do what it should",
			slog.String("variable", w.Variable), slog.String("value", w.Value), slog.String("remedy", w.Remedy))
	}
}

// retry repeats a step until it succeeds, is refused, or has failed for DB_OUTAGE_LIMIT. It logs an
// error when it changes, and once per repeatAfter.
func (r *Relayer) retry(ctx context.Context, step startStep) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second,
		r.cfg.DBOutageLimit

	var heard logging.Repeats
	say := func(err error) {
		r.failed(step, err)
		if heard.Lately(err, time.Now(), repeatAfter) {
			return
		}

		r.log.WarnContext(ctx, "not ready yet, trying again", slog.String("step", step.what), slog.Any("err", err))
	}

	err := backoff.RetryNotify(func() error { return r.attempt(ctx, step) }, backoff.WithContext(delays, ctx),
		func(err error, _ time.Duration) { say(err) })
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("not ready within DB_OUTAGE_LIMIT=%s: %w", r.cfg.DBOutageLimit, err)
	}

	return err
}

// attempt does a step once. Its error has no secret.
func (r *Relayer) attempt(ctx context.Context, step startStep) error {
	attempt, cancel := context.WithTimeout(ctx, step.timeout)
	defer cancel()
	waiting := time.AfterFunc(silentAtMost, func() {
		r.log.InfoContext(ctx, "waiting for an answer", slog.String("step", step.what),
			slog.String("from", r.secrets.Mask(step.from)))
	})
	defer waiting.Stop()

	err := database.Explain(step.do(attempt))
	if err != nil && attempt.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s from %s: %w", step.timeout, step.from, err)
	}

	if lasting(err) {
		return refuse(r.secrets.Error(err))
	}

	return r.secrets.Error(err)
}

// refuse marks an error beyond retrying.
func refuse(err error) error { return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err)) }

// lasting reports whether an error of a step is beyond retrying.
func lasting(err error) bool {
	return database.Lasting(err) || slices.ContainsFunc([]error{
		chain.ErrWrongChain, chain.ErrNoCode, contract.ErrNotFactory, errStartBlock, registry.ErrOtherFactory,
		election.ErrPooled, election.ErrElsewhere, migrations.ErrStale, migrations.ErrFuture, pubsub.ErrNoTopic, errKeys,
		partition.ErrDisagree,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// checkDatabase verifies that the server is not too old, that a connection is one server session, and that session
// and pool reach the same database. Otherwise the later steps fail with errors that hide the cause.
func (r *Relayer) checkDatabase(ctx context.Context) error {
	var number int
	err := r.db.Pool.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&number)
	switch {
	case err != nil:
		return fmt.Errorf("connect to the database: %w", err)
	case number < 140_000: // as server_version_num has it
		return &database.Explained{What: fmt.Sprintf("Postgres %d is too old", number/10000), Lasting: true,
			Remedy: "14 is the oldest that is supported"}
	}

	if err := election.CheckPooling(ctx, r.db.Session); err != nil {
		return err
	}

	return election.CheckSame(ctx, r.db.Session, r.db.Pool)
}

// prepareSchema makes sure that the database has the schema of this binary.
func (r *Relayer) prepareSchema(ctx context.Context) error {
	err := r.checkSchema(ctx)
	if !errors.Is(err, migrations.ErrStale) || !r.cfg.MigrateOnStart {
		return err
	}

	// Migrations create their tables in the first schema of the search path that exists.
	var create bool
	if err := r.db.Pool.QueryRow(ctx, `select coalesce(has_schema_privilege(current_schema(), 'create'), false)`).
		Scan(&create); err != nil {
		return err
	}

	switch {
	case !create:
		return &database.Explained{What: "the user of DATABASE_URL may not create tables in the schema", Lasting: true,
			Remedy: "grant usage, create on it, or run `escrow-relayer migrate` as somebody who may, and set MIGRATE_ON_START=false"}
	case r.trial:
		r.log.WarnContext(ctx, "migrations are missing: the first instance applies them", slog.Any("err", err))
		return nil
	}

	applied, err := migrations.Up(ctx, r.db.Session)
	if err != nil {
		return err
	}

	if len(applied) > 0 {
		r.log.InfoContext(ctx, "schema migrated", slog.Any("versions", applied))
	}

	return r.checkSchema(ctx)
}

// checkSchema has the timeout of an ordinary step, so that a silent connection cannot delay a start
// for as long as migrations may take.
func (r *Relayer) checkSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	return migrations.Check(ctx, r.db.Session)
}

func (r *Relayer) checkChain(ctx context.Context) error {
	for _, f := range r.cfg.Factories {
		if err := r.checkFactory(ctx, f.Address); err != nil {
			return err
		}
	}

	return nil
}

func (r *Relayer) checkFactory(ctx context.Context, factory common.Address) error {
	if err := r.source.Check(ctx, factory); err != nil {
		return err
	}

	err := r.cfg.ABI.CheckFactory(ctx, r.source, factory)
	switch {
	case errors.Is(err, contract.ErrNotFactory):
		return fmt.Errorf("FACTORY_ADDRESS=%s: %w", factory, err)
	case errors.Is(err, contract.ErrUnknownProxy):
		r.log.WarnContext(ctx, "factory not recognised", slog.String("factory", factory.Hex()), slog.Any("err", err))
		return nil
	}

	return err
}

func (r *Relayer) checkTopics(ctx context.Context) error {
	err := pubsub.CheckTopics(ctx, r.cfg.Project, r.topics(), pubsub.At(r.cfg.PubSubEndpoint)...)
	if status.Code(err) == codes.Unauthenticated {
		return fmt.Errorf("%w: the credentials are not accepted: check GOOGLE_APPLICATION_CREDENTIALS or the service account", err)
	}

	return err
}

func (r *Relayer) topics() pubsub.Topics {
	return pubsub.Topics{Default: r.cfg.Topic, Other: r.cfg.OtherTopic, Retractions: r.cfg.RetractionsTopic,
		Replies: r.cfg.RepliesTopic}
}
