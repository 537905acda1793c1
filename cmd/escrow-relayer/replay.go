package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// replayFlags select what is published once more.
type replayFlags struct {
	ledger.Selection
	escrow string
	single bool
	ranged bool // --from is given, 0 too
	until  bool // --to is given
	dryRun bool
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay (--from BLOCK [--to BLOCK] | --escrow ADDRESS | --event ID)",
		Short: "Publish stored events once more, marked by the attribute replay=true",
		Long: `Publish stored events once more. Every consumer of the topic receives them, with their event_id and replay=true.

A range of blocks is widened to the whole history of every escrow that has an event in it, since a consumer can rebuild
an escrow only from its first event on; --single-events leaves it as it is. The fleet publishes what is requested within
seconds, or when an instance runs again. Configuration as for run; EVENT_NAMES must be the fleet's.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.ranged, f.until = cmd.Flags().Changed("from"), cmd.Flags().Changed("to")
			s, err := f.selection()
			if err != nil {
				return err
			}

			return askWith(cmd, config.Load, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				if err := publishesAsFleet(ctx, cfg, db); err != nil {
					return err
				}

				return replay(ctx, cmd, relayer.NewLedger(cfg, db), s, f.dryRun)
			})
		},
	}
	cmd.Flags().Int64Var(&f.From, "from", 0, "first block")
	cmd.Flags().Int64Var(&f.To, "to", 0, "last block")
	cmd.Flags().StringVar(&f.escrow, "escrow", "", "all events of an escrow")
	cmd.Flags().StringVar(&f.EventID, "event", "", "one event, {tx_hash}:{log_index}")
	cmd.Flags().BoolVar(&f.single, "single-events", false, "only the events in the range, not the whole escrows")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only count")

	return cmd
}

// blocks checks --from and --to.
func blocks(from, to int64) error {
	for flag, block := range map[string]int64{"--from": from, "--to": to} {
		if block < 0 {
			return fmt.Errorf("%s %d: a block is 0 or above", flag, block)
		}
	}

	return nil
}

// selection checks the flags and returns the events that they name.
func (f replayFlags) selection() (s ledger.Selection, err error) {
	s = f.Selection
	if !f.ranged && !f.until && f.escrow == "" && s.EventID == "" {
		return s, fmt.Errorf("say what to replay: --from and --to, --escrow, or --event")
	}

	if err := blocks(s.From, s.To); err != nil {
		return s, err
	}

	switch {
	case f.until && s.To < s.From:
		return s, fmt.Errorf("--to %d is below --from %d", s.To, s.From)
	case f.until && s.To == 0: // a Selection without an end
		return s, errors.New("--to 0: block 0 has no event; leave --to out for all blocks")
	}

	if f.escrow != "" {
		if !common.IsHexAddress(f.escrow) {
			return s, fmt.Errorf("--escrow %q is not an address", f.escrow)
		}

		s.Escrow = common.HexToAddress(f.escrow)
	}

	s.EventID = strings.ToLower(s.EventID)
	s.WholeEscrows = !f.single && s.EventID == ""

	return s, nil
}

// publishesAsFleet refuses an EVENT_NAMES other than that of a live instance: with it events would be asked for that
// the fleet does not publish, or left out.
func publishesAsFleet(ctx context.Context, cfg *config.Config, db *database.Database) error {
	const name = "EVENT_NAMES"
	f, err := readFleet(ctx, cfg, db)
	if err != nil {
		return err
	}

	own := cfg.Agreed().Stream[name]
	for i := range f.Instances {
		if in := &f.Instances[i]; in.Alive && in.Settings.Stream[name] != own {
			return fmt.Errorf("%s is %q, and on %s it is %q: replay with the fleet's", name, own, in.ID,
				in.Settings.Stream[name])
		}
	}

	return nil
}

// replay counts the events and, without dryRun, requests them.
func replay(ctx context.Context, cmd *cobra.Command, led *ledger.Ledger, s ledger.Selection, dryRun bool) error {
	n, err := led.Count(ctx, s)
	if err != nil {
		return err
	}

	if dryRun || n.Events == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%d events of %d escrows match\n", n.Events, n.Escrows)
		if n.Events == 0 {
			return errQuiet
		}

		return nil
	}

	total, err := led.Replay(ctx, s, func(events int) {
		progress(cmd.ErrOrStderr(), int64(events), int64(n.Events), "events")
	})
	if err != nil {
		return err
	}

	fmt.Fprintf(cmd.OutOrStdout(), "requested %d events of %d escrows\n", total, n.Escrows)

	return nil
}
