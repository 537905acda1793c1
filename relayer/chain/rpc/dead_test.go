package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// answers says yes to every request, with the method's name.
func answers(body []byte) []byte {
	var q struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.Unmarshal(body, &q)

	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%q}`, q.ID, q.Method)
}

// relay forwards connections to an address until they are frozen: then it swallows what those that
// exist send, as a balancer that lost its table. New ones work.
type relay struct {
	net.Listener
	generation atomic.Int64
	accepted   atomic.Int64
	mu         sync.Mutex
	open       []net.Conn
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			r.accepted.Add(1)
			up, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}

			r.mu.Lock()
			r.open = append(r.open, c, up)
			r.mu.Unlock()
			mine := r.generation.Load()
			pipe := func(to, from net.Conn) {
				b := make([]byte, 32<<10)
				for {
					n, err := from.Read(b)
					if err != nil {
						if r.generation.Load() == mine {
							_ = c.Close()
							_ = up.Close()
						}

						return
					}

					if r.generation.Load() == mine {
						_, _ = to.Write(b[:n])
					}
				}
			}
			wg.Go(func() { pipe(up, c) })
			wg.Go(func() { pipe(c, up) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		for _, c := range r.open {
			_ = c.Close()
		}

		r.mu.Unlock()
		wg.Wait()
	})

	return r
}

// back asks until there is an answer again, each time for at most patience, and says how long that took.
func back(t *testing.T, c Client, patience time.Duration) time.Duration {
	t.Helper()
	begun := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := c.Exchange(ctx, []*Call{{Method: "ping", Params: "[]"}}, 1<<20, nil)
		cancel()
		if err == nil {
			return time.Since(begun)
		}

		require.Less(t, time.Since(begun), time.Minute, "%v", err)
	}
}

// A connection that swallows packets is given up: over HTTP/2, where all requests share it, over
// HTTP/1.1 and over WebSocket.
func TestSwallowedConnections(t *testing.T) {
	for _, kind := range []string{"h2", "h1", "ws"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if websocket.IsWebSocketUpgrade(r) {
					serveSocket(w, r, func(body []byte) []byte { return answers(body) })
					return
				}

				body, _ := io.ReadAll(r.Body)
				_, _ = w.Write(answers(body))
			}))
			server.EnableHTTP2 = kind == "h2"
			var client Client
			if kind == "ws" {
				server.Start()
			} else {
				server.StartTLS()
			}

			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			r := startRelay(t, server.Listener.Addr().String())
			if kind == "ws" {
				client = NewWS("ws://"+r.Addr().String(), nil, nobody)
			} else {
				h := NewHTTP("https://"+r.Addr().String(), nil)
				pool := x509.NewCertPool()
				pool.AddCert(server.Certificate())
				h.base.TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "example.com"}
				client = h
			}

			t.Cleanup(client.Close)
			back(t, client, 10*time.Second)
			before := r.accepted.Load()
			r.generation.Add(1)
			took := back(t, client, 2*time.Second)
			t.Logf("back after %s, %d new connections", took.Round(100*time.Millisecond), r.accepted.Load()-before)
			require.Greater(t, r.accepted.Load(), before)
		})
	}
}

func nobody(context.Context, func(context.Context, *Call) error) error { return nil }

func serveSocket(w http.ResponseWriter, r *http.Request, answer func([]byte) []byte) {
	c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}

	defer func() { _ = c.Close() }()
	for {
		_, body, err := c.ReadMessage() // it answers pings by itself
		if err != nil {
			return
		}

		if b := answer(body); b != nil && c.WriteMessage(websocket.TextMessage, b) != nil {
			return
		}
	}
}

// A WebSocket that answers pings and no requests is given up after the first request without an answer.
func TestSocketWithoutUpstream(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mine := connections.Add(1)
		requests := 0
		serveSocket(w, r, func(body []byte) []byte {
			if requests++; mine == 1 && requests > 1 {
				return nil
			}

			return answers(body)
		})
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client := NewWS(strings.Replace(server.URL, "http", "ws", 1), nil, nobody)
	t.Cleanup(client.Close)
	back(t, client, 10*time.Second)
	back(t, client, 500*time.Millisecond)
	require.EqualValues(t, 2, connections.Load())
}

// An answer larger than the limit is not read to its end, and one that is announced so is not read at all.
func TestAnswerLimit(t *testing.T) {
	const limit = 1 << 20
	var wrote atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/announced" {
			w.Header().Set("Content-Length", fmt.Sprint(64*limit))
		}

		block := bytes.Repeat([]byte("x"), 64<<10)
		for range 64 * limit / len(block) {
			n, err := w.Write(block)
			if wrote.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	for _, path := range []string{"/announced", "/"} {
		client := NewHTTP(server.URL+path, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		traffic, err := client.Exchange(ctx, []*Call{{Method: "ping", Params: "[]"}}, limit, nil)
		cancel()
		client.Close()
		require.ErrorIs(t, err, ErrTooLarge)
		require.Equal(t, RangeTooLarge, Classify(err))
		require.LessOrEqual(t, traffic.Received, limit+1)
	}
}
