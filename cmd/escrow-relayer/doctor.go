package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Test everything an instance needs: database, session, schema, topics, every RPC endpoint",
		Long: `Test everything that an instance with this configuration needs, and change nothing: the database and its version, that a connection is one server
session, the schema, the topics, and each RPC endpoint: chain, head, latency. Exit code 1 if something is wrong. Configuration as for run.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Environ())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			secrets, out, sick := cfg.Secrets(), cmd.OutOrStdout(), false
			say := func(what, found string, err error) {
				if err != nil {
					sick = true
					fmt.Fprintf(out, "WRONG %-10s %s\n", what, secrets.Error(err))
					return
				}
				fmt.Fprintf(out, "ok    %-10s %s\n", what, found)
			}
			db, err := database.Open(ctx, cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			var version string
			err = db.Pool.QueryRow(ctx, `select current_setting('server_version')`).Scan(&version)
			say("database", "Postgres "+version, err)
			if err == nil {
				say("session", "one server session", election.CheckPooling(ctx, db.Session))
				s, err := migrations.Status(ctx, db.Session)
				if err == nil && s.Current < s.Latest {
					err = fmt.Errorf("the schema is at version %d of %d: run `escrow-relayer migrate`", s.Current, s.Latest)
				}
				say("schema", fmt.Sprintf("version %d", s.Current), err)
			}
			say("topics", "they exist", publish.CheckTopics(ctx, cfg.Project, publish.Topics{Default: cfg.Topic, Other: cfg.OtherTopic, Retractions: cfg.RetractionsTopic}))

			src, err := openSource(cfg)
			if err != nil {
				return secrets.Error(err)
			}
			err = src.Check(ctx, cfg.Factory)
			say("chain", fmt.Sprintf("chain %d, factory %s", cfg.ChainID, cfg.Factory), err)
			if err == nil {
				look, cancel := context.WithTimeout(ctx, 15*time.Second)
				defer cancel()
				stop, err := runSource(look, src)
				if err != nil {
					say("head", "", fmt.Errorf("no endpoint says what its newest block is: %w", err))
				} else {
					view := src.View()
					say("head", fmt.Sprintf("block %d, %d may be processed, %d is final", view.Head, view.Target, view.Final), nil)
					for _, e := range src.Endpoints() {
						var err error
						if !e.Up {
							err = fmt.Errorf("%s is not up: %s", e.URL, e.LastError)
						}
						say(e.Name, fmt.Sprintf("%s, head %d, %s", e.URL, e.Head, e.Latency.Round(time.Millisecond)), err)
					}
					stop()
				}
			}
			if sick {
				return errQuiet
			}
			return nil
		},
	}
}
