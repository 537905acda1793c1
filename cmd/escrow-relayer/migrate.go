package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func migrateCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Apply missing migrations; safe while instances run, and several times at once",
		Long:  "Apply missing migrations. Reads DATABASE_URL (SESSION_DATABASE_URL if given). With --check nothing is changed, and the exit code is 1 when one is missing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			environ := config.Environ()
			if environ["CHAIN_ID"] == "" {
				environ["CHAIN_ID"] = "1" // the schema is the same for all
			}
			cfg, err := config.LoadDatabase(environ)
			if err != nil {
				return err
			}
			db, err := database.Open(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			if check {
				if err := migrations.Check(cmd.Context(), db.Session); err != nil {
					return cfg.Secrets().Error(err)
				}
			} else {
				applied, err := migrations.Up(cmd.Context(), db.Session)
				if err != nil {
					return cfg.Secrets().Error(err)
				}
				for _, v := range applied {
					fmt.Fprintf(cmd.OutOrStdout(), "applied %05d\n", v)
				}
			}
			s, err := migrations.Status(cmd.Context(), db.Session)
			if err != nil {
				return cfg.Secrets().Error(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "schema version %d of %d\n", s.Current, s.Latest)
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only say whether a migration is missing")
	return cmd
}
