package database

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Bound to a server, the pool uses no connection to another one, whether it was made before or is made now.
func TestPoolIsBoundToTheServerOfTheSession(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), settings(testpg.New(t)))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	require.NoError(t, db.Pool.Ping(t.Context()))
	var memory string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `insert into memory default values returning id::text`).Scan(&memory))
	var told []error
	note := func(err error) { told = append(told, err) }

	db.Bind(memory, note)
	for range 3 {
		require.NoError(t, db.Pool.Ping(t.Context()))
	}

	require.Empty(t, told)

	db.Bind("another", note)
	require.ErrorIs(t, db.Pool.Ping(t.Context()), election.ErrElsewhere, "it was made before")
	require.ErrorIs(t, db.Pool.Ping(t.Context()), election.ErrElsewhere, "it is made now")
	require.Len(t, told, 2)

	db.Unbind()
	require.NoError(t, db.Pool.Ping(t.Context()))
}

// A server that recovers, as a standby does, has no memory that could be the session's, and says so.
func TestAStandbyIsNotTheServerOfTheSession(t *testing.T) {
	t.Parallel()
	pg, standby := pair(t)
	db, err := Open(t.Context(), settings(standby.URL(pg)))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	db.Bind("the primary's", func(error) {})
	require.ErrorIs(t, db.Pool.Ping(t.Context()), election.ErrElsewhere)
}

// pair is a primary with the table of its memory, in the database that is named, and its standby.
func pair(t *testing.T) (name string, standby *testpg.Server) {
	t.Helper()
	primary, err := testpg.Start(t.Context(), testpg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(t.Context())) })
	conn, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `create unlogged table memory (id uuid)`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	standby, err = primary.Standby(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Stop(t.Context())) })

	return "postgres", standby
}
