package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the fleet as the database has it; exit code 1 when something needs a person",
		Long: `Show the fleet as the database has it. Reads CHAIN_ID and DATABASE_URL. The exit code makes it a check.

Of a configuration with several chains it shows all, or that of --chain. To look on: watch escrow-relayer status`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askEach(cmd, config.LoadDatabase, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				f, err := readFleet(ctx, cfg, db)
				if err != nil {
					return err
				}

				if err := show(cmd.OutOrStdout(), &f, asJSON); err != nil {
					return err
				}

				if fleet.NeedPerson(f.Problems) {
					return errQuiet
				}

				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")

	return cmd
}

func show(w io.Writer, f *fleet.Fleet, asJSON bool) error {
	if asJSON {
		return printJSON(w, f)
	}

	w = printable{w}
	leader := "nobody leads"
	if f.Leader.Held {
		leader = fmt.Sprintf("%s leads since %s (epoch %d, heard %s ago)", f.Leader.Instance,
			f.Leader.Since.UTC().Format(time.DateTime), f.Leader.Epoch, f.Leader.HeartbeatAge)
	}

	fmt.Fprintf(w, "chain %d   %s\n", f.ChainID, leader)
	fmt.Fprintf(w, "slots     %d of %d served, %d adopted, %d unserved\n", f.Slots.Served, f.Slots.Total, f.Slots.Adopted,
		f.Slots.Unserved)
	fmt.Fprintf(w, "blocks    head %d, factory cursor %d, lowest cursor %d, verified %d\n", f.Chain.Head,
		f.Chain.FactoryCursor, f.Chain.LowestCursor, f.Chain.Verified)
	fmt.Fprintf(w, "ages      head %s, newest block that may be processed %s\n", known(f.Chain.HeadAge),
		known(f.Chain.TargetAge))
	fmt.Fprintf(w, "escrows   %d active, %d released, %d refunded, %d waiting to be admitted\n", f.Escrows.Active,
		f.Escrows.Released, f.Escrows.Refunded, f.Late.Escrows)
	fmt.Fprintf(w, "outbox    %d messages, the oldest %s old\n\n", f.Outbox.Messages, f.Outbox.OldestAge)
	t := newTable(w, "instance", "state", "partition", "slots", "adopted", "escrows", "cursor", "trust", "heartbeat",
		"version")
	for _, i := range f.Instances {
		state := string(i.State)
		if i.Leader {
			state += ", leads"
		}

		t.AppendRow(table.Row{i.ID, state, strconv.Itoa(i.Number) + "/" + strconv.Itoa(i.Total), i.Slots, i.Adopted,
			i.Escrows, i.Cursor, cmp.Or(i.Trust, "-"), i.HeartbeatAge.String() + " ago", i.Version})
	}

	t.Render()
	showSenders(w, f)
	for _, p := range f.Problems {
		fmt.Fprintf(w, "\n%s: %s\n  first step: %s\n", p.Severity, p.Text, p.Remedy)
	}

	return nil
}

// known is an age; 0 is one that no live instance tells.
func known(a fleet.Age) string {
	if a == 0 {
		return "unknown"
	}

	return a.String()
}

// showSenders shows the senders of commands, if there are any.
func showSenders(w io.Writer, f *fleet.Fleet) {
	if len(f.Senders) == 0 {
		return
	}

	fmt.Fprintln(w)
	t := newTable(w, "sender", "state", "held by", "nonce", "in flight", "waiting", "balance (wei)", "fees today (wei)",
		"of")
	for i := range f.Senders {
		s := &f.Senders[i]
		held := s.Instance
		if !s.Served {
			held = "nobody"
		}

		t.AppendRow(table.Row{s.Label(), s.State, held, shown(s.NextNonce), fmt.Sprintf("%d/%d", s.InFlight, s.MaxInFlight),
			s.Waiting, s.Balance, s.SpentFees, s.DayFees})
	}

	t.Render()
	for i := range f.Senders {
		s := &f.Senders[i]
		line := fmt.Sprintf("%s (%s) is %s: %s", s.Label(), s.Address, s.State, s.Reason)
		fmt.Fprintln(w, strings.TrimSuffix(line, ": "))
	}

	if f.Replies != nil {
		fmt.Fprintf(w, "answers   %d wait for Pub/Sub, the oldest %s old\n", f.Replies.Messages, f.Replies.OldestAge)
	}
}
