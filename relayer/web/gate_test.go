package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// gated starts two servers behind one gate and returns their addresses.
func gatedServers(t *testing.T, g *Gate, h http.Handler) (addresses []string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	for range 2 {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addresses = append(addresses, ln.Addr().String())
		go func() { ended <- g.Serve(ctx, "test", ln, h, slog.New(slog.DiscardHandler)) }()
	}
	t.Cleanup(func() {
		cancel()
		require.NoError(t, errors.Join(<-ended, <-ended))
	})

	return addresses
}

// Clients that connect and say nothing, many times more than there is room for, on both ports: the process holds
// a bounded number, and whoever asks is answered, from the same address and from another.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	var g Gate
	addresses := gatedServers(t, &g, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok"))
	}))
	ask := func(from string) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		for _, a := range addresses {
			r, err := client.Get("http://" + a)
			require.NoError(t, err)
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.NoError(t, r.Body.Close())
			require.Equal(t, "ok", string(text))
		}
	}
	for n := range 3 * maxConns {
		conn, err := net.Dial("tcp", addresses[n%2])
		require.NoError(t, err)
		defer conn.Close()
	}

	ask("127.0.0.1")
	ask("127.0.0.2")
	g.mu.Lock()
	defer g.mu.Unlock()
	require.LessOrEqual(t, len(g.conns), maxPerClient+2, "one address has its share")
	require.Positive(t, g.waiting.Len())
}

// Requests that never arrive whole, from many addresses, more than there is room for: whoever asks is answered. The
// address with the most connections makes room, so that of one with few stays.
func TestSlowRequestsMakeRoom(t *testing.T) {
	t.Parallel()
	var g Gate
	address := gatedServers(t, &g, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("ok"))
	}))[0]
	dial := func(from string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n12345678"))
		require.NoError(t, err)

		return conn
	}
	few := dial("127.0.0.9")
	for n := range 3 * maxConns {
		dial(fmt.Sprint("127.0.0.", 1+n%4))
	}

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		r, err := client.Get("http://" + address)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusOK, r.StatusCode)
	}

	_, err := few.Write([]byte("9"))
	require.NoError(t, err)
	answer := make([]byte, 15)
	_, err = io.ReadFull(few, answer)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK", string(answer))
}

// One address with requests under way for as long as it may fills its share, and no other's.
func TestAnAddressHasAShare(t *testing.T) {
	t.Parallel()
	var g Gate
	g.init()
	conn := func(from string) net.Conn {
		return addressed{from: &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}
	}
	for range maxPerClient {
		c := g.admit(conn("192.0.2.1"))
		require.NotNil(t, c)
		g.arrived(c)
	}

	require.Nil(t, g.admit(conn("192.0.2.1")), "its requests are under way, and none makes room")
	var last *gated
	for range maxConns - maxPerClient {
		last = g.admit(conn("192.0.2.2"))
		require.NotNil(t, last)
		g.arrived(last)
	}

	for range few {
		c := g.admit(conn("192.0.2.3"))
		require.NotNil(t, c, "an address with few has its places")
		g.arrived(c)
	}

	require.Nil(t, g.admit(conn("192.0.2.3")), "all are at work")
	g.state(last, http.StateIdle)
	require.NotNil(t, g.admit(conn("192.0.2.3")))
	require.NoError(t, last.Close(), "which has left already")
	require.Len(t, g.conns, maxConns+few)
}

type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }
func (a addressed) Close() error         { return nil }

// Bodies together have a budget, which requests that are answered give back.
func TestBodiesHaveABudget(t *testing.T) {
	t.Parallel()
	var g Gate
	const size = 256 << 10
	full, release := make(chan struct{}), make(chan struct{})
	held := 0
	h := g.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if errors.Is(err, syscall.ENOBUFS) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}

		if err != nil {
			t.Error(err)
		}

		full <- struct{}{}
		<-release
	}))
	post := func(from string) int {
		r := httptest.NewRequest(http.MethodPost, "/commands", bytes.NewReader(make([]byte, size)))
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)

		return w.Code
	}
	ended := make(chan int)
	for ; held < maxBodies/size; held++ {
		go func() { ended <- post("192.0.2.1:9") }()
		<-full
	}

	require.Equal(t, http.StatusServiceUnavailable, post("192.0.2.2:9"))
	close(release)
	for range held {
		require.Equal(t, http.StatusOK, <-ended)
	}

	go func() { <-full }()
	require.Equal(t, http.StatusOK, post("192.0.2.2:9"), "what was answered counts no more")

}

// An address may post so often, whatever another one does.
func TestPostsOfAnAddressAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.handler(http.NotFoundHandler())
		for range postBurst {
			require.True(t, g.mayPost("192.0.2.3"))
		}

		require.False(t, g.mayPost("192.0.2.3"))
		require.True(t, g.mayPost("192.0.2.4"))
		time.Sleep(time.Second)
		for range postRate {
			require.True(t, g.mayPost("192.0.2.3"))
		}

		require.False(t, g.mayPost("192.0.2.3"))
	})
}

// Clients that read no answer are cut, whatever they have asked for.
func TestClientsThatDoNotReadAreCut(t *testing.T) {
	t.Parallel()
	var g Gate
	large := bytes.Repeat([]byte("x"), 16<<20) // more than the buffers of a connection hold
	cut := make(chan error, 1)
	addresses := gatedServers(t, &g, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(large)
		cut <- err
	}))
	conn, err := net.Dial("tcp", addresses[0])
	require.NoError(t, err)
	defer conn.Close()
	began := time.Now()
	_, err = conn.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 200))
	require.NoError(t, err)
	require.ErrorIs(t, <-cut, os.ErrDeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), unread)
}

// While two addresses hold every connection, with requests that are being served, a probe of a third one has its
// place.
func TestAProbeHasItsPlace(t *testing.T) {
	t.Parallel()
	var g Gate
	hold, held := make(chan struct{}), make(chan struct{}, 2*maxConns)
	addresses := gatedServers(t, &g, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			held <- struct{}{}
			<-hold
		}
	}))
	for n := range maxConns {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%2))}}
		conn, err := dialer.Dial("tcp", addresses[0])
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
		require.NoError(t, err)
		<-held
	}

	defer close(hold)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + addresses[1] + "/readyz")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusOK, r.StatusCode)
}
