package chain

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// User and password of a URL reach the node in the same header, whatever the transport.
func TestCredentials(t *testing.T) {
	chain := newChain(10, 1, 0)
	for _, scheme := range []string{"http", "ws"} {
		node := startNode(t, chain)
		var refused atomic.Int32
		node.set(func() {
			node.http = func(w http.ResponseWriter, r *http.Request) bool {
				if user, password, ok := r.BasicAuth(); ok && user == "project" && password == "s:e/cret" {
					return false
				}

				refused.Add(1)
				w.WriteHeader(http.StatusUnauthorized)

				return true
			}
		})
		s := start(t, Config{URLs: []string{strings.Replace(node.server.URL, "http://", scheme+"://project:s%3Ae%2Fcret@",
			1)}, ChainID: 1, Finality: Latest})
		await(t, s, func(v View) bool { return v.Head == 10 })
		require.Zero(t, refused.Load(), scheme)
	}
}

// A redirect is refused, whatever its kind: it would carry the batch, and the key, to a host that nobody configured.
func TestRedirectIsRefused(t *testing.T) {
	chain := newChain(10, 1, 0)
	for _, scheme := range []string{"http", "ws"} {
		for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
			http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			foreign, node := startNode(t, chain), startNode(t, chain)
			var reached, asked atomic.Int32
			foreign.set(func() {
				foreign.http = func(http.ResponseWriter, *http.Request) bool { reached.Add(1); return false }
			})
			node.set(func() {
				node.http = func(w http.ResponseWriter, r *http.Request) bool {
					asked.Add(1)
					http.Redirect(w, r, strings.Replace(foreign.server.URL, "http", scheme, 1)+"/elsewhere", status)
					return true
				}
			})
			s := New(Config{URLs: []string{strings.Replace(node.server.URL, "http://", scheme+"://project:secret@", 1) +
				"/v3/0123456789abcdef"}, ChainID: 1})
			err := s.Check(t.Context(), emitter)
			s.Close()
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorContains(t, err, strconv.Itoa(status))
			require.NotContains(t, err.Error(), "0123456789abcdef")
			require.NotZero(t, asked.Load())
			require.Zero(t, reached.Load(), "%s %d", scheme, status)
		}
	}
}
