package partition

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// trap calls off whatever commits next, when the commit is on its way and before its answer is read.
type trap struct {
	mu     sync.Mutex
	spring func()
}

func (t *trap) set(spring func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spring = spring
}

type trappedConn struct {
	net.Conn
	t      *trap
	sprung bool
	over   chan struct{} // a deadline was set: whoever reads gives up
	once   sync.Once
}

func (c *trappedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.t.spring != nil && bytes.Contains(b, []byte("commit\x00")) {
		c.t.spring()
		c.t.spring, c.sprung = nil, true
	}

	return n, err
}

func (c *trappedConn) SetDeadline(at time.Time) error {
	c.t.mu.Lock()
	if c.sprung && !at.IsZero() && at.Before(time.Now()) {
		c.once.Do(func() { close(c.over) })
	}

	c.t.mu.Unlock()

	return c.Conn.SetDeadline(at)
}

func (c *trappedConn) Read(b []byte) (int, error) {
	c.t.mu.Lock()
	sprung := c.sprung
	c.t.mu.Unlock()
	if sprung {
		timer := time.NewTimer(200 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-c.over:
		case <-timer.C:
		}
	}

	return c.Conn.Read(b)
}

// A stop in the moment of a claim's commit: the claim counts, and everything is given back.
func TestStopDuringClaim(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	plain := testpg.Open(t, url)
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	trap := &trap{}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}

		return &trappedConn{Conn: c, t: trap, over: make(chan struct{})}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := born(t, url, pool, "r0", 0, 2, at(0))
	require.NoError(t, l.Step(t.Context()))
	held, _ := l.Holding()
	require.Len(t, held.Slots, Slots, "those that nobody prefers are adopted at once")
	require.NoError(t, l.Release(t.Context(), nil))

	ctx, cancel := context.WithCancel(t.Context())
	trap.set(cancel)
	_ = l.Step(ctx) // as Run does when it is told to stop
	require.Error(t, ctx.Err())
	require.Equal(t, map[string]int{"r0": Slots}, owners(t, plain, l))
	require.NoError(t, l.Release(t.Context(), nil))
	require.Equal(t, map[string]int{"": Slots}, owners(t, plain, l))
}
