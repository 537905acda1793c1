package chain

import (
	"context"
	"net"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
)

// pipes are the connections to nodes within a bubble, where those of the system would stop the clock.
type pipes struct {
	mu    sync.Mutex
	hosts map[string]*host
}

// host is a node's end of its connections: a net.Listener.
type host struct {
	name    string
	arrived chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu       sync.Mutex
	refusing bool
	open     []net.Conn
}

func (p *pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	h := p.hosts[address]
	p.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusing {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}

	ours, theirs := net.Pipe()
	select {
	case h.arrived <- theirs:
		h.open = append(h.open, theirs)
		return ours, nil
	case <-h.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refuse has a host take no connections, and ends those that it has; or take them again.
func (h *host) refuse(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusing = on
	h.drop()
}

// cut ends all connections of a host.
func (h *host) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop()
}

func (h *host) drop() {
	for _, c := range h.open {
		_ = c.Close()
	}

	h.open = nil
}

func (h *host) Accept() (net.Conn, error) {
	select {
	case c := <-h.arrived:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *host) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *host) Addr() net.Addr  { return h }
func (h *host) Network() string { return "tcp" }
func (h *host) String() string  { return h.name }

// node starts a node within a bubble: the real client and the real server, over pipes.
func (p *pipes) node(t *testing.T, c *testChain) (*testNode, *host) {
	n := &testNode{t: t, chain: c, head: uint64(len(c.headers) - 1), chainID: 1, asked: map[string]int{},
		sockets: map[*websocket.Conn]*sync.Mutex{}}
	h := &host{name: net.JoinHostPort("node"+string(rune('a'+len(p.hosts))), "80"), arrived: make(chan net.Conn),
		closed: make(chan struct{})}
	if p.hosts == nil {
		p.hosts = map[string]*host{}
	}

	p.hosts[h.name] = h
	n.server = httptest.NewUnstartedServer(n)
	_ = n.server.Listener.Close()
	n.server.Listener = h
	n.server.Start()
	t.Cleanup(func() { h.cut(); n.stop() })

	return n, h
}
