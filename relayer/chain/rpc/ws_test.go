package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := client.Exchange(ctx, []*Call{ByNumber(1)}, 1<<20, nil)
		cancel()
		require.ErrorIs(t, err, ErrGarbled)
		require.Equal(t, want, Classify(err), "%v", err)
	}
}

// What proves a new connection is no beginning of the answer to the request that opened it.
func TestProofIsNoAnswer(t *testing.T) {
	client := socket(t, func(body []byte) []byte {
		if strings.Contains(string(body), GetLogs) {
			return nil
		}

		return answers(body)
	})
	client.prove = func(ctx context.Context, ask func(context.Context, *Call) error) error {
		return ask(ctx, &Call{Method: ChainID, Params: "[]"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	arrived := 0
	_, err := client.Exchange(ctx, []*Call{{Method: GetLogs, Params: "[{}]"}}, 1<<20, func() { arrived++ })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, arrived)
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client.Exchange(ctx, []*Call{ByNumber(1), ByNumber(2)}, 1<<20, nil)
	require.Equal(t, RateLimited, Classify(err), "%v", err)
	_, err = client.Exchange(ctx, []*Call{ByNumber(1)}, 1<<20, nil)
	require.NoError(t, err, "the connection lives")
}

// An answer that is too large fails the batch that it is for, where that can be told; whoever waits
// besides has lost the connection, and need not ask for less.
func TestSocketWithTooLargeAnAnswer(t *testing.T) {
	const limit = notificationLimit
	long := strings.Repeat("x", limit)
	for name, test := range map[string]struct {
		format   string // of the answer, with the id and the long text
		others   bool   // another batch waits
		tooLarge bool
	}{
		"one that waits":         {format: `{"result":"%[2]s","id":%[1]d}`, tooLarge: true},
		"id first":               {format: `{"jsonrpc":"2.0","id":%d,"result":"%s"}`, others: true, tooLarge: true},
		"an array":               {format: `[{"jsonrpc":"2.0","id":%d,"result":"%s"}]`, others: true, tooLarge: true},
		"id last":                {format: `{"result":"%[2]s","id":%[1]d}`, others: true},
		"an id within the words": {format: `{"result":[{"id":1},"%[2]s"],"id":%[1]d}`, others: true},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := make(chan struct{})
			client := socket(t, func(body []byte) []byte {
				var q struct {
					ID     uint64
					Method string
				}
				_ = json.Unmarshal(body, &q)
				if q.Method != "long" {
					close(waiting)
					return nil
				}

				return fmt.Appendf(nil, test.format, q.ID, long)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ask := func(method string) error {
				_, err := client.Exchange(ctx, []*Call{{Method: method, Params: "[]"}}, limit, nil)
				return err
			}
			other := make(chan error, 1)
			if test.others {
				go func() { other <- ask("other") }()
				<-waiting
			}

			err := ask("long")
			require.Equal(t, test.tooLarge, errors.Is(err, ErrTooLarge), "%v", err)
			require.Equal(t, !test.tooLarge, errors.Is(err, ErrDisconnected), "%v", err)
			if test.others {
				require.ErrorIs(t, <-other, ErrDisconnected)
			}
		})
	}
}

// What is asked after too large an answer goes over another connection, however soon it is asked.
func TestAfterTooLargeAnAnswer(t *testing.T) {
	client := socket(t, func(body []byte) []byte {
		var q struct {
			ID     uint64
			Method string
		}
		_ = json.Unmarshal(body, &q)
		length := map[string]int{"long": notificationLimit}[q.Method]

		return fmt.Appendf(nil, `{"id":%d,"result":"%s"}`, q.ID, strings.Repeat("x", length))
	})
	ask := func(method string) error {
		_, err := client.Exchange(t.Context(), []*Call{{Method: method, Params: "[]"}}, notificationLimit, nil)
		return err
	}
	require.ErrorIs(t, ask("long"), ErrTooLarge)
	require.NoError(t, ask("short"))
}

// Too large an answer of logs ends neither a subscription nor what else is asked.
func TestSocketApart(t *testing.T) {
	client := socket(t, func(body []byte) []byte {
		if strings.Contains(string(body), GetLogs) {
			return fmt.Appendf(nil, `{"id":1,"result":"%s"}`, strings.Repeat("x", notificationLimit))
		}

		return answers(body)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(method string) (*Call, error) {
		q := &Call{Method: method, Params: "[]"}
		_, err := client.Exchange(ctx, []*Call{q}, notificationLimit, nil)
		return q, err
	}
	q, err := ask(Subscribe)
	require.NoError(t, err)
	for range 2 {
		_, err = ask(GetLogs)
		require.Error(t, err)
	}

	_, err = ask(ChainID)
	require.NoError(t, err)
	select {
	case <-q.Subscription.Done:
		require.Fail(t, "the subscription ended", "%v", q.Subscription.Err())
	default:
	}
}

// subscribed is a subscription at a server which then does something to the connection.
func subscribed(t *testing.T, then func(c *websocket.Conn)) *Subscription {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}

		defer func() { _ = c.Close() }()
		_, body, _ := c.ReadMessage()
		_ = c.WriteMessage(websocket.TextMessage, answers(body))
		then(c)
		_, _, _ = c.ReadMessage()
	}))
	client := NewWS(strings.Replace(server.URL, "http", "ws", 1), nil, nobody)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := &Call{Method: Subscribe, Params: `["newHeads"]`}
	_, err := client.Exchange(ctx, []*Call{q}, notificationLimit, nil)
	require.NoError(t, err)

	return q.Subscription
}

// What a node says when it closes a connection is why that is over, and may mean its rate.
func TestSocketThatIsClosedWithWords(t *testing.T) {
	for words, want := range map[string]Kind{"rate limit exceeded": RateLimited, "internal error": Failed} {
		sub := subscribed(t, func(c *websocket.Conn) {
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.ClosePolicyViolation, words),
				time.Now().Add(time.Second))
		})
		<-sub.Done
		require.ErrorIs(t, sub.Err(), ErrDisconnected)
		require.ErrorContains(t, sub.Err(), words)
		require.Equal(t, want, Classify(sub.Err()))
	}
}

// A notification that tells of no block is no block, as one that the subscription has ended.
func TestNotificationsWithoutABlock(t *testing.T) {
	sub := subscribed(t, func(c *websocket.Conn) {
		for _, params := range []string{`{"subscription":"0x1","error":{"code":1,"message":"expired"}}`,
			`{"subscription":"0x1","result":null}`, `{"subscription":"0x1","result":"0xabc"}`, `{}`} {
			_ = c.WriteMessage(websocket.TextMessage,
				[]byte(`{"jsonrpc":"2.0","method":"eth_subscription","params":`+params+`}`))
		}

		_ = c.Close()
	})
	<-sub.Done
	require.Empty(t, sub.Heads)
}
