package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An object under 200 that is no JSON-RPC is of a gateway in front of the node. It is no lie of the
// node's, and its words count.
func TestObjectOfAGateway(t *testing.T) {
	for body, want := range map[string]Kind{
		`{"message":"You have exceeded the rate limit"}`:                                           RateLimited,
		`{"message":"API rate limit exceeded","request_id":"5d0"}`:                                 RateLimited,
		`{"status":"0","message":"NOTOK","result":"Max calls per sec rate limit reached (5/sec)"}`: RateLimited,
		`{"error":"Too many requests, reason: call rate limit exhausted, retry in 1s"}`:            RateLimited,
		`{}`: Invalid,
	} {
		t.Run(body, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, body)
			}))
			t.Cleanup(server.Close)
			client := NewHTTP(server.URL, nil)
			t.Cleanup(client.Close)
			for _, calls := range [][]*Call{{ByNumber(1)}, {ByNumber(1), ByNumber(2)}} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := client.Exchange(ctx, calls, 1<<20, nil)
				cancel()
				require.Equal(t, want, Classify(errors.Join(err, calls[0].Err)), "%v", err)
				if want == Invalid {
					require.ErrorIs(t, err, ErrGarbled)
				}
			}
		})
	}
}

// A node that answers only the first request of a batch, by an object, or none, by an empty array,
// is one that takes fewer requests at once; over WebSocket too, where nothing tells that no more comes.
func TestSocketThatAnswersAPartOfABatch(t *testing.T) {
	for name, reply := range map[string]func(batch []json.RawMessage) []byte{
		"the first": func(batch []json.RawMessage) []byte { return answers(batch[0]) },
		"none":      func([]json.RawMessage) []byte { return []byte("[]") },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				serveSocket(w, r, func(body []byte) []byte {
					var batch []json.RawMessage
					if json.Unmarshal(body, &batch) != nil {
						return answers(body)
					}

					return reply(batch)
				})
			}))
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			client := NewWS(strings.Replace(server.URL, "http", "ws", 1), nil, nobody)
			t.Cleanup(client.Close)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			calls := []*Call{ByNumber(1), ByNumber(2)}
			_, err := client.Exchange(ctx, calls, 1<<20, nil)
			require.ErrorIs(t, err, ErrUnanswered)
			require.Equal(t, BatchRefused, Classify(calls[1].Err))
		})
	}
}

// A redirect is not followed: it would carry a batch, and maybe a key, to a place that nobody configured. The error
// names the place, and no more of its URL.
func TestRedirectIsNamed(t *testing.T) {
	server := httptest.NewServer(http.RedirectHandler("https://other.example/v2/secret", http.StatusPermanentRedirect))
	t.Cleanup(server.Close)
	c := NewHTTP(server.URL, nil)
	t.Cleanup(c.Close)
	_, err := c.Exchange(t.Context(), []*Call{ByNumber(1)}, 1<<20, nil)
	require.ErrorContains(t, err, "https://other.example")
	require.ErrorContains(t, err, "308")
	require.NotContains(t, err.Error(), "secret")
}
