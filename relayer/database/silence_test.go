package database

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// behind opens a database behind a proxy that can swallow bytes.
func behind(t *testing.T) (*Database, *faults.TCP) {
	proxy, url, err := faults.ProxyURL(testpg.Bare(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	db, err := Open(t.Context(), settings(url))
	require.NoError(t, err)
	t.Cleanup(db.Close)

	return db, proxy
}

// all takes every connection of the pool, so that each exists.
func all(t *testing.T, db *Database) (conns []*pgxpool.Conn) {
	for range db.Pool.Config().MaxConns {
		c, err := db.Pool.Acquire(t.Context())
		require.NoError(t, err)
		conns = append(conns, c)
	}

	return conns
}

// Renewed, a pool whose connections swallow bytes works over new ones, whatever was under way on the old ones.
func TestRenew(t *testing.T) {
	t.Parallel()
	db, proxy := behind(t)
	conns := all(t, db)
	busy := conns[0]
	for _, c := range conns[1:] {
		c.Release()
	}

	undo := proxy.Swallow(false)
	t.Cleanup(func() { _ = undo() })
	failed := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), `select 1`)
		busy.Release()
		failed <- err
	}()
	db.Renew()
	require.Error(t, <-failed)
	for _, c := range all(t, db) { // each place in the pool is free again
		_, err := c.Exec(t.Context(), `select 1`)
		require.NoError(t, err)
		c.Release()
	}
}

// A pool that nobody renews finds connections out that swallow bytes by itself: an idle one by a
// ping, one in use by the deadline of its statement, and their places are free at once.
func TestPoolFindsDeadConnections(t *testing.T) {
	t.Parallel()
	db, proxy := behind(t)
	cfg := db.Pool.Config()
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true } // else after a second of idling
	db.Pool.Close()
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	db.Pool = pool
	conns := all(t, db)
	busy := conns[0]
	for _, c := range conns[1:] {
		c.Release()
	}

	undo := proxy.Swallow(false)
	t.Cleanup(func() { _ = undo() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = busy.Exec(ctx, `select 1`)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	busy.Release()

	for _, c := range all(t, db) {
		_, err := c.Exec(t.Context(), `select 1`)
		require.NoError(t, err)
		c.Release()
	}
}

// A statement that nobody bounds ends when nothing has come for long enough, and an earlier
// deadline of its user counts first.
func TestSocketDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	noted := &noting{Conn: near}
	open := &sockets{silence: silence, open: map[*socket]struct{}{}}
	conn, err := open.through(func(context.Context, string, string) (net.Conn, error) { return noted, nil })(t.Context(),
		"", "")
	require.NoError(t, err)
	noted.fail = errors.New("noted")

	_, _ = conn.Read(nil)
	require.InDelta(t, silence, time.Until(noted.read), float64(20*time.Second))
	_, _ = conn.Write(nil)
	require.InDelta(t, silence, time.Until(noted.write), float64(20*time.Second))

	soon := time.Now().Add(time.Second)
	require.NoError(t, conn.SetDeadline(soon))
	_, _ = conn.Read(nil)
	require.Equal(t, soon, noted.read)
	_, _ = conn.Write(nil)
	require.Equal(t, soon, noted.write)

	require.Len(t, open.open, 1)
	require.NoError(t, conn.Close())
	require.Empty(t, open.open)

	open.end()
	_, err = open.through(func(context.Context, string, string) (net.Conn, error) { return far, nil })(t.Context(), "", "")
	require.ErrorIs(t, err, net.ErrClosed)
	require.Empty(t, open.open)
}

// noting keeps the deadlines that are set, and fails to set them.
type noting struct {
	net.Conn
	read, write time.Time
	fail        error
}

func (n *noting) SetReadDeadline(t time.Time) error  { n.read = t; return n.fail }
func (n *noting) SetWriteDeadline(t time.Time) error { n.write = t; return n.fail }
