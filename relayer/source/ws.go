package source

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// A connection that is silent for two pings is dead. Load balancers end idle connections after 60 s at the earliest.
	pingEvery  = 15 * time.Second
	wsDeadline = 2*pingEvery + 5*time.Second
)

// errDisconnected means that the connection broke while an answer was awaited.
var errDisconnected = errors.New("the WebSocket connection broke")

// wsTransport sends batches over one WebSocket connection, which the first use opens and whoever finds it broken opens anew.
type wsTransport struct {
	url   string
	hello func(ctx context.Context, ask func(context.Context, *call) error) error // judges a new connection; nil: no judge

	dialing chan struct{} // a token: whoever has it may open a connection
	mu      sync.Mutex
	conn    *wsConn
	nextID  uint64
	closed  bool
	wg      sync.WaitGroup
}

func newWS(url string) *wsTransport { return &wsTransport{url: url, dialing: make(chan struct{}, 1)} }

// wsConn is one connection. Its goroutines end when it does.
type wsConn struct {
	c     *websocket.Conn
	done  chan struct{} // closed when the connection is over
	write sync.Mutex    // one writer at a time

	mu      sync.Mutex
	waiting map[uint64]*wsWait
	heads   chan Header // of the subscription: the newest, older ones are dropped
	over    bool
}

// wsWait is a batch whose answers are awaited. The reader fills in the calls until the waiter is gone.
type wsWait struct {
	first     uint64
	calls     []*call
	left      int
	received  int
	err       error
	delivered chan struct{}
}

// connect returns the connection, opening it where there is none.
func (t *wsTransport) connect(ctx context.Context) (*wsConn, error) {
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	t.mu.Lock()
	conn, closed := t.conn, t.closed
	t.mu.Unlock()
	if closed {
		return nil, errDisconnected
	}
	if conn != nil {
		select {
		case <-conn.done:
		default:
			return conn, nil
		}
	}
	dialer := websocket.Dialer{Proxy: http.ProxyFromEnvironment, HandshakeTimeout: 10 * time.Second, ReadBufferSize: 64 << 10, WriteBufferSize: 16 << 10}
	address, header := credentials(t.url)
	c, resp, err := dialer.DialContext(ctx, address, header)
	if err != nil {
		if resp != nil && errors.Is(err, websocket.ErrBadHandshake) {
			return nil, &statusError{status: resp.StatusCode, retry: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
		}
		return nil, err
	}
	c.SetReadLimit(maxResponse)
	conn = &wsConn{c: c, done: make(chan struct{}), waiting: map[uint64]*wsWait{}, heads: make(chan Header, 1)}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		_ = c.Close()
		return nil, errDisconnected
	}
	t.wg.Go(conn.read)
	t.wg.Go(conn.ping)
	t.mu.Unlock()
	// Nobody uses the connection before it has proven to be the right chain's.
	if t.hello != nil {
		if err := t.hello(ctx, func(ctx context.Context, q *call) error {
			_, _, err := t.over(ctx, conn, []*call{q})
			return err
		}); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return nil, errDisconnected
	}
	t.conn = conn
	return conn, nil
}

// credentials turns the user of a URL into a header, as net/http does by itself: WebSocket URLs have none.
func credentials(raw string) (string, http.Header) {
	u, err := url.Parse(raw)
	if err != nil || u.User == nil {
		return raw, nil
	}
	password, _ := u.User.Password()
	header := http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))}}
	u.User = nil
	return u.String(), header
}

// current returns the open connection, or nil.
func (t *wsTransport) current() *wsConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn
}

func (t *wsTransport) close() {
	t.mu.Lock()
	t.closed = true
	if t.conn != nil {
		_ = t.conn.c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// reopen allows connections again after close.
func (t *wsTransport) reopen() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = false
}

func (t *wsTransport) exchange(ctx context.Context, calls []*call) (sent, received int, err error) {
	conn, err := t.connect(ctx)
	if err != nil {
		return 0, 0, err
	}
	return t.over(ctx, conn, calls)
}

// over sends a batch over a certain connection.
func (t *wsTransport) over(ctx context.Context, conn *wsConn, calls []*call) (sent, received int, err error) {
	t.mu.Lock()
	first := t.nextID + 1
	t.nextID += uint64(len(calls))
	t.mu.Unlock()
	w := &wsWait{first: first, calls: make([]*call, len(calls)), left: len(calls), delivered: make(chan struct{})}
	for i, c := range calls { // copies: the reader may be at them when ctx has ended
		w.calls[i] = &call{method: c.method}
	}
	conn.mu.Lock()
	if conn.over {
		conn.mu.Unlock()
		return 0, 0, errDisconnected
	}
	for i := range calls {
		conn.waiting[first+uint64(i)] = w
	}
	conn.mu.Unlock()
	body := encode(calls, first)
	if err := conn.send(ctx, body); err != nil {
		_ = conn.c.Close() // half a message may have gone out
		conn.forget(w)
		return len(body), 0, fmt.Errorf("%w: %w", errDisconnected, err)
	}
	select {
	case <-w.delivered:
	case <-ctx.Done():
		conn.forget(w)
		return len(body), 0, context.Cause(ctx)
	}
	if w.err != nil {
		return len(body), w.received, w.err
	}
	for i, c := range calls {
		c.result, c.err = w.calls[i].result, w.calls[i].err
	}
	return len(body), w.received, nil
}

func (c *wsConn) send(ctx context.Context, body []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(wsDeadline)
	}
	if err := c.c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	return c.c.WriteMessage(websocket.TextMessage, body)
}

func (c *wsConn) forget(w *wsWait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range w.calls {
		delete(c.waiting, w.first+uint64(i))
	}
}

// read receives until the connection ends, and then lets everybody who waits know.
func (c *wsConn) read() {
	cause := errDisconnected
	defer func() {
		_ = c.c.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
		for id, w := range c.waiting {
			delete(c.waiting, id)
			if w.err == nil && w.left > 0 {
				w.err, w.left = cause, 0
				close(w.delivered)
			}
		}
		close(c.done)
	}()
	alive := func() { _ = c.c.SetReadDeadline(time.Now().Add(wsDeadline)) }
	alive()
	c.c.SetPongHandler(func(string) error { alive(); return nil })
	for {
		_, message, err := c.c.ReadMessage()
		if err != nil {
			if errors.Is(err, websocket.ErrReadLimit) {
				cause = errTooMuch
			}
			return
		}
		alive()
		list, single, err := splitResponses(message)
		if err != nil {
			cause = fmt.Errorf("%w: %w", errGarbled, err)
			return
		}
		for i := range list {
			c.route(&list[i], single, len(message)/len(list))
		}
	}
}

// route hands a response to the batch that waits for it, or to the subscription.
func (c *wsConn) route(r *response, single bool, size int) {
	if len(r.method) > 0 {
		c.notified(r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.hasID {
		// An error about a whole batch has no id. It can only be told whose it is when one batch waits.
		if r.fault != nil && single {
			var only *wsWait
			for _, w := range c.waiting {
				if only != nil && only != w {
					return
				}
				only = w
			}
			if only != nil && only.left > 0 {
				only.err, only.left = parseFault(r.fault), 0
				close(only.delivered)
				clear(c.waiting)
			}
		}
		return
	}
	w := c.waiting[r.id]
	if w == nil {
		return // its asker has gone
	}
	delete(c.waiting, r.id)
	w.calls[r.id-w.first].answer(r)
	w.received += size
	if w.left--; w.left == 0 {
		close(w.delivered)
	}
}

func (c *wsConn) notified(r *response) {
	var p struct {
		Result Header `json:"result"`
	}
	if string(r.method) != "eth_subscription" || json.Unmarshal(r.params, &p) != nil {
		return
	}
	select { // only this goroutine sends
	case <-c.heads:
	default:
	}
	c.heads <- p.Result
}

func (c *wsConn) ping() {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.done:
			return
		case now := <-ticker.C:
			if c.c.WriteControl(websocket.PingMessage, nil, now.Add(pingEvery)) != nil {
				_ = c.c.Close()
				return
			}
		}
	}
}
