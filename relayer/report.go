package relayer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

const (
	// reportEvery is the pause between two reports of an instance to the fleet.
	reportEvery = 2 * time.Second
	// progressEvery is how often an instance that is far behind logs its progress.
	progressEvery = 10 * time.Second
	// reportWithin bounds one: a commit takes milliseconds.
	reportWithin = 3 * time.Second
)

// reports commits what this instance says of itself, again and again until ctx ends, from the start of
// the process and whatever else fails. Its outcome is the verdict on the database.
func (r *Relayer) reports(ctx context.Context) error {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		self := r.Instance()
		err := r.report(ctx, &self)
		if ctx.Err() != nil {
			return nil
		}

		r.condition.committed.set(err)
		r.noteVerdict(ctx, self.StandingSince.IsZero() || time.Since(self.StandingSince) < time.Second)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// reportProgress logs the progress of a catch-up, until ctx ends.
func (r *Relayer) reportProgress(ctx context.Context) error {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	var c logging.CatchUp
	for {
		i := r.Instance()
		// a leader without slots has the cursor of the factory
		c.Report(ctx, r.log, cmp.Or(i.Cursor, i.FactoryCursor), i.Target, r.metrics.watch.Events())
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// report commits one.
func (r *Relayer) report(ctx context.Context, self *fleet.Self) error {
	err := database.Within(ctx, reportWithin, func(ctx context.Context) error {
		return fleet.Naming(ctx, r.db.Session, func(ctx context.Context) error {
			return fleet.Report(ctx, r.db.Pool, r.cfg.ChainID, self, time.Now(), r.secrets.Mask)
		})
	})
	if errors.Is(err, database.ErrNoSchema) {
		return nil // it awaits its first migration
	}

	return err
}

// noteVerdict finds who has locked what, if the database takes nothing, and tells what has changed.
func (r *Relayer) noteVerdict(ctx context.Context, goesOn bool) {
	c, g := &r.condition, r.gauges
	c.waits.set(nil)
	if refused := c.verdict(); refused != nil || !goesOn {
		if err := fleet.Waits(ctx, r.db.Session); errors.As(err, new(*fleet.LockedError)) {
			c.waits.set(err)
		}
	}

	err := c.verdict()
	if changed := g.Answers(err == nil); changed && err != nil {
		r.log.WarnContext(ctx, "the database does not answer, or takes nothing, trying again", slog.Any("err", err))
	} else if changed {
		r.log.InfoContext(ctx, "the database answers and takes what is written")
	}

	if stuck := r.Instance().Stuck; stuck == nil {
		c.told.Store(false)
	} else if !c.told.Swap(true) {
		r.log.ErrorContext(ctx, "no block is stored, though there are blocks to store", slog.Any("err", stuck))
	}
}
