package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

const (
	// A step of the start that has no answer after so long says what it waits for.
	silentAtMost = time.Second
	// An attempt of a step that has no answer after so long is given up, and the next one begins.
	attemptTimeout = 10 * time.Second
	// The same trouble is logged again after so long.
	repeatAfter = 30 * time.Second
)

// startStep is something that must be as the configuration says before anything else runs.
type startStep struct {
	what string // database, chain or topics
	// from names what it waits for and where that is set.
	from string
	do   func(context.Context) error
}

// start makes sure that chain, database and Pub/Sub are what the configuration says, before anything else runs. What is out of
// reach is waited for, for DB_OUTAGE_LIMIT; what is wrong is ErrRefused.
func (r *Relayer) start(ctx context.Context) error {
	r.announce(ctx)

	pubsub := "Google Pub/Sub (PUBSUB_PROJECT_ID=" + r.cfg.Project + "): look at the network and at the credentials"
	if publish.Emulated() {
		pubsub = "the Pub/Sub emulator (PUBSUB_EMULATOR_HOST=" + r.cfg.PubSubEmulator + "): start it, or correct the variable"
	}
	for _, step := range []startStep{
		{"database", "the database of DATABASE_URL", r.prepareDatabase},
		{"chain", "the RPC endpoints of RPC_URLS", r.checkChain},
		{"topics", pubsub, r.checkTopics},
	} {
		if err := r.retry(ctx, step); err != nil {
			return fmt.Errorf("start: %s: %w", step.what, err)
		}
	}
	return nil
}

// announce writes the one line that says what this instance is about to do.
func (r *Relayer) announce(ctx context.Context) {
	cfg := r.cfg
	finality := cfg.Finality
	if finality == source.Confirmations {
		finality = fmt.Sprintf("%d confirmations", cfg.Confirmations)
	}
	partition := fmt.Sprintf("%s of %d, %s", cfg.Number, cfg.Total, cfg.Strategy)

	r.log.InfoContext(ctx, "configured",
		slog.Int64("chain", cfg.ChainID), slog.String("factory", cfg.Factory.Hex()), slog.Int64("start_block", cfg.StartBlock),
		slog.String("finality", finality), slog.String("partition", partition), slog.Any("endpoints", cfg.Endpoints()),
		slog.String("project", cfg.Project), slog.String("topic", cfg.Topic), slog.String("other_topic", cfg.OtherTopic),
		slog.String("retractions_topic", cfg.RetractionsTopic))
	for _, w := range cfg.Warnings {
		r.log.WarnContext(ctx, "a setting that may not do what it should",
			slog.String("variable", w.Variable), slog.String("value", w.Value), slog.String("remedy", w.Remedy))
	}
}

// retry does a step until it succeeds, is refused, or has failed for DB_OUTAGE_LIMIT. What is wrong is logged when it changes, and once
// per repeatAfter.
func (r *Relayer) retry(ctx context.Context, step startStep) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = 200*time.Millisecond, 5*time.Second, r.cfg.DBOutageLimit

	var said string
	var saidAt time.Time
	say := func(err error) {
		if err.Error() == said && time.Since(saidAt) < repeatAfter {
			return
		}
		said, saidAt = err.Error(), time.Now()
		r.log.WarnContext(ctx, "not ready yet, trying again", slog.String("step", step.what), slog.Any("err", err))
	}
	return backoff.RetryNotify(func() error {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		waiting := time.AfterFunc(silentAtMost, func() {
			r.log.InfoContext(ctx, "waiting for an answer", slog.String("step", step.what), slog.String("from", r.secrets.Mask(step.from)))
		})
		defer waiting.Stop()

		err := step.do(attempt)
		if err != nil && attempt.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %s from %s: %w", attemptTimeout, step.from, err)
		}
		return r.secrets.Error(err)
	}, backoff.WithContext(delays, ctx), func(err error, _ time.Duration) { say(err) })
}

// refuse marks what no retry can mend.
func refuse(err error) error { return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err)) }

func (r *Relayer) prepareDatabase(ctx context.Context) error {
	err := r.prepareSchema(ctx)
	if err == nil {
		err = election.Prepare(ctx, r.db.Pool, r.cfg.ChainID, r.cfg.StartBlock, registry.Text(r.cfg.Factory))
	}

	err = database.Explain(err)
	switch {
	case errors.Is(err, ErrRefused):
		return err
	case database.Lasting(err), errors.Is(err, election.ErrOtherFactory):
		return refuse(err)
	}
	return err
}

// prepareSchema makes sure that the database can be worked with and has the schema of this binary.
func (r *Relayer) prepareSchema(ctx context.Context) error {
	// Before anything else: what comes next fails in obscure ways behind such a proxy.
	if err := election.CheckPooling(ctx, r.db.Session); errors.Is(err, election.ErrPooled) {
		return refuse(err)
	}

	if r.cfg.MigrateOnStart {
		applied, err := migrations.Up(ctx, r.db.Session)
		if err != nil {
			return err
		}
		if len(applied) > 0 {
			r.log.InfoContext(ctx, "schema migrated", slog.Any("versions", applied))
		}
	}
	err := migrations.Check(ctx, r.db.Session)
	if errors.Is(err, migrations.ErrStale) || errors.Is(err, migrations.ErrFuture) {
		return refuse(err)
	}
	return err
}

func (r *Relayer) checkChain(ctx context.Context) error {
	err := r.source.Check(ctx, r.cfg.Factory)
	if errors.Is(err, source.ErrWrongChain) || errors.Is(err, source.ErrNoCode) {
		return refuse(err)
	}
	return err
}

func (r *Relayer) checkTopics(ctx context.Context) error {
	err := publish.CheckTopics(ctx, r.cfg.Project, r.topics())
	switch {
	case errors.Is(err, publish.ErrNoTopic):
		return refuse(err)
	case status.Code(err) == codes.Unauthenticated:
		return fmt.Errorf("%w: the credentials are not accepted: check GOOGLE_APPLICATION_CREDENTIALS or the service account", err)
	}
	return err
}
