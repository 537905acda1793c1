package rpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

const (
	// A connection that stays silent for two pings is dead.
	pingEvery  = 4 * time.Second
	wsDeadline = 2*pingEvery + time.Second
	// writeDeadline is for a request to leave; the largest has some 2 MB.
	writeDeadline = 5 * time.Second
	// notificationLimit bounds an unasked message, in bytes: a header has some 2 kB.
	notificationLimit = 1 << 20
)

// WS sends batches over a WebSocket connection, which the first use opens, and the next one after it broke opens
// again. Answers that stream, which may be large, have a second one: too large an answer ends its connection, and the
// announcements over it.
type WS struct {
	url         string
	client      *http.Client // opens connections
	prove       func(ctx context.Context, ask func(context.Context, *Call) error) error
	ids         atomic.Uint64
	wg          sync.WaitGroup // the goroutines of all connections
	main, apart wsLine
}

// wsLine is the connection that was opened last, of those for one kind of requests.
type wsLine struct {
	turn chan struct{} // a token: whoever has it may use conn, and replace it
	conn *wsConn
}

// NewWS returns a client of a ws or wss URL, without a connection as yet. prove judges each new
// connection before its use. dial may be nil.
func NewWS(url string, dial Dial,
	prove func(ctx context.Context, ask func(context.Context, *Call) error) error) *WS {
	client := &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: orNetwork(dial),
			DisableKeepAlives: true, ReadBufferSize: 64 << 10, MaxResponseHeaderBytes: headerLimit},
	}

	return &WS{url: url, client: client, prove: prove, main: wsLine{turn: make(chan struct{}, 1)},
		apart: wsLine{turn: make(chan struct{}, 1)}}
}

// Subscription follows the head over one connection, and ends with it.
type Subscription struct {
	Heads <-chan Header   // the newest; older ones that nobody took are dropped
	Done  <-chan struct{} // closed when the connection is over
	conn  *wsConn
}

// Err is why the connection is over, once Done is closed.
func (s *Subscription) Err() error { return s.conn.cause }

// End ends the connection of the subscription, so that the next one is made over a new one.
func (s *Subscription) End() { s.conn.close() }

// Close ends the connections, after those that are being opened, and waits for all goroutines.
func (t *WS) Close() {
	for _, l := range []*wsLine{&t.main, &t.apart} {
		l.turn <- struct{}{}
		defer func() { <-l.turn }()
		if l.conn != nil {
			l.conn.close()
		}
	}

	t.wg.Wait()
}

// Exchange implements Client.
func (t *WS) Exchange(ctx context.Context, calls []*Call, limit int64, arrived func()) (Traffic, error) {
	conn, err := t.connect(ctx, slices.ContainsFunc(calls, (*Call).Streams))
	if err != nil {
		return Traffic{}, err
	}

	return t.over(ctx, conn, calls, limit, arrived)
}

// connect returns a connection, opening it first where need be.
func (t *WS) connect(ctx context.Context, apart bool) (*wsConn, error) {
	l := &t.main
	if apart {
		l = &t.apart
	}

	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	if l.conn != nil && !l.conn.closed.Load() {
		return l.conn, nil
	}

	conn, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}

	// The connection is used once it has proven to be the right chain's. That is no answer to what it is for.
	err = t.prove(ctx, func(ctx context.Context, q *Call) error {
		_, err := t.over(ctx, conn, []*Call{q}, notificationLimit, nil)
		return err
	})
	if err != nil {
		conn.close()
		return nil, err
	}

	l.conn = conn

	return conn, nil
}

func (t *WS) dial(ctx context.Context) (*wsConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn := &wsConn{done: make(chan struct{}), waiting: map[*wsWait]struct{}{}, heads: make(chan Header, 1)}
	// No message is read before the first use of conn.
	c, resp, err := websocket.Dial(ctx, t.url, &websocket.DialOptions{HTTPClient: t.client,
		OnPongReceived: func(context.Context, []byte) { conn.alive() }})
	if err != nil {
		if resp != nil {
			refused := newMessage(resp.Body, maxPage).refusal(resp.StatusCode)
			noteRetry(refused, retryAfter(resp.Header.Get("Retry-After"), time.Now()))

			return nil, refused
		}

		return nil, err
	}

	c.SetReadLimit(-1) // each message has a limit of its own
	conn.c, conn.silent = c, time.AfterFunc(wsDeadline, conn.close)
	t.wg.Go(conn.read)
	t.wg.Go(conn.ping)

	return conn, nil
}

// over sends a batch over a certain connection.
func (t *WS) over(ctx context.Context, conn *wsConn, calls []*Call, limit int64, arrived func()) (Traffic, error) {
	first := t.ids.Add(uint64(len(calls))) - uint64(len(calls)) + 1
	w, err := conn.await(first, calls, limit, arrived)
	if err != nil {
		return Traffic{}, err
	}

	body := encode(calls, first)
	traffic := Traffic{Sent: len(body)}
	if err := conn.send(ctx, body); err != nil {
		conn.close() // half a message may have gone out
		conn.giveUp(w, false)
		return traffic, fmt.Errorf("%w: %w", ErrDisconnected, err)
	}

	select {
	case <-w.delivered:
	case <-ctx.Done():
		conn.giveUp(w, late(ctx))
		return traffic, context.Cause(ctx)
	}

	traffic.Received = w.received
	for i, c := range calls {
		if c.Answer = w.calls[i].Answer; c.Method == Subscribe && c.Err == nil {
			c.Subscription = &Subscription{Heads: conn.heads, Done: conn.done, conn: conn}
		}
	}

	return traffic, w.err
}

// wsConn is one connection. Its two goroutines, read and ping, end when it does. mu guards the
// batches that wait: a batch is in waiting until its delivered is closed or its asker has gone. After
// done it stays as it is.
type wsConn struct {
	c      *websocket.Conn
	silent *time.Timer   // closes the connection, unless something arrives
	closed atomic.Bool   // close was called
	done   chan struct{} // closed when the connection is over
	heads  chan Header   // of the subscription: the newest, older ones are dropped

	mu       sync.Mutex
	waiting  map[*wsWait]struct{}
	answered int    // messages with answers, ever
	arriving uint64 // the first id in the message that is arriving; 0: it has named none
	cause    error  // why it is over, or will be
}

// wsWait is a batch that waits for its answer. The reader fills in the calls until delivered is closed.
type wsWait struct {
	first     uint64
	calls     []*Call
	limit     int64
	arrived   func() // to be called when its answer begins to arrive; nil: none, or it was
	before    int    // wsConn.answered when it was sent
	received  int
	err       error
	delivered chan struct{}
}

// close ends the connection, which nobody uses any more from then on. It may be called at any time, by several.
func (c *wsConn) close() {
	c.closed.Store(true)
	_ = c.c.CloseNow()
}

// alive notes that something has arrived.
func (c *wsConn) alive() { c.silent.Reset(wsDeadline) }

func (c *wsConn) await(first uint64, calls []*Call, limit int64, arrived func()) (*wsWait, error) {
	w := &wsWait{first: first, calls: make([]*Call, len(calls)), limit: limit, arrived: arrived,
		delivered: make(chan struct{})}
	for i, call := range calls { // copies: the reader may be at them when the asker has gone
		w.calls[i] = &Call{Method: call.Method, Keep: call.Keep, Encode: call.Encode}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, ErrDisconnected
	}

	w.before = c.answered
	c.waiting[w] = struct{}{}

	return w, nil
}

func (c *wsConn) send(ctx context.Context, body []byte) error {
	deadline := time.Now().Add(writeDeadline) // what ctx ends goes on until then
	if before, ok := ctx.Deadline(); ok && before.Before(deadline) {
		deadline = before
	}

	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()

	return c.c.Write(ctx, websocket.MessageText, body)
}

// giveUp ends the asker's waiting. After a deadline that has passed, a connection that has answered only
// pings meanwhile is closed.
func (c *wsConn) giveUp(w *wsWait, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, w)
	if late && c.answered == w.before && !c.closed.Load() {
		c.cause = ErrAbandoned
		c.close()
	}
}

// finish ends a batch's waiting. Held: mu.
func (c *wsConn) finish(w *wsWait, err error) {
	delete(c.waiting, w)
	w.err = err
	close(w.delivered)
}

// find returns the batch that waits for an answer with such an id; nil: none. Held: mu.
func (c *wsConn) find(id uint64) *wsWait {
	for w := range c.waiting {
		if id-w.first < uint64(len(w.calls)) {
			return w
		}
	}

	return nil
}

// limit is the most that a message may have now, in bytes.
func (c *wsConn) limit() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := int64(notificationLimit)
	for w := range c.waiting {
		limit = max(limit, w.limit)
	}

	return limit
}

// read receives until the connection ends, and then ends all waits.
func (c *wsConn) read() {
	cause := ErrDisconnected
	defer func() {
		c.close()
		c.silent.Stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cause = cmp.Or(c.cause, cause)
		for w := range c.waiting {
			c.finish(w, c.cause)
		}

		close(c.done)
	}()
	for {
		_, r, err := c.c.Reader(context.Background()) // silent ends it
		if err != nil {
			cause = farewell(err)
			return
		}

		m := newMessage(&progress{r, c.alive}, c.limit())
		list, single, err := m.responses(maxResponses, c.asked)
		switch {
		case errors.Is(m.broken, ErrTooLarge), errors.Is(m.broken, ErrOversized):
			if errors.Is(m.broken, ErrOversized) {
				cause = m.broken
			}

			c.close() // before its asker asks for less
			c.tooLarge(m.broken)

			return
		case m.broken != nil:
			return
		case err != nil:
			cause = err
			return
		}

		c.alive()
		c.route(m, list, single)
		_, _ = io.CopyN(io.Discard, r, maxPage) // as a line's end; with more behind the answer there is no next message
	}
}

// farewell is the cause of a connection's end, with the words that the node closed it with.
func farewell(err error) error {
	said, is := errors.AsType[websocket.CloseError](err)
	if !is { // it said nothing
		return ErrDisconnected
	}

	err = fmt.Errorf("%w: node says %q (code %d)", ErrDisconnected, said.Reason, said.Code)
	if fromWords(strings.ToLower(said.Reason)) == RateLimited {
		return fmt.Errorf("%w: %w", ErrRate, err)
	}

	return err
}

// asked is the request that waits for an answer with such an id; nil: none.
func (c *wsConn) asked(id uint64, known bool) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known {
		c.arriving = cmp.Or(c.arriving, id)
	}

	if w := c.find(id); w != nil && known {
		if w.arrived != nil {
			w.arrived()
			w.arrived = nil
		}

		return w.calls[id-w.first]
	}

	return nil
}

// tooLarge ends the batch that has too large an answer, so that it asks for less: the one that the answer has named, or
// else the only one that waits. The others' answers are merely lost.
func (c *wsConn) tooLarge(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiting {
		if w == c.find(c.arriving) || c.arriving == 0 && len(c.waiting) == 1 {
			c.finish(w, err)
			return
		}
	}
}

// progress is a message that takes long to arrive: while it arrives, the connection lives.
type progress struct {
	r     io.Reader
	alive func()
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.alive()
	}

	return n, err
}

// route hands a message to the batch that waits for it, or to the subscription. A message is the whole
// answer to a batch, even where it is one object: what it lacks does not come.
func (c *wsConn) route(m *message, list []response, single bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arriving = 0
	answers := len(list) == 0
	for i := range list {
		switch r := &list[i]; {
		case r.method != "":
			c.notify(r)
		case !r.hasID:
			answers = answers || single || r.fault != nil
		default:
			c.answered++
			if w := c.find(r.id); w != nil {
				w.received = int(m.read)
				c.finish(w, m.fill(list, single, w.calls, w.first))
			}
		}
	}

	if answers {
		c.unnamed(m, list, single)
	}
}

// unnamed takes an answer that names no request. It belongs to a batch for certain only when one waits;
// but a limit of the rate concerns all that wait, and an empty list all that are more than a request. Held: mu.
func (c *wsConn) unnamed(m *message, list []response, single bool) {
	all := len(list) > 0 && list[0].fault != nil && Classify(parseFault(list[0].fault)) == RateLimited
	only := len(c.waiting) == 1
	for w := range c.waiting {
		if only || all || len(list) == 0 && len(w.calls) > 1 {
			c.answered++
			c.finish(w, m.fill(list, single, w.calls, w.first))
		}
	}
}

func (c *wsConn) notify(r *response) {
	var h Header // an error: it says something else, as that the subscription has ended
	if !strings.HasSuffix(r.method, "_subscription") || json.Unmarshal(r.params, &h) != nil {
		return
	}

	select { // only the reader sends
	case <-c.heads:
	default:
	}

	c.heads <- h
}

func (c *wsConn) ping() {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-ticker.C:
			// Its answer may come late, behind a large message: whether anything arrives is what counts.
			ctx, cancel := context.WithTimeout(context.Background(), pingEvery)
			_ = c.c.Ping(ctx)
			cancel()
		}
	}
}
