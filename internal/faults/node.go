package faults

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Node is a JSON-RPC endpoint in front of another. Its methods may be called concurrently, except Close.
type Node struct {
	upHTTP, upWS string
	addr         string
	seed         uint64
	faults       faults
	client       *http.Client
	server       *http.Server
	base         context.Context
	end          context.CancelFunc
	wg           sync.WaitGroup

	mu       sync.Mutex
	random   *rand.Rand
	requests map[string]int // by method
	onSend   func(raw []byte) bool
}

// OnSend has do called with each transaction that is sent, before the node behind gets it. What do
// says no to is dropped: the connection ends without an answer. It is called concurrently.
func (n *Node) OnSend(do func(raw []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onSend = do
}

// NewNode listens on a free port of 127.0.0.1, for HTTP and WebSocket alike.
func NewNode(upHTTP, upWS string, seed uint64) (*Node, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // no names to resolve
	if err != nil {
		return nil, fmt.Errorf("listen for JSON-RPC: %w", err)
	}

	n := &Node{
		upHTTP: upHTTP, upWS: upWS, addr: l.Addr().String(), seed: seed, faults: faults{changed: make(chan struct{})},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
		random: rand.New(rand.NewPCG(seed, 0xfa17)), requests: map[string]int{},
	}
	n.base, n.end = context.WithCancel(context.Background())
	n.server = &http.Server{Handler: n, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	n.wg.Go(func() { _ = n.server.Serve(l) })

	return n, nil
}

// HTTP is its URL for requests.
func (n *Node) HTTP() string { return "http://" + n.addr }

// WS is its URL for subscriptions.
func (n *Node) WS() string { return "ws://" + n.addr }

// Inject puts a fault into force. Several may be.
func (n *Node) Inject(f Fault) *Injected { return n.faults.inject(f) }

// Requests is how often a method was asked for.
func (n *Node) Requests(method string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.requests[method]
}

// Items is how many items of all methods were asked for.
func (n *Node) Items() (items int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, asked := range n.requests {
		items += asked
	}

	return items
}

// Close ends the endpoint and its connections.
func (n *Node) Close() error {
	n.end()
	err := n.server.Close()
	n.wg.Wait()
	n.client.CloseIdleConnections()

	return err
}

func (n *Node) chance(p float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p == 0 || n.random.Float64() < p
}

func (n *Node) number(below int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.IntN(below)
}

// ServeHTTP answers a request, or turns the connection into a WebSocket.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if websocket.IsWebSocketUpgrade(r) {
		n.socket(w, r)
		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(n.base, cancel)()
	a := n.answer(ctx, body)
	if a.drop {
		panic(http.ErrAbortHandler) // the server's way to end a connection without a word
	}

	if a.retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatFloat(a.retry.Seconds(), 'f', -1, 64))
	}

	w.Header().Set("Content-Type", a.kind)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// answer to a message.
type answer struct {
	drop   bool // the connection ends instead
	status int
	retry  time.Duration
	kind   string // content type
	body   []byte
}

// refusal is what providers answer over WebSocket where they would answer 429 over HTTP.
const refusal = `{"jsonrpc":"2.0","id":%s,"error":{"code":429,"message":"Your app has exceeded its compute units per second capacity"}}`

const page = "<!DOCTYPE html><html><head><title>Just a moment...</title></head><body>Checking your browser before accessing the node.</body></html>"

// answer asks the node behind, and makes of its answer what the faults want.
func (n *Node) answer(ctx context.Context, body []byte) answer {
	list, _ := n.faults.active()
	ok := answer{status: http.StatusOK, kind: "application/json"}
	for _, f := range list {
		switch f.Mode {
		case Down, Slow, Limited, Failing, Truncated, Malformed, HTML:
		case Rate:
			if f.take(items(body)) {
				continue
			}
		default:
			continue
		}

		if !n.chance(f.Share) {
			continue
		}

		f.hits.Add(1)
		switch f.Mode {
		case Down:
			return answer{drop: true}
		case Slow:
			timer := time.NewTimer(f.Delay)
			select {
			case <-timer.C:
			case <-f.removed:
			case <-ctx.Done():
			}

			timer.Stop()
		case Limited, Rate:
			return answer{status: cmp.Or(f.Status, http.StatusTooManyRequests), retry: f.Delay, kind: "text/plain",
				body: []byte("too many requests\n")}
		case Failing:
			return answer{status: http.StatusInternalServerError + n.number(5), kind: "text/plain",
				body: []byte("upstream failure\n")}
		case HTML:
			return answer{status: http.StatusOK, kind: "text/html", body: []byte(page)}
		case Malformed:
			return answer{status: http.StatusOK, kind: "application/json", body: []byte(`{"jsonrpc":"2.0","id":1,"result":[}`)}
		case Truncated:
			full, err := n.lie(ctx, list, body)
			if err != nil {
				return answer{drop: true}
			}

			ok.body = full[:len(full)/2]

			return ok
		}
	}

	var err error
	if ok.body, err = n.lie(ctx, list, body); err != nil {
		return answer{drop: true}
	}

	return ok
}

// items of a message.
func items(body []byte) int {
	list, _, err := parse[request](body)
	if err != nil {
		return 1
	}

	return len(list)
}

// post asks the node behind.
func (n *Node) post(ctx context.Context, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.upHTTP, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	req.Header.Set("Content-Type", "application/json")
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}

	return b, err
}
