package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/deploy"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func planCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "plan",
		Short: "Plan a resize, wait until the fleet is whole, write alerting rules"})
	cmd.AddCommand(planMoveCommand(), planWaitCommand(), planAlertsCommand())

	return cmd
}

func planMoveCommand() *cobra.Command {
	var from, to int
	var strategy string
	cmd := &cobra.Command{
		Use:   "move --from N --to M",
		Short: "Print how many slots and escrows change their partition",
		Long:  "Print how many slots change their partition, and with CHAIN_ID and DATABASE_URL set, how many escrows.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("from") || !cmd.Flags().Changed("to") {
				return errors.New("say --from and --to: how many partitions there are now, and afterwards")
			}

			s := partition.Strategy(strategy)
			for _, total := range []int{from, to} {
				if err := (partition.Partition{Total: total, Strategy: s}).Validate(); err != nil {
					return err
				}
			}

			out := cmd.OutOrStdout()
			moved := partition.Moves(from, to, s)
			fmt.Fprintf(out, "%d to %d partitions, %s: %d of %d slots move (%.1f %%)\n",
				from, to, s, moved, partition.Slots, 100*float64(moved)/partition.Slots)
			if e := environ(cmd); e["DATABASE_URL"] == "" && e["CONFIG_FILE"] == "" {
				return nil
			}

			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				going, all, err := escrowsMoving(ctx, db, cfg.ChainID, func(slot int16) bool {
					return partition.Of(slot, from, s) != partition.Of(slot, to, s)
				})
				if err == nil {
					fmt.Fprintf(out, "%d of %d active escrows move\n", going, all)
				}

				return err
			})
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "partitions now")
	cmd.Flags().IntVar(&to, "to", 0, "partitions afterwards")
	cmd.Flags().StringVar(&strategy, "strategy", string(partition.Modulo), "modulo or consistent")

	return cmd
}

// countActive counts the active escrows of each slot.
const countActive = `
	select slot, count(*) from escrow_registry where chain_id = $1 and status = 'active' group by slot`

// escrowsMoving counts the active escrows, and those among them that move with their slot.
func escrowsMoving(ctx context.Context, db *database.Database, chainID int64, moves func(int16) bool) (going,
	all int, err error) {
	rows, _ := db.Pool.Query(ctx, countActive, chainID)
	var slot int16
	var n int
	_, err = pgx.ForEachRow(rows, []any{&slot, &n}, func() error {
		all += n
		if moves(slot) {
			going += n
		}

		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count the escrows by slot: %w", err)
	}

	return going, all, nil
}

func planAlertsCommand() *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "alerts --chain-id N[:FLEET] [--chain-id M[:FLEET] …]",
		Short: "Write the alerting rules of each chain for Prometheus",
		Long:  `Write the alerting rules of each chain to standard output. Name every chain whose fleet must be there: its absence is an alert. Where several fleets follow a chain, name each with its FLEET.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleets := make([]deploy.Fleet, len(names))
			for i, name := range names {
				var err error
				if fleets[i], err = deploy.ParseFleet(name); err != nil {
					return err
				}
			}

			text, err := deploy.Alerts(fleets...)
			if err != nil {
				return err
			}

			_, err = cmd.OutOrStdout().Write(text)

			return err
		},
	}
	cmd.Flags().StringSliceVar(&names, "chain-id", nil,
		"CHAIN_ID, or CHAIN_ID:FLEET; once for each fleet that must be there")

	return cmd
}
