package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/deploy"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func planCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plan", Short: "Plan a resize, wait until the fleet is whole, write Cloud Run manifests"}
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
			s := partition.Strategy(strategy)
			for _, total := range []int{from, to} {
				if err := (partition.Partition{Total: total, Strategy: s}).Validate(); err != nil {
					return usage{err}
				}
			}
			out := cmd.OutOrStdout()
			moved := partition.Moves(from, to, s)
			fmt.Fprintf(out, "%d to %d partitions, %s: %d of %d slots move (%.1f %%)\n", from, to, s, moved, partition.Slots, 100*float64(moved)/partition.Slots)
			if config.Environ()["DATABASE_URL"] == "" {
				return nil
			}
			cfg, err := config.LoadDatabase(config.Environ())
			if err != nil {
				return err
			}
			db, err := database.Open(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			rows, _ := db.Pool.Query(cmd.Context(), `select slot, count(*) from escrow_registry where chain_id = $1 and status = 'active' group by slot`, cfg.ChainID)
			var slot int16
			var n, all, going int
			_, err = pgx.ForEachRow(rows, []any{&slot, &n}, func() error {
				all += n
				if partition.Of(slot, from, s) != partition.Of(slot, to, s) {
					going += n
				}
				return nil
			})
			if err != nil {
				return cfg.Secrets().Error(fmt.Errorf("count the escrows by slot: %w", err))
			}
			fmt.Fprintf(out, "%d of %d active escrows move\n", going, all)
			return nil
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "partitions now")
	cmd.Flags().IntVar(&to, "to", 0, "partitions then")
	cmd.Flags().StringVar(&strategy, "strategy", string(partition.Modulo), "modulo or consistent")
	return cmd
}

func planWaitCommand() *cobra.Command {
	var timeout, every time.Duration
	var w whole
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until every slot is served, somebody leads, and the lag is back to normal",
		Long:  "Wait until the fleet is whole. Reads CHAIN_ID and DATABASE_URL. Exit code 1 when it is not within --timeout; what is wrong is printed.",
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
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			said := ""
			for {
				f, err := fleet.Read(ctx, db.Pool, cfg.ChainID)
				why := ""
				if err != nil {
					why = cfg.Secrets().Error(err).Error()
				} else {
					why = w.missing(&f)
				}
				if why == "" {
					fmt.Fprintln(cmd.OutOrStdout(), "whole: every slot is served, and", f.Leader.Instance, "leads")
					return nil
				}
				if why != said {
					fmt.Fprintln(cmd.ErrOrStderr(), "waiting:", why)
					said = why
				}
				if !sleep(ctx, every) {
					return fmt.Errorf("not whole within %s: %s", timeout, said)
				}
			}
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up after")
	cmd.Flags().DurationVar(&every, "every", time.Second, "pause between two looks")
	cmd.Flags().Int64Var(&w.lag, "lag", 100, "how many blocks the lowest cursor may be behind the head, CONFIRMATIONS included")
	cmd.Flags().StringVar(&w.instance, "instance", "", "this instance must be alive")
	cmd.Flags().IntVar(&w.total, "total", 0, "and have this total of partitions; 0: any")
	cmd.Flags().StringVar(&w.gone, "gone", "", "this instance must be gone")
	return cmd
}

// whole says what a whole fleet is.
type whole struct {
	lag            int64
	instance, gone string
	total          int
}

// missing says what the fleet lacks; empty: nothing.
func (w *whole) missing(f *fleet.Fleet) string {
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if f.Slots.Unserved > 0 {
		say("%d slots are unserved", f.Slots.Unserved)
	}
	if !f.Leader.Valid {
		say("nobody leads")
	}
	if behind := f.Chain.Head - f.Chain.LowestCursor + 1; f.Chain.Head > 0 && behind > w.lag {
		say("the lowest cursor is %d blocks behind the head", behind)
	}
	if w.instance != "" {
		i := f.Find(w.instance)
		switch {
		case i == nil || !i.Alive:
			say("%s is not alive", w.instance)
		case w.total > 0 && i.Total != w.total:
			say("%s still has %d partitions", w.instance, i.Total)
		}
	}
	if i := f.Find(w.gone); w.gone != "" && i != nil && i.Alive {
		say("%s is still alive", w.gone)
	}
	return strings.Join(why, "; ")
}

func planManifestsCommand() *cobra.Command {
	in := deploy.ManifestInput{}
	var out string
	var variables map[string]string
	cmd := &cobra.Command{
		Use:   "manifests --partitions N --image IMAGE … --out DIR",
		Short: "Write the Cloud Run service manifest of each partition",
		Long:  "Write the Cloud Run service manifest of each partition, and monitoring.yaml, the text of the collector's secret. Secrets are referred to, never contained.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Env = variables
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
	f.StringToStringVar(&in.Secrets, "secret", nil, "variables from Secret Manager, NAME=SECRET[:VERSION]")
	return cmd
}

func planAlertsCommand() *cobra.Command {
	var chains []int64
	var operator bool
	cmd := &cobra.Command{
		Use:   "alerts --chain-id N [--chain-id M …]",
		Short: "Write the alerting rules of each chain for Prometheus",
		Long:  "Write the alerting rules of each chain to standard output. Name every chain whose fleet must be there: its absence is an alert.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := deploy.Alerts
			if operator {
				write = deploy.PrometheusRule
			}
			text, err := write(chains)
			if err != nil {
				return usage{err}
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().Int64SliceVar(&chains, "chain-id", nil, "CHAIN_ID; once for each chain")
	cmd.Flags().BoolVar(&operator, "operator", false, "as an object of the Prometheus operator")
	return cmd
}

// writeFiles writes files into a folder, which is made.
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
