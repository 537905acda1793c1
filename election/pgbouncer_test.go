//go:build pgbouncer

package election_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

func TestPools(t *testing.T) {
	f := setup(t)
	check := func(url string) error {
		conn, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		return election.CheckPooling(t.Context(), conn)
	}
	require.NoError(t, check(f.url))
	require.NoError(t, check(testpg.Bouncer(t, f.url, "session")))
	err := check(testpg.Bouncer(t, f.url, "transaction"))
	require.ErrorIs(t, err, election.ErrPooled)
	require.ErrorContains(t, err, "SESSION_DATABASE_URL")
}
