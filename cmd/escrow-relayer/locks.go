package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func locksCommand() *cobra.Command {
	var end, asJSON bool
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "Show the sessions of other logins that hold a lock of the fleet; --end ends them",
		Long: `Show the database sessions that hold an advisory lock of the fleet with a login that may not change its tables. Any login that may connect can take such a
lock; the fleet then gives it another key. Reads CHAIN_ID and DATABASE_URL.

With --end their sessions are ended, which takes the right to do so: the same login, a superuser's, or membership in pg_signal_backend.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				f, err := readFleet(cfg, db)(ctx)
				if err != nil {
					return err
				}

				if asJSON {
					if err := printJSON(cmd.OutOrStdout(), f.Strangers); err != nil {
						return err
					}
				} else {
					t := newTable(cmd.OutOrStdout(), "lock", "pid", "login", "application")
					for _, s := range f.Strangers {
						t.AppendRow(table.Row{s.Lock, s.PID, s.Login, s.Application})
					}

					t.Render()
				}

				for n, s := range f.Strangers {
					if !end {
						return errQuiet
					}

					if _, err := db.Pool.Exec(ctx, endStranger, s.PID, s.Login); err != nil {
						return fmt.Errorf("end the session of %s (pid %d, %d of %d): be granted pg_signal_backend, or ask "+
							"a superuser: %w", s.Login, s.PID, n+1, len(f.Strangers), err)
					}
				}

				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&end, "end", false, "end these sessions")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")

	return cmd
}

// endStranger ends a session, unless its pid belongs to another login by now.
const endStranger = `select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and usename = $2`
