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
	l, err := net.Listen("tcp", "127.0.0.1:0")
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

// dialer and talk are a client that expects an echo.
func dialer(t *testing.T, p *TCP) func() net.Conn {
	return func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })

		return c
	}
}

func talk(t *testing.T, c net.Conn, within time.Duration) error {
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

// dark: the connection is open, and nothing comes.
func dark(t *testing.T, c net.Conn) {
	t.Helper()
	var timeout net.Error
	require.ErrorAs(t, talk(t, c, 100*time.Millisecond), &timeout)
	require.True(t, timeout.Timeout())
}

const soon = 10 * time.Second

func TestTCP(t *testing.T) {
	p, url, err := ProxyURL("postgres://u:p@" + echo(t) + "/db?x=1")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.Equal(t, "postgres://u:p@"+p.Addr()+"/db?x=1", url)
	dial := dialer(t, p)
	c := dial()
	require.NoError(t, talk(t, c, soon))

	undo := p.Slow(200 * time.Millisecond)
	begun := time.Now()
	require.NoError(t, talk(t, c, soon))
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond)
	require.NoError(t, undo())

	undo = p.Freeze()
	dark(t, c)
	dark(t, dial())
	require.NoError(t, undo())
	require.NoError(t, undo(), "a second time does nothing")
	require.Error(t, talk(t, c, soon), "what was lost is lost: the connection ends")
	require.NoError(t, talk(t, dial(), soon))

	c = dial()
	require.NoError(t, talk(t, c, soon))
	undo = p.Cut()
	again := p.Cut()
	require.NoError(t, again())
	require.Error(t, talk(t, c, soon))
	_, err = net.Dial("tcp", p.Addr())
	require.Error(t, err)
	require.NoError(t, undo())
	require.NoError(t, talk(t, dial(), soon))
}

// A swallowed connection stays open on both sides and is never heard of again, not even when it is closed.
func TestSwallow(t *testing.T) {
	ended := make(chan error, 8)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			wg.Go(func() {
				_, err := io.Copy(c, c)
				_ = c.Close()
				ended <- err
			})
		}
	})
	p, err := NewTCP(l.Addr().String())
	require.NoError(t, err)
	dial := dialer(t, p)

	old := dial()
	require.NoError(t, talk(t, old, soon))
	undo := p.Swallow(false)
	dark(t, old)
	require.NoError(t, talk(t, dial(), soon), "new connections work")
	require.NoError(t, <-closed(t, dial(), ended), "and end")
	require.NoError(t, old.Close())
	require.Empty(t, ended, "the server does not hear of the end")
	require.NoError(t, undo())
	p.Forget()
	<-ended

	old = dial()
	require.NoError(t, talk(t, old, soon))
	undo = p.Swallow(true)
	fresh := dial()
	dark(t, old)
	dark(t, fresh)
	require.NoError(t, undo())
	dark(t, old)
	dark(t, fresh)
	require.NoError(t, talk(t, dial(), soon))

	require.NoError(t, p.Close())
	require.NoError(t, l.Close())
	wg.Wait()
}

// closed closes a connection that has been used, and returns where the server says so.
func closed(t *testing.T, c net.Conn, ended chan error) chan error {
	require.NoError(t, talk(t, c, soon))
	require.NoError(t, c.Close())
	return ended
}

// What was sent during a Hold arrives when it is over.
func TestHold(t *testing.T) {
	p, err := NewTCP(echo(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := dialer(t, p)()
	require.NoError(t, talk(t, c, soon))

	undo := p.Hold(true)
	dark(t, c)
	require.NoError(t, undo())
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	require.NoError(t, talk(t, c, soon))
}

func TestTrap(t *testing.T) {
	p, err := NewTCP(echo(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	dial := dialer(t, p)
	a, b := dial(), dial()
	require.NoError(t, talk(t, a, soon))

	trap := p.Trap("hell")
	dark(t, a)
	<-trap.Caught()
	require.NoError(t, talk(t, b, soon), "only the first one is caught")
	trap.Release()
	require.NoError(t, a.SetDeadline(time.Now().Add(soon)))
	line, err := bufio.NewReader(a).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)

	idle := p.Trap("hello")
	idle.Release()
	require.NoError(t, talk(t, a, soon))
	select {
	case <-idle.Caught():
		require.Fail(t, "caught after its release")
	default:
	}
}
