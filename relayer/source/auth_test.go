package source

import (
	"net/http"
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
		s := start(t, Config{URLs: []string{strings.Replace(node.server.URL, "http://", scheme+"://project:s%3Ae%2Fcret@", 1)}, ChainID: 1, Finality: Latest})
		await(t, s, func(v View) bool { return v.Head == 10 })
		require.Zero(t, refused.Load(), scheme)
	}
}
