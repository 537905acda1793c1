package election_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// connection is a Holder without a session's probes.
type connection struct{ conn *pgx.Conn }

func (c connection) Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return f(ctx, c.conn)
}

// While one holder works with a lock no other gets it. After that it is free, also when the work ended
// because its context did.
func TestTryIsExclusive(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	connect := func() connection {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })

		return connection{conn}
	}
	a, b := connect(), connect()
	lock := election.Lock{Purpose: election.Replies, ChainID: 1}
	another := election.Lock{Purpose: election.Replies, ChainID: 2}
	nothing := func(context.Context) {}
	try := func(ctx context.Context, c connection, lock election.Lock, f func(context.Context)) bool {
		taken, err := election.Try(ctx, c, lock, slog.New(slog.DiscardHandler), f)
		require.NoError(t, err)

		return taken
	}

	ctx, cancel := context.WithCancel(t.Context())
	require.True(t, try(ctx, a, lock, func(ctx context.Context) {
		require.False(t, try(ctx, b, lock, func(context.Context) { t.Error("two have the lock") }))
		require.True(t, try(ctx, b, another, nothing), "another lock")
		cancel()
	}))
	require.True(t, try(t.Context(), b, lock, nothing), "it was given back")
	var held int
	require.NoError(t, a.conn.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`).Scan(&held))
	require.Zero(t, held)
}
