package database

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
)

// binding is the one server that the pool may reach, identified by its memory.
type binding struct {
	memory    string
	elsewhere func(error)
}

// Bind restricts connections to one server until Unbind: the one with this memory
// (election.Session.Memory).
//
// After a failover with an old primary that still answers, open connections stay with it and new ones
// reach the new primary, which may have lost the last commits. It then gives their numbers to other
// rows: reading what to publish from one server and deleting what was published from the other
// loses events.
//
// A statement that can only get a connection to another server fails with election.ErrElsewhere,
// and elsewhere is called, from any goroutine and perhaps several times.
func (d *Database) Bind(memory string, elsewhere func(error)) {
	d.bound.Store(&binding{memory, elsewhere})
}

// Unbind admits connections to any server.
func (d *Database) Unbind() { d.bound.Store(nil) }

// reached is the result of looking up a connection's server, kept in its custom data under
// reachedKey.
type reached struct {
	memory string // empty: it has none, as a standby
	pooled bool   // it is to a proxy that pools transactions, so the next statement may reach another server
}

// notSupported is the SQLSTATE of an unsupported feature.
const notSupported = "0A000"

const reachedKey = "escrow-relayer/reached"

// lookUp finds out which server a connection reaches, and stores it.
func lookUp(ctx context.Context, conn *pgx.Conn) (r reached, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid)
	if err == nil {
		err = conn.QueryRow(ctx, `select coalesce((select id::text from memory), '')`).Scan(&r.memory)
	}

	// a recovering server, such as a standby, refuses to read an unlogged table
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == notSupported {
		err = nil
	}

	if err != nil {
		return r, fmt.Errorf("ask what the server remembers: %w", err)
	}

	r.pooled = pid != conn.PgConn().PID() // such a proxy invents the numbers for its clients
	conn.PgConn().CustomData()[reachedKey] = r

	return r, nil
}

// admit reports whether a connection may be used: see Bind.
func (d *Database) admit(ctx context.Context, conn *pgx.Conn) (ok bool, err error) {
	b := d.bound.Load()
	if b == nil {
		return true, nil
	}

	r, known := conn.PgConn().CustomData()[reachedKey].(reached)
	if !known || r.pooled {
		if r, err = lookUp(ctx, conn); err != nil {
			return false, err
		}
	}

	if r.memory == b.memory {
		return true, nil
	}

	err = fmt.Errorf("%w: the session is on the server whose memory is %s, and a connection has reached one whose memory is %q",
		election.ErrElsewhere, b.memory, r.memory)
	b.elsewhere(err)

	return false, err
}
