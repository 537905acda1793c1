package database

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

func settings(raw string) *config.Config {
	return &config.Config{DatabaseURL: raw, SessionDatabaseURL: raw, InstanceID: "relayer-7", DBMaxConns: 4}
}

// setting is what the server says a setting of this connection is.
func setting(t *testing.T, conn *pgx.Conn, name string) (value string) {
	require.NoError(t, conn.QueryRow(t.Context(), `select current_setting($1)`, name).Scan(&value))
	return value
}

func TestConnections(t *testing.T) {
	t.Parallel()
	raw := testpg.Bare(t)
	_, err := testpg.Open(t, raw).Exec(t.Context(), `do $$ begin execute format(
		'alter database %I set default_transaction_isolation = %L', current_database(), 'repeatable read'); end $$`)
	require.NoError(t, err)
	db, err := Open(t.Context(), settings(raw))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	require.EqualValues(t, 4, db.Pool.Config().MaxConns)
	pooled, err := db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer pooled.Release()
	for name, want := range map[string]string{
		"application_name": "escrow-relayer/relayer-7", "statement_timeout": "30s", "lock_timeout": "5s",
		"idle_in_transaction_session_timeout": "5s", "jit": "off", "default_transaction_isolation": "read committed",
	} {
		require.Equal(t, want, setting(t, pooled.Conn(), name), name)
	}

	session, err := pgx.ConnectConfig(t.Context(), db.Session)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Close(context.Background())) })
	require.Equal(t, "escrow-relayer/relayer-7", setting(t, session, "application_name"))
	require.Equal(t, "0", setting(t, session, "lock_timeout"), "an advisory lock is waited for as long as it takes")
}

func TestOpenDoesNotConnect(t *testing.T) {
	t.Parallel()
	closed, err := port.Reserve()
	require.NoError(t, err)
	defer closed.Close()
	db, err := Open(t.Context(), settings("postgres://u:s3cret@"+closed.Addr()+"/d"))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	var refused *pgconn.ConnectError
	require.ErrorAs(t, db.Pool.Ping(t.Context()), &refused)
	require.Equal(t, connectTimeout, db.Session.ConnectTimeout)
}

// A connector decides where a connection goes to; the host of the URL need not exist, and its sslmode does not count.
func TestThroughAConnector(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testpg.Bare(t))
	require.NoError(t, err)
	network, address := "tcp", u.Host
	if socket := u.Query().Get("host"); socket != "" {
		network, address = "unix", socket+"/.s.PGSQL."+u.Query().Get("port")
	}

	u.Host, u.RawQuery = "no.such.host.invalid:1", "sslmode=require"
	var dialled, closed atomic.Int32
	db, err := open(t.Context(), settings(u.String()), func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}, func() error { closed.Add(1); return nil })
	require.NoError(t, err)
	require.NoError(t, db.Pool.Ping(t.Context()))
	session, err := pgx.ConnectConfig(t.Context(), db.Session)
	require.NoError(t, err)
	require.NoError(t, session.Close(t.Context()))
	require.EqualValues(t, 2, dialled.Load())
	db.Close()
	require.EqualValues(t, 1, closed.Load())
}

func TestErrorsNameTheVariableAndNoSecret(t *testing.T) {
	for variable, c := range map[string]*config.Config{
		"DATABASE_URL":         {DatabaseURL: "postgres://u:s3cret@h:port/d"},
		"SESSION_DATABASE_URL": {DatabaseURL: "postgres://u:s3cret@h/d", SessionDatabaseURL: "postgres://u:s3cret@h:port/d"},
	} {
		closed := false
		_, err := open(t.Context(), c, nil, func() error { closed = true; return nil })
		require.ErrorContains(t, err, variable)
		require.NotContains(t, err.Error(), "s3cret")
		require.True(t, closed)
	}

	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/credentials.json")
	c := settings("postgres://u:s3cret@h/d")
	c.CloudSQLInstance, c.CloudSQLIAM = "project:region:instance", true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := Open(ctx, c)
	require.ErrorContains(t, err, "CLOUDSQL_INSTANCE=project:region:instance")
	require.NotContains(t, err.Error(), "s3cret")
}
