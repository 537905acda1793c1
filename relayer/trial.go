package relayer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Trial is a start that keeps nothing: `doctor` does its steps, and says what each of them finds.
type Trial struct {
	DB     *database.Database
	Source *chain.Source
	r      *Relayer
}

// NewTrial makes a relayer as a start does. What it warns of comes to log.
func NewTrial(ctx context.Context, cfg *config.Config, log *slog.Logger, build fleet.Build) (*Trial, error) {
	r, err := New(cfg, log, prometheus.NewRegistry(), build)
	if err != nil {
		return nil, err
	}

	if r.db, err = database.Open(ctx, cfg); err != nil {
		return nil, refuse(err)
	}

	r.trial = true
	r.announce(ctx)

	return &Trial{DB: r.db, Source: r.source, r: r}, nil
}

// Close frees the connections and the keys.
func (t *Trial) Close() {
	t.r.commands.close()
	t.r.source.Close()
	t.r.db.Close()
}

// Do does the steps of these names, of a start and of joining the fleet, and tells of each what holds, or what does
// not. It returns whether tell does, every time.
func (t *Trial) Do(ctx context.Context, tell func(what, holds string, err error) bool, names ...string) bool {
	well := true
	for _, s := range append(t.r.steps(), startStep{"settings", "the database of DATABASE_URL", attemptTimeout, t.agree,
		"the live instances have the same"}) {
		if s.what == "database" || s.what == "topics" { // they answer at once, and a person waits
			s.timeout = 3 * time.Second
		}

		if slices.Contains(names, s.what) {
			err := fleet.Naming(ctx, t.DB.Session, func(ctx context.Context) error { return t.r.attempt(ctx, s) })
			well = tell(s.what, s.holds, err) && well
		}
	}

	return well
}

// agree compares the settings with those of the live instances, as an instance does that joins them.
func (t *Trial) agree(ctx context.Context) error {
	cfg := &partition.Config{ChainID: t.r.cfg.ChainID, InstanceID: t.r.cfg.InstanceID, Settings: settings(t.r.cfg),
		StaleAfter: partition.StaleAfter, Log: t.r.log}
	err := database.Explain(pgx.BeginFunc(ctx, t.DB.Pool, func(tx pgx.Tx) error { return partition.Agree(ctx, cfg, tx) }))
	if errors.Is(err, database.ErrNoSchema) {
		return nil
	}

	return err
}
