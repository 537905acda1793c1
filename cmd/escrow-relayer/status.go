package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func statusCommand() *cobra.Command {
	var watch, asJSON bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the fleet as the database has it; exit code 1 when something needs a person",
		Long:  "Show the fleet as the database has it. Reads CHAIN_ID and DATABASE_URL. Exit code 1 when something needs a person, so it serves as a check.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadDatabase(config.Environ())
			if err != nil {
				return err
			}
			db, err := database.Open(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			for {
				f, err := fleet.Read(cmd.Context(), db.Pool, cfg.ChainID)
				if err != nil {
					if watch && cmd.Context().Err() != nil {
						return nil
					}
					return cfg.Secrets().Error(err)
				}
				if watch && !asJSON {
					fmt.Fprint(cmd.OutOrStdout(), "\x1b[H\x1b[2J")
				}
				if err := show(cmd.OutOrStdout(), &f, asJSON); err != nil {
					return err
				}
				if !watch {
					if len(f.Problems) > 0 {
						return errQuiet
					}
					return nil
				}
				if !sleep(cmd.Context(), every) {
					return nil
				}
			}
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "again and again, until interrupted")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "pause with --watch")
	return cmd
}

// sleep waits; false when ctx ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func show(w io.Writer, f *fleet.Fleet, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(f)
	}
	leader := "nobody leads"
	if f.Leader.Held {
		leader = fmt.Sprintf("%s leads since %s (epoch %d, heard %s ago)", f.Leader.Instance, f.Leader.Since.UTC().Format(time.DateTime), f.Leader.Epoch, f.Leader.HeartbeatAge)
	}
	fmt.Fprintf(w, "chain %d   %s\n", f.ChainID, leader)
	fmt.Fprintf(w, "slots     %d of %d served, %d adopted, %d unserved\n", f.Slots.Served, f.Slots.Total, f.Slots.Adopted, f.Slots.Unserved)
	fmt.Fprintf(w, "blocks    head %d, factory cursor %d, lowest cursor %d, verified %d\n", f.Chain.Head, f.Chain.FactoryCursor, f.Chain.LowestCursor, f.Chain.Verified)
	fmt.Fprintf(w, "escrows   %d active, %d released, %d refunded, %d waiting to be admitted\n", f.Escrows.Active, f.Escrows.Released, f.Escrows.Refunded, f.Late.Escrows)
	fmt.Fprintf(w, "outbox    %d messages, the oldest %s old\n\n", f.Outbox.Messages, f.Outbox.OldestAge)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"instance", "state", "partition", "slots", "adopted", "escrows", "cursor", "heartbeat", "version"})
	for _, i := range f.Instances {
		state := string(i.State)
		if i.Leader {
			state += ", leads"
		}
		t.AppendRow(table.Row{i.ID, state, strconv.Itoa(i.Number) + "/" + strconv.Itoa(i.Total), i.Slots, i.Adopted, i.Escrows, i.Cursor, i.HeartbeatAge.String() + " ago", i.Version})
	}
	t.Render()
	for _, p := range f.Problems {
		fmt.Fprintf(w, "\n%s: %s\n  first step: %s\n", p.Severity, p.Text, p.Remedy)
	}
	return nil
}
