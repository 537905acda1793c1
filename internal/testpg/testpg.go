package testpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/migrations"
)

// setupTimeout bounds what a test waits for its database; the first one waits for the server too.
const setupTimeout = 10 * time.Minute

// shared is the server of this test binary. Nothing stops it: it ends with the binary.
var shared = sync.OnceValues(func() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	return Start(ctx, Options{})
})

// Shared returns the server of this test binary and starts it at the first call.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	require.NoError(t, err)

	return s
}

// New returns the URL of an empty, migrated database that belongs to this test and is dropped at its end.
func New(t testing.TB) string {
	t.Helper()
	name, err := Shared(t).Template(t.Context())
	require.NoError(t, err)

	return database(t, name)
}

// Bare returns the URL of a database without any schema, dropped at the end of the test.
func Bare(t testing.TB) string {
	t.Helper()
	return database(t, "")
}

// Pool returns a pool on a database like New's, closed at the end of the test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Open(t, New(t))
}

// Open returns a pool on the database, closed at the end of the test.
func Open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pool.Ping(t.Context())) // what bounds a statement does not bound a first connection

	return pool
}

// Counted returns a pool as Open does, with how many rows of a table its statements have read so far. It
// has one connection, since a session counts what it reads and tells the others later.
func Counted(t testing.TB, url string) (pool *pgxpool.Pool, read func(table string) int) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 1
	pool, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	return pool, func(table string) (rows int) {
		t.Helper()
		_, err := pool.Exec(t.Context(), `select pg_stat_force_next_flush()`)
		require.NoError(t, err)
		require.NoError(t, pool.QueryRow(t.Context(), `select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)
			from pg_stat_user_tables where relname = $1`, table).Scan(&rows))

		return rows
	}
}

func database(t testing.TB, template string) string {
	t.Helper()
	s := Shared(t)
	name := "test_" + strings.ToLower(rand.Text())
	require.NoError(t, s.CreateDatabase(t.Context(), name, template))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		require.NoError(t, s.DropDatabase(ctx, name))
	})

	return s.URL(name)
}

// Template returns the name of a database that has the schema and nothing in it, for
// CreateDatabase. It is built at the first call.
func (s *Server) Template(ctx context.Context) (name string, err error) {
	name = "relayer_template"
	s.template.mu.Lock()
	defer s.template.mu.Unlock()
	if s.template.made {
		return name, nil
	}

	// One that was begun, and not finished when its caller's time was over, is made anew.
	if err := errors.Join(s.DropDatabase(ctx, name), s.CreateDatabase(ctx, name, "")); err != nil {
		return "", err
	}

	config, err := pgx.ParseConfig(s.URL(name))
	if err != nil {
		return "", fmt.Errorf("read the template's URL: %w", err)
	}

	if _, err := migrations.Up(ctx, config); err != nil {
		return "", fmt.Errorf("build the template: %w", err)
	}

	s.template.made = true

	return name, nil
}
