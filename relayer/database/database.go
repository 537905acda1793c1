// Package database opens the pool, and prepares the settings of the one session of an instance.
package database

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"cloud.google.com/go/cloudsqlconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// Limits of statements on the pool. Commits take milliseconds; anything beyond these limits is
// stuck. A transaction without a statement for idleInTxTimeout belongs to a frozen or disconnected
// process, and other instances wait for its row locks.
const (
	statementTimeout = 30 * time.Second
	lockTimeout      = 5 * time.Second
	idleInTxTimeout  = 5 * time.Second
)

// maxConnLifetime is the approximate lifetime of a connection: after a failover with an old primary
// that still answers, it bounds how long connections stay with that one.
const maxConnLifetime = 5 * time.Minute

// pingTimeout bounds the check of a connection that was idle for more than a second.
const pingTimeout = 2 * time.Second

// connectTimeout is the default of connect_timeout in a URL.
const connectTimeout = 4 * time.Second

// Database is the pool and the settings of the session. Close frees the pool and the connector.
type Database struct {
	Pool    *pgxpool.Pool
	Session *pgx.ConnConfig // for the session, and for migrations: around any transaction pooler
	sockets *sockets        // of the pool
	close   func() error
	bound   atomic.Pointer[binding] // nil: any server
}

// Open prepares connections lazily: the database may be down. Every connection names its instance
// in application_name.
func Open(ctx context.Context, c *config.Config) (*Database, error) {
	if c.CloudSQLInstance == "" {
		return open(ctx, c, nil, func() error { return nil })
	}

	// The connector falls back to the private address, and IAM decides which identities may
	// connect.
	opts := []cloudsqlconn.Option{cloudsqlconn.WithDefaultDialOptions(cloudsqlconn.WithAutoIP())}
	if c.CloudSQLIAM {
		opts = append(opts, cloudsqlconn.WithIAMAuthN())
	}

	dialer, err := cloudsqlconn.NewDialer(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open the Cloud SQL connector for CLOUDSQL_INSTANCE=%s: %w", c.CloudSQLInstance, err)
	}

	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, c.CloudSQLInstance) }

	return open(ctx, c, dial, dialer.Close)
}

// open prepares connections made by dial, if it is set, whatever host the URLs name. Close calls
// closeDialer, and so does an error.
func open(ctx context.Context, c *config.Config, dial pgconn.DialFunc,
	closeDialer func() error) (d *Database, err error) {
	defer func() {
		if err != nil {
			_ = closeDialer()
		}
	}()
	pool, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read DATABASE_URL: not a Postgres URL") // the cause quotes the URL
	}

	session, err := pgx.ParseConfig(c.SessionDatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read SESSION_DATABASE_URL: not a Postgres URL")
	}

	for _, conn := range []*pgx.ConnConfig{pool.ConnConfig, session} {
		conn.DialFunc = dialer().DialContext
		if dial != nil {
			through(&conn.Config, dial)
		}

		conn.RuntimeParams["application_name"] = election.ApplicationName(c.InstanceID)
		if conn.ConnectTimeout == 0 {
			conn.ConnectTimeout = connectTimeout
		}
	}

	if c.SessionDatabaseURL != c.DatabaseURL {
		// Through a transaction pooler the next statement may reach another server session, which has not what was
		// prepared on the last one.
		pool.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}

	open := &sockets{silence: silence, open: map[*socket]struct{}{}}
	pool.ConnConfig.DialFunc = open.through(pool.ConnConfig.DialFunc)
	pool.MaxConns = c.DBMaxConns
	pool.PingTimeout = pingTimeout
	pool.MaxConnIdleTime = 5 * time.Minute
	pool.MaxConnLifetime, pool.MaxConnLifetimeJitter = maxConnLifetime, maxConnLifetime/5
	pool.HealthCheckPeriod = 15 * time.Second
	pool.AfterConnect = prepare
	pool.BeforeClose = abandon
	d = &Database{Session: session, sockets: open, close: closeDialer}
	pool.PrepareConn = d.admit
	if d.Pool, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}

	return d, nil
}

// through makes a connection use a dialer that resolves the address, authenticates and encrypts: so
// the host lookup and the driver's TLS are disabled.
func through(conn *pgconn.Config, dial pgconn.DialFunc) {
	conn.DialFunc = dial
	conn.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	conn.TLSConfig, conn.Fallbacks = nil, nil
}

// prepare configures a connection by a statement rather than by startup parameters, since PgBouncer
// refuses unknown ones. JIT compilation is off: its estimates ignore how many elements an array
// has, and it can cost a second to save a millisecond. Whatever the login's default, a statement that has waited for a
// lock sees what it has waited for: the order of messages rests on that.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	const settings = `select set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
		set_config('idle_in_transaction_session_timeout', $3, false), set_config('jit', 'off', false),
		set_config('default_transaction_isolation', 'read committed', false)`
	if _, err := conn.Exec(ctx, settings, milliseconds(statementTimeout), milliseconds(lockTimeout),
		milliseconds(idleInTxTimeout)); err != nil {
		return fmt.Errorf("limit statements: %w", err)
	}

	return nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// abandon closes the socket of a connection that the pool discards in the middle of a statement.
// Its place in the pool is free only once it is closed, and the driver would wait 15 s for an
// answer from a server that may be gone.
func abandon(conn *pgx.Conn) {
	if conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// Renew ends every connection of the pool, including those in use: statements on them fail, and the
// next ones get new connections. It is called when the session was lost: the same cause may have
// broken the pool's connections silently.
func (d *Database) Renew() {
	d.Pool.Reset()
	d.sockets.close()
}

// Close closes everything, once all connections are returned. A connection that fails to close
// within closeTimeout is cut off.
func (d *Database) Close() {
	cut := time.AfterFunc(closeTimeout, d.sockets.end)
	defer cut.Stop()
	d.Pool.Close()
	_ = d.close() // the connector only stops refreshing its certificates
}

const closeTimeout = time.Second
