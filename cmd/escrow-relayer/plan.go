package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/deploy"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func planCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "plan",
		Short: "Plan a resize, wait until the fleet is whole, write Cloud Run manifests"})
	cmd.AddCommand(planMoveCommand(), planWaitCommand(), planManifestsCommand(), planAlertsCommand())

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
				return usage{errors.New("say --from and --to: how many partitions there are now, and afterwards")}
			}

			s := partition.Strategy(strategy)
			for _, total := range []int{from, to} {
				if err := (partition.Partition{Total: total, Strategy: s}).Validate(); err != nil {
					return usage{err}
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

func planManifestsCommand() *cobra.Command {
	in, keys := deploy.ManifestInput{}, deploy.CommandsInput{}
	var out string
	var variables map[string]string
	cmd := &cobra.Command{
		Use:   "manifests --partitions N --image IMAGE … --out DIR",
		Short: "Write the Cloud Run service manifest of each partition",
		Long:  `Write the Cloud Run service manifest of each partition, and monitoring.yaml, the text of the collector's secret. Secrets are referred to, never contained.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range slices.Sorted(maps.Keys(variables)) {
				if err := config.Misspelt(name); err != nil {
					return usage{fmt.Errorf("--env %w", err)}
				}
			}

			in.Env = variables
			if keys.Services > 0 {
				in.Commands = &keys
			}

			manifests, err := deploy.Manifests(in)
			if err != nil {
				return usage{err}
			}

			files := map[string][]byte{"monitoring.yaml": deploy.Monitoring()}
			for _, m := range manifests {
				files[m.Name+".yaml"] = m.YAML
			}

			if err := writeFiles(out, files); err != nil {
				return fmt.Errorf("write the manifests to %s: %w", out, err)
			}

			fmt.Fprintf(cmd.OutOrStdout(), "wrote %d manifests and monitoring.yaml to %s\n", len(manifests), out)

			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "manifests", "folder to write to")
	f.StringVar(&in.Prefix, "prefix", "", "of the names of services and instances (default escrow-relayer)")
	f.StringVar(&in.Project, "project", "", "of the topics")
	f.StringVar(&in.Region, "region", "", "of the services")
	f.StringVar(&in.Image, "image", "", "container image")
	f.StringVar(&in.ServiceAccount, "service-account", "", "e-mail of the services' account")
	f.IntVar(&in.Partitions, "partitions", 0, "how many services")
	f.StringVar(&in.Strategy, "strategy", "", "modulo or consistent (default modulo)")
	f.Int64Var(&in.ChainID, "chain-id", 0, "CHAIN_ID")
	f.StringVar(&in.Factory, "factory", "", "FACTORY_ADDRESS")
	f.Int64Var(&in.StartBlock, "start-block", 0, "START_BLOCK")
	f.StringVar(&in.Topic, "topic", "", "PUBSUB_TOPIC_ID")
	f.StringVar(&in.RetractionsTopic, "retractions-topic", "", "RETRACTIONS_TOPIC_ID")
	f.StringVar(&in.CloudSQLInstance, "cloudsql-instance", "", "CLOUDSQL_INSTANCE")
	f.StringToStringVar(&variables, "env", nil, "further variables, NAME=VALUE; none that carries a secret")
	f.IntVar(&keys.Services, "key-services", 0, "the first so many services act on commands: they have the senders' keys")
	f.StringVar(&keys.ServiceAccount, "keys-service-account", "", "e-mail of their account; the others cannot sign")
	f.StringVar(&keys.Subscription, "commands-subscription", "", "COMMANDS_SUBSCRIPTION_ID")
	f.StringVar(&keys.RepliesTopic, "replies-topic", "", "REPLIES_TOPIC_ID")
	f.StringVar(&keys.KeeperSender, "keeper-sender", "", "KEEPER_SENDER (default: none)")
	f.StringToStringVar(&in.Secrets, "secret", nil, "variables from Secret Manager, NAME=SECRET[:VERSION]")

	return cmd
}

func planAlertsCommand() *cobra.Command {
	var names []string
	var operator bool
	cmd := &cobra.Command{
		Use:   "alerts --chain-id N[:FLEET] [--chain-id M[:FLEET] …]",
		Short: "Write the alerting rules of each chain for Prometheus",
		Long:  `Write the alerting rules of each chain to standard output. Name every chain whose fleet must be there: its absence is an alert. Where several fleets follow a chain, name each with its FLEET.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleets := make([]deploy.Fleet, len(names))
			for i, name := range names {
				var err error
				if fleets[i], err = deploy.ParseFleet(name); err != nil {
					return usage{err}
				}
			}

			write := deploy.Alerts
			if operator {
				write = deploy.PrometheusRule
			}

			text, err := write(fleets...)
			if err != nil {
				return usage{err}
			}

			_, err = cmd.OutOrStdout().Write(text)

			return err
		},
	}
	cmd.Flags().StringSliceVar(&names, "chain-id", nil,
		"CHAIN_ID, or CHAIN_ID:FLEET; once for each fleet that must be there")
	cmd.Flags().BoolVar(&operator, "operator", false, "as an object of the Prometheus operator")

	return cmd
}

// writeFiles creates a folder and writes files into it.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}

	return nil
}
