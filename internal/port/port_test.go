package port

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reserved port refuses connections, serves whoever listens there, again and again, and is given to nobody else.
func TestReserve(t *testing.T) {
	r, err := Reserve()
	require.NoError(t, err)
	for range 3 {
		_, err = net.Dial("tcp", r.Addr())
		require.ErrorContains(t, err, "refused")
		l, err := net.Listen("tcp", r.Addr())
		require.NoError(t, err)
		c, err := net.Dial("tcp", r.Addr())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}

	all, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer all.Close()
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		require.NotEqual(t, r.Addr(), l.Addr().String())
		c, err := net.Dial("tcp", all.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		require.NotEqual(t, r.Addr(), c.LocalAddr().String())
	}

	require.NoError(t, r.Close())
	l, err := net.Listen("tcp", r.Addr())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, r.Close())
}
