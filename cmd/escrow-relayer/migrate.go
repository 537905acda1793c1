package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

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
		Long:  `Apply missing migrations. Reads DATABASE_URL (SESSION_DATABASE_URL if given). With --check nothing is changed, not even on a database without tables.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			done := map[string]bool{} // chains may share a database
			return askEach(cmd, loadAnyChain, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				if done[cfg.SessionDatabaseURL] {
					return nil
				}

				done[cfg.SessionDatabaseURL] = true
				if check {
					return checkSchema(ctx, cmd.OutOrStdout(), db)
				}

				return migrate(ctx, cmd.OutOrStdout(), db)
			})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only say whether a migration is missing")

	return cmd
}

// loadAnyChain works without CHAIN_ID: the schema is the same for all chains.
func loadAnyChain(environ map[string]string) (*config.Config, error) {
	environ["CHAIN_ID"] = cmp.Or(environ["CHAIN_ID"], "1")
	return config.LoadDatabase(environ)
}

// migrate applies the missing migrations.
func migrate(ctx context.Context, out io.Writer, db *database.Database) error {
	applied, err := migrations.Up(ctx, db.Session)
	for _, v := range applied {
		fmt.Fprintf(out, "applied %05d\n", v)
	}

	if err != nil {
		return err
	}

	return checkSchema(ctx, out, db)
}

// checkSchema prints the schema's version; one that this binary cannot work with is the answer no.
func checkSchema(ctx context.Context, out io.Writer, db *database.Database) error {
	s, err := migrations.Status(ctx, db.Session)
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "schema version %d of %d\n", s.Current, s.Latest)
	if err := s.Fits(); err != nil {
		return no{err}
	}

	return nil
}
