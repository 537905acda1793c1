// Package database opens connections: the pool, and the settings of the one session that belongs to an instance.
package database

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"cloud.google.com/go/cloudsqlconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// Limits of statements on the pool. Commits take milliseconds; what takes longer than this is
// stuck. A transaction that says nothing for idleInTxTimeout belongs to a process that is frozen or
// cut off, and keeps others from the rows that it has locked.
const (
	statementTimeout = 30 * time.Second
	lockTimeout      = 5 * time.Second
	idleInTxTimeout  = 5 * time.Second
)

// pingTimeout is for the question whether a connection that was idle for more than a second is still there.
const pingTimeout = 2 * time.Second

// connectTimeout is for a connection whose URL names none.
const connectTimeout = 5 * time.Second

// Database is how to reach it. Close frees the pool and the connector.
type Database struct {
	Pool    *pgxpool.Pool
	Session *pgx.ConnConfig // for the session, and for migrations: no transaction pool in between
	sockets *sockets        // of the pool
	close   func() error
}

// Open prepares the connections and makes none: the database may be down. Every connection names
// its instance in application_name.
func Open(ctx context.Context, c *config.Config) (*Database, error) {
	if c.CloudSQLInstance == "" {
		return open(ctx, c, nil, func() error { return nil })
	}

	// A private address is taken where there is no public one; both are reached through the same proxy, which asks IAM.
	opts := []cloudsqlconn.Option{cloudsqlconn.WithDefaultDialOptions(cloudsqlconn.WithAutoIP())}
	if c.CloudSQLIAM {
		opts = append(opts, cloudsqlconn.WithIAMAuthN())
	}

	dialer, err := cloudsqlconn.NewDialer(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open the Cloud SQL connector for CLOUDSQL_INSTANCE=%s: %w", c.CloudSQLInstance, err)
	}

	return open(ctx, c, func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return dialer.Dial(ctx, c.CloudSQLInstance)
	}, dialer.Close)
}

// open makes connections by dial, if there is one, wherever the URLs point to. closeDialer is
// called in the end, on an error too.
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

	open := &sockets{open: map[*socket]struct{}{}}
	pool.ConnConfig.DialFunc = open.through(pool.ConnConfig.DialFunc)
	pool.MaxConns = c.DBMaxConns
	pool.PingTimeout = pingTimeout
	pool.MaxConnIdleTime = 5 * time.Minute
	pool.HealthCheckPeriod = 15 * time.Second
	pool.AfterConnect = prepare
	pool.BeforeClose = abandon
	d = &Database{Session: session, sockets: open, close: closeDialer}
	if d.Pool, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}

	return d, nil
}

// through makes a connection go through a dialer which knows by itself where to, and which
// authenticates and encrypts: the host is not looked up, and there is no TLS inside its TLS.
func through(conn *pgconn.Config, dial pgconn.DialFunc) {
	conn.DialFunc = dial
	conn.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	conn.TLSConfig, conn.Fallbacks = nil, nil
}

// prepare sets up a connection, by a statement rather than as part of the connection's start, where
// PgBouncer refuses what it does not know. JIT compilation is off: it is decided on by estimates,
// which know nothing of how much an array holds, and costs a second where it saves a millisecond.
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

// abandon closes the socket of a connection that was given up in the middle of something. Its place
// in the pool is free only when it is closed, and the driver would wait 15 s for a server that may
// not be there to say goodbye.
func abandon(conn *pgx.Conn) {
	if conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// Renew ends every connection of the pool, also those in use: what is under way on them fails, and
// what comes next gets new ones. It is for the moment in which the session was lost, since what
// took it may have taken them too, and a connection that swallows bytes does not say so.
func (d *Database) Renew() {
	d.Pool.Reset()
	d.sockets.close()
}

// Close closes everything, once no connection is in use. Goodbyes that a server does not answer
// within closeTimeout are cut short.
func (d *Database) Close() {
	cut := time.AfterFunc(closeTimeout, d.sockets.close)
	defer cut.Stop()
	d.Pool.Close()
	_ = d.close() // the connector's only ends its refreshing
}

const closeTimeout = time.Second
