package database

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Bound to a server, the pool uses no connection to another one, whether it was made before or is made now.
func TestPoolIsBoundToTheServerOfTheSession(t *testing.T) {
	db, err := Open(t.Context(), settings(testpg.Bare(t)))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	var server time.Time
	const started = `select pg_postmaster_start_time()`
	require.NoError(t, db.Pool.QueryRow(t.Context(), started).Scan(&server))
	var told []error
	note := func(err error) { told = append(told, err) }

	db.Bind(server, note)
	for range 3 {
		require.NoError(t, db.Pool.Ping(t.Context()))
	}

	require.Empty(t, told)

	db.Bind(server.Add(time.Microsecond), note)
	require.ErrorIs(t, db.Pool.Ping(t.Context()), election.ErrElsewhere, "it was made before")
	require.ErrorIs(t, db.Pool.Ping(t.Context()), election.ErrElsewhere, "it is made now")
	require.Len(t, told, 2)

	db.Unbind()
	require.NoError(t, db.Pool.Ping(t.Context()))
}
