package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

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
			err := pubsub.CheckTopics(ctx, cfg.Project, r.topics())
			if errors.Is(err, pubsub.ErrNoTopic) {
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

func (r *Relayer) topics() pubsub.Topics {
	return pubsub.Topics{Default: r.cfg.Topic, Other: r.cfg.OtherTopic, Retractions: r.cfg.RetractionsTopic}
}
