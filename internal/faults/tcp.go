package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// TCP passes connections on to a server, until told otherwise. Its methods may be called concurrently.
//
// It works on bytes, so it serves Postgres, gRPC, HTTP/1.1, HTTP/2 and WebSocket alike. The kernel
// goes on acknowledging what a client sends, as behind a proxy or a NAT gateway that has lost a
// connection: neither TCP_USER_TIMEOUT nor keepalives notice that, only a deadline of the program
// does.
type TCP struct {
	port *port.Reserved
	wg   sync.WaitGroup

	// mu guards all that follows and the fields of links and outages. Whoever changes one of them
	// renews changed, for which chunks wait that may not pass.
	mu       sync.Mutex
	upstream string
	changed  chan struct{}
	listener net.Listener // nil: cut or closed
	links    map[*link]struct{}
	outages  []*outage // in force
	delays   []*time.Duration
	traps    []*Trap // not sprung
	cuts     int
	closed   bool
}

// link is a client's connection and the one behind it.
type link struct {
	client, server net.Conn // server is nil for a connection that was swallowed from the start
	lost           bool     // whatever comes is thrown away, the end of the connection included
	held           int      // outages and traps that keep what comes
	ended          int      // directions that have ended
}

// outage is a time in which connections carry nothing.
type outage struct {
	fate  fate
	fresh bool // hits new connections, too
	links []*link
}

// fate of a connection that an outage hits.
type fate int

const (
	swallowed fate = iota // never heard of again
	held                  // goes on when the outage ends, with what was sent meanwhile
	broken                // ends when the outage ends
)

// NewTCP listens on a free port of 127.0.0.1 for a server at an address host:port.
func NewTCP(upstream string) (*TCP, error) {
	reserved, err := port.Reserve()
	if err != nil {
		return nil, err
	}

	t := &TCP{port: reserved, upstream: upstream, changed: make(chan struct{}), links: map[*link]struct{}{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.listen(); err != nil {
		return nil, errors.Join(err, reserved.Close())
	}

	return t, nil
}

// ProxyURL returns a proxy for the host of a URL, and the URL with the proxy in its place.
func ProxyURL(raw string) (*TCP, string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, "", fmt.Errorf("parse the URL to proxy: %w", err)
	}

	t, err := NewTCP(u.Host)
	if err != nil {
		return nil, "", err
	}

	u.Host = t.Addr()

	return t, u.String(), nil
}

// Move sends new connections to another server. Those that are open stay where they are, as they do when a
// DNS name or a virtual address moves.
func (t *TCP) Move(upstream string) { t.change(func() { t.upstream = upstream }) }

// Addr is where it listens.
func (t *TCP) Addr() string { return t.port.Addr() }

// Cut ends all connections and refuses new ones, until all cuts are undone.
func (t *TCP) Cut() (undo func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cuts++
	t.hangUp()

	return sync.OnceValue(func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.cuts--; t.cuts > 0 || t.closed {
			return nil
		}

		return t.listen()
	})
}

// Freeze lets no byte through, in either direction, of new connections neither. When it is undone
// the connections that it has hit end: what was lost on the way is lost.
func (t *TCP) Freeze() (undo func() error) { return t.begin(broken, true) }

// Swallow makes connections swallow bytes: they stay open, what either side sends disappears, and
// so does the end of the connection. Those that are open now are hit for good. With fresh, so are
// those that are opened until it is undone.
func (t *TCP) Swallow(fresh bool) (undo func() error) { return t.begin(swallowed, fresh) }

// Hold keeps what either side sends, and delivers it when it is undone, as a route does that comes
// back before TCP gives up: a statement may arrive when its sender has long ceased to wait for it.
func (t *TCP) Hold(fresh bool) (undo func() error) { return t.begin(held, fresh) }

// Slow delays what comes from the server.
func (t *TCP) Slow(by time.Duration) (undo func() error) {
	delay := &by
	t.change(func() { t.delays = append(t.delays, delay) })

	return sync.OnceValue(func() error {
		t.change(func() { t.delays = slices.DeleteFunc(t.delays, func(d *time.Duration) bool { return d == delay }) })
		return nil
	})
}

// Trap is a wait for something that a client sends.
type Trap struct {
	words  []byte
	caught chan struct{}
	link   *link
	t      *TCP
}

// Trap holds up the first client that sends the words from now on: these and what follows do not
// reach the server until Release. The words have to come in one piece. For Postgres, "commit"
// leaves a transaction open that has done all its work.
func (t *TCP) Trap(words string) *Trap {
	trap := &Trap{words: []byte(words), caught: make(chan struct{}), t: t}
	t.change(func() { t.traps = append(t.traps, trap) })

	return trap
}

// Caught is closed when a client has sent the words.
func (t *Trap) Caught() <-chan struct{} { return t.caught }

// Release lets what was held up go on. If nobody has sent the words, nobody is held up any more who does.
func (t *Trap) Release() {
	t.t.change(func() {
		t.t.traps = slices.DeleteFunc(t.t.traps, func(o *Trap) bool { return o == t })
		if t.link != nil {
			t.link.held--
			t.link = nil
		}
	})
}

// Forget ends what is left of swallowed connections: towards the server, which has not heard that
// the client has gone, as its own keepalives would in the end.
func (t *TCP) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.links {
		if l.lost {
			t.drop(l)
		}
	}
}

// Close ends the proxy and its connections.
func (t *TCP) Close() error {
	t.change(func() {
		t.closed = true
		t.hangUp()
	})
	t.wg.Wait()

	return t.port.Close()
}

// change does something under the lock and wakes whoever waits for a change.
func (t *TCP) change(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do()
	t.renew()
}

func (t *TCP) renew() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// listen needs the lock.
func (t *TCP) listen() error {
	l, err := net.Listen("tcp", t.Addr()) //nolint:noctx // no names to resolve
	if err != nil {
		return fmt.Errorf("listen for %s: %w", t.upstream, err)
	}

	t.listener = l
	t.wg.Go(func() { t.accept(l) })

	return nil
}

// hangUp ends everything. It needs the lock.
func (t *TCP) hangUp() {
	if t.listener != nil {
		_ = t.listener.Close()
		t.listener = nil
	}

	for l := range t.links {
		t.drop(l)
	}
}

// drop ends a connection. It needs the lock.
func (t *TCP) drop(l *link) {
	delete(t.links, l)
	l.lost = true // whoever waits to send through it goes on and ends
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}

	t.renew()
}

// begin puts an outage into force.
func (t *TCP) begin(f fate, fresh bool) (undo func() error) {
	o := &outage{fate: f, fresh: fresh}
	t.change(func() {
		t.outages = append(t.outages, o)
		for l := range t.links {
			o.hit(l)
		}
	})

	return sync.OnceValue(func() error {
		t.change(func() {
			t.outages = slices.DeleteFunc(t.outages, func(other *outage) bool { return other == o })
			for _, l := range o.links {
				if l.held--; o.fate == broken {
					t.drop(l)
				}
			}
		})

		return nil
	})
}

// hit needs the lock.
func (o *outage) hit(l *link) {
	if o.fate == swallowed {
		l.lost = true
		return
	}

	l.held++
	o.links = append(o.links, l)
}

func (t *TCP) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}

		t.wg.Go(func() { t.serve(c) })
	}
}

// serve connects a client to the server, unless an outage swallows it.
func (t *TCP) serve(client net.Conn) {
	l := &link{client: client}
	lost, upstream := false, ""
	t.change(func() {
		t.links[l], upstream = struct{}{}, t.upstream
		if t.listener == nil {
			t.drop(l)
		}

		for _, o := range t.outages {
			if o.fresh {
				o.hit(l)
			}
		}

		lost = l.lost
	})
	if lost {
		_, _ = io.Copy(io.Discard, client)
		return
	}

	server, err := net.Dial("tcp", upstream) //nolint:noctx // on this machine
	gone := false
	t.change(func() {
		if _, open := t.links[l]; err != nil || !open {
			gone = true
			t.drop(l)
			return
		}

		l.server = server
	})
	if gone {
		if err == nil {
			_ = server.Close()
		}

		return
	}

	t.wg.Go(func() { t.copy(l, server, client, false) })
	t.copy(l, client, server, true)
}

// copy carries one direction.
func (t *TCP) copy(l *link, from, to net.Conn, up bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		passes := t.pass(l, buffer[:n], up)
		if passes && n > 0 {
			if _, e := to.Write(buffer[:n]); e != nil {
				err = e
			}
		}

		if err == nil {
			continue
		}

		t.end(l, passes, errors.Is(err, io.EOF), to)

		return
	}
}

// end notes that a direction has ended, and tells the other side unless that is lost as well.
func (t *TCP) end(l *link, tell, orderly bool, to net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.ended++
	switch {
	case l.ended == 2, tell && !orderly:
		t.drop(l)
	case tell:
		_ = to.(*net.TCPConn).CloseWrite()
	}
}

// pass waits until a chunk may go on, and reports whether it does at all.
func (t *TCP) pass(l *link, chunk []byte, up bool) bool {
	came := time.Now()
	for tried := false; ; tried = true {
		t.mu.Lock()
		if up && !tried {
			t.spring(l, chunk)
		}

		lost, wait, changed := l.lost, l.held > 0, t.changed
		var late time.Duration
		for _, d := range t.delays {
			if !up {
				late = max(late, *d)
			}
		}

		t.mu.Unlock()

		switch left := late - time.Since(came); {
		case lost:
			return false
		case wait:
			<-changed
		case left > 0:
			select {
			case <-time.After(left):
			case <-changed:
			}
		default:
			return true
		}
	}
}

// spring needs the lock.
func (t *TCP) spring(l *link, chunk []byte) {
	i := slices.IndexFunc(t.traps, func(trap *Trap) bool { return bytes.Contains(chunk, trap.words) })
	if i < 0 || l.lost {
		return
	}

	trap := t.traps[i]
	t.traps = slices.Delete(t.traps, i, i+1)
	trap.link = l
	l.held++
	close(trap.caught)
}
