package faults

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo is a server that repeats every line.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // no names to resolve
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
	t.Cleanup(func() { require.NoError(t, l.Close()); wg.Wait() })
	return l.Addr().String()
}

func TestTCP(t *testing.T) {
	p, url, err := ProxyURL("postgres://u:p@" + echo(t) + "/db?x=1")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.Equal(t, "postgres://u:p@"+p.Addr()+"/db?x=1", url)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr()) //nolint:noctx // no names to resolve
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	talk := func(c net.Conn, within time.Duration) error {
		require.NoError(t, c.SetDeadline(time.Now().Add(within)))
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return err
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil {
			require.Equal(t, "hello\n", line)
		}
		return err
	}
	c := dial()
	require.NoError(t, talk(c, 10*time.Second))

	undo, err := p.Slow(200 * time.Millisecond)
	require.NoError(t, err)
	begun := time.Now()
	require.NoError(t, talk(c, 10*time.Second))
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond)
	require.NoError(t, undo())

	undo, err = p.Freeze()
	require.NoError(t, err)
	var timeout net.Error
	require.ErrorAs(t, talk(c, 100*time.Millisecond), &timeout)
	require.True(t, timeout.Timeout(), "open, and nothing comes")
	c2 := dial()
	require.ErrorAs(t, talk(c2, 100*time.Millisecond), &timeout)
	require.NoError(t, undo())
	require.NoError(t, undo(), "a second time does nothing")
	require.Error(t, talk(c, 10*time.Second), "what was lost is lost: the connection ends")
	require.NoError(t, talk(dial(), 10*time.Second))

	c = dial()
	require.NoError(t, talk(c, 10*time.Second))
	undo = p.Cut()
	again := p.Cut()
	require.NoError(t, again())
	require.Error(t, talk(c, 10*time.Second))
	_, err = net.Dial("tcp", p.Addr()) //nolint:noctx // no names to resolve
	require.Error(t, err)
	require.NoError(t, undo())
	require.NoError(t, talk(dial(), 10*time.Second))
	require.Equal(t, []int{1, 1, 2}, []int{p.Injected("slow"), p.Injected("freeze"), p.Injected("cut")})
}
