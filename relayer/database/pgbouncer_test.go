//go:build pgbouncer

package database

import (
	"cmp"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Behind a pooler of transactions the next statement may reach another server session: with SESSION_DATABASE_URL
// nothing that was prepared on the last one is used, and without it the error says so. Debian 12's PgBouncer knows no
// prepared statements.
func TestPoolsOfTransactions(t *testing.T) {
	direct := testpg.Bare(t)
	ask := func(session string) error {
		cfg := settings(testpg.Bouncer(t, direct, "transaction"))
		if cfg.SessionDatabaseURL = session; session == "" {
			cfg.SessionDatabaseURL = cfg.DatabaseURL
		}

		db, err := Open(t.Context(), cfg)
		require.NoError(t, err)
		defer db.Close()
		var conns []*pgxpool.Conn
		for range db.Pool.Config().MaxConns {
			c, failed := db.Pool.Acquire(t.Context())
			if err = cmp.Or(err, failed); failed == nil {
				defer c.Release()
				conns = append(conns, c)
			}
		}

		for n := range 5 {
			for _, c := range conns {
				for _, sql := range []string{`select $1::int`, `select $1::int + 0`} {
					var got int
					err = cmp.Or(err, c.QueryRow(t.Context(), sql, n).Scan(&got))
					require.True(t, err != nil || n == got)
				}
			}
		}

		return Explain(err)
	}
	require.NoError(t, ask(direct))
	require.ErrorContains(t, ask(""), "set SESSION_DATABASE_URL to the address of Postgres itself")
}
