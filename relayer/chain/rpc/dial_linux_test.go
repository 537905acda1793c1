package rpc

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hole listens and takes no connection: its queue is full, so the kernel does not answer what comes.
func hole(t *testing.T, ip [4]byte) (port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: ip}))
	require.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	port = name.(*syscall.SockaddrInet4).Port
	address := (&net.TCPAddr{IP: ip[:], Port: port}).String()
	for {
		c, err := (&net.Dialer{Timeout: 500 * time.Millisecond}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return port
		}

		t.Cleanup(func() { _ = c.Close() })
	}
}

// resolve has every name mean some addresses, in this order, until the test ends.
func resolve(t *testing.T, ips ...[4]byte) {
	t.Helper()
	server, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	before := net.DefaultResolver
	ended := make(chan struct{})
	t.Cleanup(func() { net.DefaultResolver = before; _ = server.Close(); <-ended })
	net.DefaultResolver = &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
		}}
	go func() {
		defer close(ended)
		b := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}

			// the end of the question: after the header come a name, which a zero ends, type and class
			end := 12 + bytes.IndexByte(b[12:n], 0) + 5
			kind := b[end-3]
			said := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end]...)
			for _, ip := range ips {
				if kind == 1 { // A
					said[7]++
					said = append(said, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, ip[0], ip[1], ip[2], ip[3])
				}
			}

			_, _ = server.WriteTo(said, from)
		}
	}()
}

// Of a name's addresses the first swallows what is sent to it: a request gets to the second within its time.
func TestFirstAddressSwallows(t *testing.T) {
	dead, alive := [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 2}
	port := hole(t, dead)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(answers(body))
	}))
	require.NoError(t, server.Listener.Close())
	address := (&net.TCPAddr{IP: alive[:], Port: port}).String()
	var err error
	server.Listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	resolve(t, dead, alive)
	url := strings.Replace(server.URL, "127.0.0.2", "node.test", 1)
	client := NewHTTP(url, nil)
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // as package node gives a request
	defer cancel()
	_, err = client.Exchange(ctx, []*Call{{Method: "ping", Params: "[]"}}, 1<<20, nil)
	require.NoError(t, err)
}
