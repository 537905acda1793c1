package web

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Bounds of a Gate. A connection costs some 20 KB, so all of them and the bodies stay below 48 MiB.
const (
	maxConns     = 512
	maxPerClient = maxConns / 2 // of one address: the rest is for others
	maxBodies    = 32 << 20     // bytes of request bodies held at once
	// Posts per second and address: with 100 commands in each this exceeds what an instance
	// verifies (internal/bench/MEASURED.md).
	postRate  = 200
	postBurst = 2 * postRate
	// maxClients is how many addresses are remembered for postRate; beyond it all are forgotten.
	maxClients = 4096
	// spare are connections beyond maxConns, for addresses that have fewer than few: a probe is
	// answered whatever others do.
	spare, few = 64, 4
	// unread is how long a piece of an answer may wait for a client that does not read; then the
	// connection is cut.
	unread = 2 * time.Second
	piece  = 16 << 10
)

// Gate bounds the resources of all HTTP listeners of a process together: connections, also per
// address, bytes of bodies, and posts per address. When connections run out, one makes room whose
// request has still to arrive whole: of the address with the most connections, the one that has been
// there longest. So what is silent or slow cannot lock out clients that ask; one that does not read its
// answer is cut. The zero value is ready, and safe for concurrent use.
//
// The address is that of the TCP connection: behind a proxy all requests share the proxy's.
type Gate struct {
	mu      sync.Mutex
	conns   map[*gated]*list.Element // nil: a whole request is being served; else its place in waiting
	clients map[string]int           // connections by address
	waiting list.List                // *gated, the longest first
	rates   map[string]*rate.Limiter
	bodies  *semaphore.Weighted
	once    sync.Once
}

func (g *Gate) init() {
	g.once.Do(func() {
		g.conns, g.clients, g.rates = map[*gated]*list.Element{}, map[string]int{}, map[string]*rate.Limiter{}
		g.bodies = semaphore.NewWeighted(maxBodies)
	})
}

// gated is a connection that has passed the gate.
type gated struct {
	net.Conn
	gate   *Gate
	client string
	closed sync.Once
	until  atomic.Pointer[time.Time] // the server's deadline for the whole answer; nil: none
}

// SetWriteDeadline implements net.Conn.
func (c *gated) SetWriteDeadline(t time.Time) error {
	c.until.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write writes piece by piece, and fails once the client has not read one for long.
func (c *gated) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		deadline := time.Now().Add(unread)
		if until := c.until.Load(); until != nil && !until.IsZero() && until.Before(deadline) {
			deadline = *until
		}

		if err = c.Conn.SetWriteDeadline(deadline); err == nil {
			var written int
			written, err = c.Conn.Write(p[n:min(len(p), n+piece)])
			n += written
		}
	}

	return n, err
}

func (c *gated) Close() error {
	c.closed.Do(func() { c.gate.leave(c) })
	return c.Conn.Close()
}

// gatedListener accepts what the gate admits.
type gatedListener struct {
	net.Listener
	gate *Gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}

		if c := l.gate.admit(conn); c != nil {
			return c, nil
		}

		_ = conn.Close()
	}
}

// admit returns nil without room for a connection.
func (g *Gate) admit(conn net.Conn) *gated {
	c := &gated{Conn: conn, gate: g, client: host(conn.RemoteAddr().String())}
	g.mu.Lock()
	var evicted *gated
	most := maxConns
	if g.clients[c.client] < few {
		most += spare
	}

	if len(g.conns) >= most || g.clients[c.client] >= maxPerClient {
		evicted = g.longest(c.client)
		if evicted == nil {
			g.mu.Unlock()
			return nil
		}

		g.remove(evicted)
	}

	g.conns[c] = g.waiting.PushBack(c)
	g.clients[c.client]++
	g.mu.Unlock()
	if evicted != nil {
		_ = evicted.Close()
	}

	return c
}

// longest is the connection that makes room for a client: one of the client's once it has its share,
// else one of the address with the most. The caller holds mu.
func (g *Gate) longest(client string) (longest *gated) {
	own := g.clients[client] >= maxPerClient
	for e := g.waiting.Front(); e != nil; e = e.Next() {
		c := e.Value.(*gated)
		if own && c.client != client {
			continue
		}

		if longest == nil || g.clients[c.client] > g.clients[longest.client] {
			longest = c
		}
	}

	return longest
}

func (g *Gate) leave(c *gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(c)
}

// remove forgets a known connection. The caller holds mu.
func (g *Gate) remove(c *gated) {
	place, ok := g.conns[c]
	if !ok {
		return
	}

	if place != nil {
		g.waiting.Remove(place)
	}

	delete(g.conns, c)
	if g.clients[c.client]--; g.clients[c.client] == 0 {
		delete(g.clients, c.client)
	}
}

// state notes connections that have been answered; it is http.Server.ConnState.
func (g *Gate) state(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*gated)
	if !ok || s != http.StateIdle {
		return
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if place, known := g.conns[c]; known && place == nil {
		g.conns[c] = g.waiting.PushBack(c)
	}
}

// arrived notes that the request of a connection is there whole: it keeps its place until it is answered.
func (g *Gate) arrived(c *gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if place := g.conns[c]; place != nil {
		g.waiting.Remove(place)
		g.conns[c] = nil
	}
}

// connKey is the key of the *gated in the context of its requests.
type connKey struct{}

// remember is http.Server.ConnContext.
func remember(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// handler counts the bytes of bodies, and the posts of each address.
func (g *Gate) handler(next http.Handler) http.Handler {
	g.init()

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && !g.mayPost(host(r.RemoteAddr)) {
			w.Header().Set("Retry-After", "1")
			writeProblem(w, http.StatusTooManyRequests,
				fmt.Sprintf("an address may post %d times a second; send up to 100 commands in one", postRate))

			return
		}

		c, _ := r.Context().Value(connKey{}).(*gated)
		body := &counted{ReadCloser: r.Body, bodies: g.bodies, whole: func() { g.arrived(c) }}
		if r.Body == http.NoBody {
			body.whole()
		}

		defer func() { g.bodies.Release(body.held) }()
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

func (g *Gate) mayPost(client string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	limiter, ok := g.rates[client]
	if !ok {
		if len(g.rates) >= maxClients {
			clear(g.rates)
		}

		limiter = rate.NewLimiter(postRate, postBurst)
		g.rates[client] = limiter
	}

	return limiter.Allow()
}

// counted is a body with bytes that count until the request is answered.
type counted struct {
	io.ReadCloser
	bodies *semaphore.Weighted
	whole  func() // at its end
	held   int64
}

// Read returns ENOBUFS while other requests hold all permitted bytes.
func (b *counted) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && !b.bodies.TryAcquire(int64(n)) {
		return 0, fmt.Errorf("%w: %d MiB of bodies are held already", syscall.ENOBUFS, maxBodies>>20)
	}

	b.held += int64(max(n, 0))
	if errors.Is(err, io.EOF) {
		b.whole()
	}

	return n, err
}

// host is the address without the port.
func host(address string) string {
	if name, _, err := net.SplitHostPort(address); err == nil {
		return name
	}

	return address
}
