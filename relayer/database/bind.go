package database

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
)

// binding is the one server that the pool may reach, by the name of its memory.
type binding struct {
	memory    string
	elsewhere func(error)
}

// Bind admits connections to one server only, until Unbind: the one whose memory has this name
// (election.Session.Memory).
//
// After a failover whose old primary still answers, connections that were open stay with it and new ones reach
// the new primary, which may have forgotten the last commits. It then gives the same numbers to other rows: whoever
// reads what to publish from one of them and deletes what was published from the other one loses events.
//
// A statement for which there is no connection but to another server fails with election.ErrElsewhere, and
// elsewhere is told, from any goroutine and perhaps more than once.
func (d *Database) Bind(memory string, elsewhere func(error)) {
	d.bound.Store(&binding{memory, elsewhere})
}

// Unbind admits connections to any server.
func (d *Database) Unbind() { d.bound.Store(nil) }

// reached is what a connection was found to reach, under this name in its custom data.
type reached struct {
	memory string // empty: it has none yet, as a standby
	pooled bool   // it is to a proxy that pools transactions, and may reach another server at the next one
}

// notSupported is the SQLSTATE of a feature that the server has not.
const notSupported = "0A000"

const reachedKey = "escrow-relayer/reached"

// lookUp finds out which server a connection reaches, and notes it.
func lookUp(ctx context.Context, conn *pgx.Conn) (r reached, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid)
	if err == nil {
		err = conn.QueryRow(ctx, `select coalesce((select id::text from memory), '')`).Scan(&r.memory)
	}

	// a server that recovers, as a standby does, refuses to read an unlogged table
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == notSupported {
		err = nil
	}

	if err != nil {
		return r, fmt.Errorf("ask what the server remembers: %w", err)
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
