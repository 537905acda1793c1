package database

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Limits of a silent connection: a lost route, a dead proxy, a machine without power. TCP keeps
// that from a reader, so without limits a statement waits for ever.
const (
	// silence is how long the pool waits for the next bytes of an answer. A live server has
	// answered by the end of it, since it ends a statement after statementTimeout.
	silence = statementTimeout + 5*time.Second
	// unacknowledged bounds how long sent bytes may stay unacknowledged by the other end
	// (TCP_USER_TIMEOUT, Linux).
	unacknowledged = 10 * time.Second
)

// dialer connects, and lets the kernel probe idle connections.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         limitUnacknowledged,
	}
}

// sockets are the open connections of a pool.
type sockets struct {
	silence time.Duration // the default patience
	mu      sync.Mutex
	open    map[*socket]struct{}
	ended   bool // there are no new ones
}

// through returns dial with each new connection registered among the sockets.
func (s *sockets) through(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}

		c := &socket{Conn: conn, of: s, patience: s.silence}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ended {
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}

		s.open[c] = struct{}{}

		return c, nil
	}
}

// close ends all connections at once, with whatever is in flight on them.
func (s *sockets) close() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()

	for _, c := range all {
		_ = c.Close() // the connection is gone, with or without an error
	}
}

// end is close for good: a connection that is cut while it is made would be tried again without TLS.
func (s *sockets) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.close()
}

// socket is a connection that ends reads and writes after its patience (silence, unless its user
// asks for more), or at the deadline that its user sets, whichever comes first. Its methods may be
// called concurrently, as those of net.Conn.
type socket struct {
	net.Conn
	of *sockets

	mu       sync.Mutex
	deadline time.Time     // set by its user; zero: none
	patience time.Duration // how long it may be silent
}

// Patience sets how long a read may wait for the next bytes, for an unusually long statement, and
// returns the previous value. If the other end is gone, the kernel's probes notice, or Renew after
// the loss of the session.
func (c *socket) Patience(d time.Duration) (before time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.patience = c.patience, d

	return before
}

func (c *socket) Read(b []byte) (int, error) {
	if err := c.limit(c.SetReadDeadline); err != nil {
		return 0, err
	}

	return c.Conn.Read(b)
}

func (c *socket) Write(b []byte) (int, error) {
	if err := c.limit(c.SetWriteDeadline); err != nil {
		return 0, err
	}

	return c.Conn.Write(b)
}

// limit sets the deadline of the next read or write. It shares a lock with SetDeadline, by which a
// cancelled context interrupts a running read.
func (c *socket) limit(set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(c.patience)
	if !c.deadline.IsZero() && c.deadline.Before(until) {
		until = c.deadline
	}

	return set(until)
}

func (c *socket) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t

	return c.Conn.SetDeadline(t)
}

func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()

	return c.Conn.Close()
}
