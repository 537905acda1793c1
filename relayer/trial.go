package relayer

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

// NewTrial makes a relayer as a start does, whose checks keep nothing: `doctor` does them, and says what each of them
// finds. What it warns of comes to log. end frees the connections and the keys.
func NewTrial(ctx context.Context, cfg *config.Config, log *slog.Logger, build fleet.Build) (c *start.Checks,
	end func(), err error) {
	r, err := New(cfg, log, prometheus.NewRegistry(), build)
	if err != nil {
		return nil, nil, err
	}

	if r.db, err = database.Open(ctx, cfg); err != nil {
		return nil, nil, start.Refuse(err)
	}

	c = r.checks()
	c.Trial = true
	c.Announce(ctx)

	return c, func() { r.commands.close(); r.source.Close(); r.db.Close() }, nil
}
