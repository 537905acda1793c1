package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socket returns a client of a server that answers each message by what answer makes of it.
func socket(t *testing.T, answer func(body []byte) []byte) *WS {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serveSocket(w, r, answer)
	}))
	client := NewWS(strings.Replace(server.URL, "http", "ws", 1), nil, nobody)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})

	return client
}

// An object that is no JSON-RPC ends the batch that waits, and its words count.
func TestSocketOfAGateway(t *testing.T) {
	for body, want := range map[string]Kind{
		`{"message":"Rate limit exceeded","connectionId":"a","requestId":"b"}`: RateLimited,
		`{"message":"Internal server error","connectionId":"a"}`:               Invalid,
	} {
		client := socket(t, func([]byte) []byte { return []byte(body) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := client.Exchange(ctx, []*Call{ByNumber(1)}, 1<<20)
		cancel()
		require.ErrorIs(t, err, ErrGarbled)
		require.Equal(t, want, Classify(err), "%v", err)
	}
}

// An error that names one request of a batch is about all of it, as over HTTP.
func TestSocketThatRefusesABatch(t *testing.T) {
	client := socket(t, func(body []byte) []byte {
		var batch []struct{ ID uint64 }
		if json.Unmarshal(body, &batch) != nil {
			return answers(body)
		}

		return fmt.Appendf(nil, `{"id":%d,"error":{"code":-32005,"message":"rate limit"}}`, batch[1].ID)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := client.Exchange(ctx, []*Call{ByNumber(1), ByNumber(2)}, 1<<20)
	require.Equal(t, RateLimited, Classify(err), "%v", err)
	_, err = client.Exchange(ctx, []*Call{ByNumber(1)}, 1<<20)
	require.NoError(t, err, "the connection lives")
}
