package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func planWaitCommand() *cobra.Command {
	var timeout time.Duration
	var since string
	var w whole
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until every slot is served, somebody leads, the lag is back to normal, and messages go out",
		Long: `Wait until the fleet is whole: every slot is served, somebody leads, the lag is back to normal, and no message has waited for Pub/Sub for
half a minute. What is missing is printed.
Reads CHAIN_ID and DATABASE_URL.

--total N without --instance asks for a fleet of N partitions: each of them has a live instance, and no live instance has another total.
--since says that the instance must have started at or after that time: the predecessor with the same name does not count.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := w.complete(since); err != nil {
				return err
			}

			known := w.gone == "" // by one of the chains
			err := askEach(cmd, config.LoadDatabase, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				leader, err := w.wait(ctx, cmd.ErrOrStderr(), timeout, cfg, db)
				if err != nil {
					return fmt.Errorf("not whole within %s: %w", timeout, err)
				}

				if !known {
					known, err = wasThere(ctx, db, cfg.ChainID, w.gone)
				}

				fmt.Fprintln(cmd.OutOrStdout(), "whole: every slot is served, and", leader, "leads")
				return err
			})
			if err == nil && !known {
				return fmt.Errorf("--gone %s: no instance of that name is known; name it as `escrow-relayer status` does", w.gone)
			}

			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up at the first look after so long; 0: look once")
	cmd.Flags().Int64Var(&w.lag, "lag", 100,
		"how many blocks the lowest cursor may be behind the head, CONFIRMATIONS included")
	cmd.Flags().StringVar(&w.instance, "instance", "", "this instance must be alive")
	cmd.Flags().IntVar(&w.total, "total", 0,
		"number of partitions that --instance must have, or without it the fleet; 0: any")
	cmd.Flags().StringVar(&w.gone, "gone", "", "this instance must be gone")
	cmd.Flags().StringVar(&since, "since", "",
		"--instance must have started at or after this time, as in 2006-01-02T15:04:05Z")

	return cmd
}

// wasThere reports whether a chain knows an instance, however long ago it was there.
func wasThere(ctx context.Context, db *database.Database, chainID int64, id string) (was bool, err error) {
	err = db.Pool.QueryRow(ctx, `select exists (select from relayer_instances where chain_id = $1 and instance_id = $2)`,
		chainID, id).Scan(&was)
	if err != nil {
		return false, fmt.Errorf("look for the instance %s: %w", id, err)
	}

	return was, nil
}

// whole is what --instance, --total and the other flags require of a fleet.
type whole struct {
	lag            int64
	instance, gone string
	total          int
	since          time.Time // zero: any
}

// complete checks the flags.
func (w *whole) complete(since string) (err error) {
	if w.total < 0 {
		return fmt.Errorf("--total %d: must be 0 or more", w.total)
	}

	if since == "" {
		return nil
	}

	if w.instance == "" {
		return errors.New("--since needs --instance")
	}

	if w.since, err = time.Parse(time.RFC3339, since); err != nil {
		return fmt.Errorf("--since %q: must be a time such as 2006-01-02T15:04:05Z", since)
	}

	return nil
}

// wait reads the fleet until it is whole, and returns the leader. A reading has a deadline of its own:
// timeout ends only the repetition. The error is what the last reading found: the answer no, or why
// there is none.
func (w *whole) wait(ctx context.Context, say io.Writer, timeout time.Duration, cfg *config.Config,
	db *database.Database) (leader string, err error) {
	said := ""
	for end := time.Now().Add(timeout); ; {
		f, err := readFleet(ctx, cfg, db)
		if err == nil {
			why := w.missing(&f)
			if why == "" {
				return f.Leader.Instance, nil
			}

			err = no{errors.New(why)}
		}

		if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			fmt.Fprintln(say, "waiting:", said)
		}

		left := time.Until(end)
		if left <= 0 || !sleep(ctx, min(lookEvery, left)) {
			return "", err
		}
	}
}

// missing describes what the fleet lacks, or is empty.
func (w *whole) missing(f *fleet.Fleet) string {
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }

	for _, p := range f.Problems {
		switch p.Kind {
		case fleet.UnknownChain, fleet.ReadOnly, fleet.NobodyAlive, fleet.DatabaseRefuses, fleet.NoNode, fleet.NoLeader,
			fleet.HungLeader, fleet.UnservedSlots:
			say("%s", p.Text)
		case fleet.OldOutbox:
			if p.Severity != fleet.Notice {
				say("%s", p.Text)
			}
		}
	}

	if len(why) == 0 && !f.Leader.Valid {
		say("a new leader is taking over")
	}

	if behind := f.Chain.Head - f.Chain.LowestCursor + 1; f.Chain.Head > 0 && behind > w.lag {
		say("the lowest cursor is %d blocks behind the head", behind)
	}

	if w.instance != "" {
		i := f.Find(w.instance)
		switch {
		case i == nil || !i.Alive:
			say("%s is not alive", w.instance)
		case i.Started.Before(w.since):
			say("%s has not been started since %s: the one that lives started at %s",
				w.instance, w.since.UTC().Format(time.RFC3339), i.Started.UTC().Format(time.RFC3339))
		case w.total > 0 && i.Total != w.total:
			say("%s still has %d partitions", w.instance, i.Total)
		}
	} else if w.total > 0 {
		why = append(why, w.partitionsMissing(f)...)
	}

	if i := f.Find(w.gone); w.gone != "" && i != nil && i.Alive {
		say("%s is still alive", w.gone)
	}

	return strings.Join(why, "; ")
}

// partitionsMissing describes what a fleet of so many partitions lacks.
func (w *whole) partitionsMissing(f *fleet.Fleet) (why []string) {
	lives := make([]bool, w.total)
	for i := range f.Instances {
		switch in := &f.Instances[i]; {
		case !in.Alive:
		case in.Total != w.total:
			why = append(why, fmt.Sprintf("%s has %d partitions", in.ID, in.Total))
		case in.Number < w.total:
			lives[in.Number] = true
		}
	}

	for number, alive := range lives {
		if !alive {
			why = append(why, fmt.Sprintf("partition %d of %d has no live instance", number, w.total))
		}
	}

	return why
}

// lookEvery is the pause between two looks.
const lookEvery = time.Second

// sleep waits for d; false if ctx ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
