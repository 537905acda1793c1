// Package database opens connections: the pool, and the settings of the one session that belongs to an instance.
package database

import (
	"context"
	"fmt"
	"net"
	"time"

	"cloud.google.com/go/cloudsqlconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// Limits of statements on the pool. Commits take milliseconds; what takes longer than this is stuck.
const (
	statementTimeout = 30 * time.Second
	lockTimeout      = 10 * time.Second
	idleInTxTimeout  = 30 * time.Second
)

// Database is how to reach it. Close frees the pool and the connector.
type Database struct {
	Pool    *pgxpool.Pool
	Session *pgx.ConnConfig // for the session, and for migrations: no transaction pool in between
	close   func()
}

// Open prepares the connections and makes none: the database may be down.
func Open(ctx context.Context, c *config.Config) (*Database, error) {
	pool, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read DATABASE_URL: not a Postgres URL") // the cause quotes the URL
	}
	session, err := pgx.ParseConfig(c.SessionDatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read SESSION_DATABASE_URL: not a Postgres URL")
	}
	d := &Database{Session: session, close: func() {}}
	if c.CloudSQLInstance != "" {
		var opts []cloudsqlconn.Option
		if c.CloudSQLIAM {
			opts = append(opts, cloudsqlconn.WithIAMAuthN())
		}
		dialer, err := cloudsqlconn.NewDialer(ctx, opts...)
		if err != nil {
			return nil, fmt.Errorf("open the Cloud SQL connector for CLOUDSQL_INSTANCE=%s: %w", c.CloudSQLInstance, err)
		}
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, c.CloudSQLInstance) }
		// The connector authenticates and encrypts; TLS inside it would be refused.
		pool.ConnConfig.DialFunc, session.DialFunc = dial, dial
		pool.ConnConfig.TLSConfig, session.TLSConfig = nil, nil
		pool.ConnConfig.Fallbacks, session.Fallbacks = nil, nil
		d.close = func() { _ = dialer.Close() }
	}
	name := "escrow-relayer/" + c.InstanceID
	for _, conn := range []*pgx.ConnConfig{pool.ConnConfig, session} {
		conn.RuntimeParams["application_name"] = name
		if conn.ConnectTimeout == 0 {
			conn.ConnectTimeout = 5 * time.Second
		}
	}
	pool.MaxConns = c.DBMaxConns
	pool.MaxConnIdleTime = 5 * time.Minute
	pool.HealthCheckPeriod = 15 * time.Second
	pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
			set_config('idle_in_transaction_session_timeout', $3, false)`,
			fmt.Sprint(statementTimeout.Milliseconds()), fmt.Sprint(lockTimeout.Milliseconds()), fmt.Sprint(idleInTxTimeout.Milliseconds()))
		return err
	}
	if d.Pool, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		d.close()
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	return d, nil
}

// Close closes everything.
func (d *Database) Close() {
	d.Pool.Close()
	d.close()
}
