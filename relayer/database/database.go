// Package database opens connections: the pool, and the settings of the one session that belongs to an instance.
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

// Limits of statements on the pool. Commits take milliseconds; what takes longer than these limits is
// stuck. A transaction without a statement for idleInTxTimeout belongs to a process that is frozen or
// cut off, and other instances wait for the rows that it has locked.
const (
	statementTimeout = 30 * time.Second
	lockTimeout      = 5 * time.Second
	idleInTxTimeout  = 5 * time.Second
)

// maxConnLifetime is after how long a connection is replaced, about: where a primary that was failed over still
// works, the connections to it would otherwise go on doing so for an hour.
const maxConnLifetime = 5 * time.Minute

// pingTimeout bounds the check whether a connection that was idle for more than a second still works.
const pingTimeout = 2 * time.Second

// connectTimeout is for a URL without connect_timeout.
const connectTimeout = 5 * time.Second

// Database is the pool and the settings of the session. Close frees the pool and the connector.
type Database struct {
	Pool    *pgxpool.Pool
	Session *pgx.ConnConfig // for the session, and for migrations: not through a pool of transactions
	sockets *sockets        // of the pool
	close   func() error
	bound   atomic.Pointer[binding] // nil: to no server
}

// Open prepares the connections and makes none: the database may be down. Every connection names
// its instance in application_name.
func Open(ctx context.Context, c *config.Config) (*Database, error) {
	if c.CloudSQLInstance == "" {
		return open(ctx, c, nil, func() error { return nil })
	}

	// The connector uses the private address where there is no public one, and IAM decides who may connect.
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

// open prepares connections that are made by dial, if it is not nil, whatever host the URLs name.
// closeDialer is called by Close, or on an error.
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

// through makes a connection use a dialer that knows the address itself, authenticates and encrypts:
// the host is not looked up, and there is no TLS inside the dialer's TLS.
func through(conn *pgconn.Config, dial pgconn.DialFunc) {
	conn.DialFunc = dial
	conn.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	conn.TLSConfig, conn.Fallbacks = nil, nil
}

// prepare sets up a connection by a statement. It does not use startup parameters: PgBouncer refuses
// those that it does not know. JIT compilation is off: the server decides on it by estimates that do
// not know how many elements an array has, and it can cost a second to save a millisecond.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	const settings = `select set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
		set_config('idle_in_transaction_session_timeout', $3, false), set_config('jit', 'off', false)`
	if _, err := conn.Exec(ctx, settings, milliseconds(statementTimeout), milliseconds(lockTimeout),
		milliseconds(idleInTxTimeout)); err != nil {
		return fmt.Errorf("limit statements: %w", err)
	}

	return nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// abandon closes the socket of a connection that the pool discards in the middle of a statement. Its
// place in the pool is free only when it is closed, and the driver would wait 15 s for an answer to
// its last message, from a server that may not be there.
func abandon(conn *pgx.Conn) {
	if conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// Renew ends every connection of the pool, also those in use: statements on them fail, and the next
// ones get new connections. It is called when the session was lost: the same cause may have broken
// the pool's connections too, and a connection that swallows bytes returns no error.
func (d *Database) Renew() {
	d.Pool.Reset()
	d.sockets.close()
}

// Close closes everything, once no connection is in use. A connection that is not closed in an
// orderly way within closeTimeout is cut off.
func (d *Database) Close() {
	cut := time.AfterFunc(closeTimeout, d.sockets.close)
	defer cut.Stop()
	d.Pool.Close()
	_ = d.close() // the connector only stops refreshing its certificates
}

const closeTimeout = time.Second
