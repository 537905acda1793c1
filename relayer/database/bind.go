package database

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
)

// binding is the one server that the pool may reach, by the time when it was started.
type binding struct {
	server    time.Time
	elsewhere func(error)
}

// Bind admits connections to one server only, until Unbind: the one that was started at that time.
//
// After a failover whose old primary still answers, connections that were open stay with it and new ones reach
// the new primary, which may have forgotten the last commits. It then gives the same numbers to other rows: whoever
// reads what to publish from one of them and deletes what was published from the other one loses events.
//
// A statement for which there is no connection but to another server fails with election.ErrElsewhere, and
// elsewhere is told, from any goroutine and perhaps more than once.
func (d *Database) Bind(server time.Time, elsewhere func(error)) {
	d.bound.Store(&binding{server, elsewhere})
}

// Unbind admits connections to any server.
func (d *Database) Unbind() { d.bound.Store(nil) }

// reached is what a connection was found to reach, under this name in its custom data.
type reached struct {
	server time.Time
	pooled bool // it is to a proxy that pools transactions, and may reach another server at the next one
}

const reachedKey = "escrow-relayer/reached"

// lookUp finds out which server a connection reaches, and notes it.
func lookUp(ctx context.Context, conn *pgx.Conn) (r reached, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, `select pg_postmaster_start_time(), pg_backend_pid()`).Scan(&r.server, &pid)
	if err != nil {
		return r, fmt.Errorf("ask when the server was started: %w", err)
	}

	r.pooled = pid != conn.PgConn().PID() // such a proxy gives its clients numbers of its own
	conn.PgConn().CustomData()[reachedKey] = r

	return r, nil
}

// admit says whether a connection may be used: see Bind.
func (d *Database) admit(ctx context.Context, conn *pgx.Conn) (ok bool, err error) {
	b := d.bound.Load()
	if b == nil {
		return true, nil
	}

	r, _ := conn.PgConn().CustomData()[reachedKey].(reached)
	if r.pooled {
		if r, err = lookUp(ctx, conn); err != nil {
			return false, err
		}
	}

	if r.server.Equal(b.server) {
		return true, nil
	}

	err = fmt.Errorf("%w: the session is on the server started at %s, and a connection has reached the one started at %s",
		election.ErrElsewhere, b.server.UTC().Format(time.RFC3339Nano), r.server.UTC().Format(time.RFC3339Nano))
	b.elsewhere(err)

	return false, err
}
