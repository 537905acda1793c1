package rpc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// together asks so often at once that as many connections are open, and idle afterwards.
func together(t *testing.T, c Client, arrived *sync.WaitGroup, times int) {
	t.Helper()
	arrived.Add(times)
	var wg sync.WaitGroup
	errs := make([]error, times)
	for i := range times {
		wg.Go(func() { errs[i] = ask(t, c) })
	}

	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func ask(t *testing.T, c Client) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.Exchange(ctx, []*Call{{Method: "ping", Params: "[]"}}, 1<<20, nil)

	return err
}

// A server that ends all its idle connections just as the next request comes loses that request only: the
// second try does not meet another of them.
func TestIdleConnectionsThatEnd(t *testing.T) {
	const open = 8
	var arrived sync.WaitGroup
	var mu sync.Mutex
	ending := false
	used := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		ended := ending && used[r.RemoteAddr]
		first := !ending
		used[r.RemoteAddr] = true
		mu.Unlock()
		if ended {
			panic(http.ErrAbortHandler)
		}

		if first {
			arrived.Done()
			arrived.Wait() // so that no connection serves two of the first requests
		}

		_, _ = w.Write(answers(body))
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client := NewHTTP(server.URL, nil)
	t.Cleanup(client.Close)
	together(t, client, &arrived, open)
	mu.Lock()
	ending = true
	mu.Unlock()
	require.Error(t, ask(t, client))
	require.NoError(t, ask(t, client))
}

// piped is a server's end of connections within a bubble. A connection on which nothing came for 60 s is
// forgotten, as balancers do: what comes later is swallowed.
type piped struct {
	arrived chan net.Conn
	closed  chan struct{}
}

type forgetful struct {
	net.Conn
	last atomic.Pointer[time.Time]
}

func (c *forgetful) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		now, before := time.Now(), c.last.Load()
		if before != nil && now.Sub(*before) > time.Minute && err == nil {
			continue // and for good, as last stays
		}

		c.last.Store(&now)

		return n, err
	}
}

func (p *piped) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.arrived <- &forgetful{Conn: theirs}

	return ours, nil
}

func (p *piped) Accept() (net.Conn, error) {
	select {
	case c := <-p.arrived:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *piped) Close() error   { close(p.closed); return nil }
func (p *piped) Addr() net.Addr { return &net.TCPAddr{} }

// Connections that many requests at once have opened are not used again when a balancer has forgotten
// them: as here, where one request a little before the other would else keep both.
func TestIdleConnectionsThatAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var arrived sync.WaitGroup
		p := &piped{arrived: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			arrived.Done()
			arrived.Wait()
			_, _ = w.Write(answers(body))
		})}
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(p) })
		client := NewHTTP("http://node", p.dial)
		together(t, client, &arrived, 2)
		for range 7 {
			<-time.After(10 * time.Second)
			together(t, client, &arrived, 1)
		}

		begun := time.Now()
		together(t, client, &arrived, 2)
		require.Zero(t, time.Since(begun))
		client.Close()
		require.NoError(t, server.Close())
		wg.Wait()
	})
}
