package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	gethrpc "github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// backlog reads the blocks from..to as a watch does, again after an error, and returns the block
// after the last that it had when all were read or the time was over. Their logs have to be all
// there are.
func backlog(t *testing.T, s *Source, chain *testChain, from, to uint64, limit time.Duration) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for from <= to && ctx.Err() == nil {
		for b, err := range s.Read(ctx, from, to, filterA()) {
			if err != nil {
				break
			}

			require.Equal(t, chain.matching(b.From, b.To), b.Logs, "blocks %d to %d", b.From, b.To)
			from = b.To + 1
		}

		if from <= to {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}

	return from
}

// Whatever a provider says when a range is too large, or even says nothing, a backlog is read to
// the end, with few refused requests.
func TestProfiles(t *testing.T) {
	const blocks = 3000
	body := func(w http.ResponseWriter, status int, contentType, text string) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
	pages := map[string]func(w http.ResponseWriter, r *http.Request){
		"413":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) },
		"bare 503": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"bare 504": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) },
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			body(w, 200, "text/html", "<html><h1>502 Bad Gateway</h1></html>")
		},
		"a page under 502": func(w http.ResponseWriter, _ *http.Request) {
			body(w, 502, "text/html", "<html><h1>Bad Gateway</h1></html>")
		},
		"dropped": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"error under 400": func(w http.ResponseWriter, _ *http.Request) {
			body(w, 400, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}`)
		},
		"in data":           nil,
		"in unknown words":  nil,
		"geth's timeout":    nil,
		"Nethermind's":      nil,
		"Alchemy's 150 MB":  nil,
		"with a range":      nil,
		"one item too slow": nil,
	}
	words := map[string]string{
		"in data": `{"code":-32602,"message":"invalid params","data":{"payload":"range 512 is bigger than range limit 100"}}`, "in unknown words": `{"code":-32000,"message":"nay"}`,
		"geth's timeout":    `{"code":-32002,"message":"request timed out"}`,
		"Nethermind's":      `{"code":-32016,"message":"eth_getLogs request was canceled due to enabled timeout."}`,
		"Alchemy's 150 MB":  `{"code":-32000,"message":"Response size is larger than 150MB limit"}`,
		"with a range":      `{"code":-32600,"message":"You can make eth_getLogs requests with up to a 100 block range."}`,
		"one item too slow": `{"code":-32000,"message":"context deadline exceeded"}`,
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(blocks, 10, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = blocks
				var refused atomic.Int64
				n.http = func(w http.ResponseWriter, r *http.Request) bool {
					b, _ := io.ReadAll(r.Body)
					var batch []testRequest
					if json.Unmarshal(b, &batch) != nil {
						batch = make([]testRequest, 1)
						_ = json.Unmarshal(b, &batch[0])
					}

					large := func(q testRequest) bool {
						if q.Method != rpc.GetLogs {
							return false
						}

						f := parseQuery(t, q.Params[0])

						return f.ToBlock-f.FromBlock+1 > 101
					}
					if !slices.ContainsFunc(batch, large) {
						_, _ = w.Write(n.serve(b, nil))
						return true
					}

					refused.Add(1)
					if page != nil {
						page(w, r)
						return true
					}

					var answers []string
					for _, q := range batch {
						if large(q) {
							answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, words[name]))
						} else {
							answers = append(answers, string(n.serve(marshal(q), nil)))
						}
					}

					_, _ = io.WriteString(w, "["+strings.Join(answers, ",")+"]")

					return true
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Dial: p.dial})
				await(t, s, func(v View) bool { return v.Final == blocks })
				require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, 2*time.Minute))
				t.Logf("%d refused", refused.Load())
				require.LessOrEqual(t, refused.Load(), int64(20))
			})
		})
	}
}

// ethAPI serves a testNode through geth's own server.
type ethAPI struct{ n *testNode }

func (a ethAPI) ChainId() string { return "0x1" }

func (a ethAPI) ask(method string, params ...any) (any, error) {
	list := make([]json.RawMessage, len(params))
	for i, p := range params {
		list[i] = marshal(p)
	}

	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	a.n.asked[method]++
	result, err := a.n.answer(method, list)
	if string(marshal(result)) == "null" {
		return nil, err
	}

	return result, err
}

func (a ethAPI) GetBlockByNumber(tag string, _ bool) (any, error) {
	return a.ask(rpc.GetByNumber, tag, false)
}
func (a ethAPI) GetBlockByHash(h string, _ bool) (any, error) { return a.ask(rpc.GetByHash, h, false) }
func (a ethAPI) GetLogs(q map[string]any) (any, error)        { return a.ask(rpc.GetLogs, q) }

// geth's own server with --rpc.batch-request-limit: an array of one error for the first id.
func TestBatchLimitOfGeth(t *testing.T) {
	for _, limit := range []int{1, 2, 7} {
		for _, kind := range []string{"http", "ws"} {
			t.Run(fmt.Sprintf("%d over %s", limit, kind), func(t *testing.T) {
				t.Parallel()
				chain := newChain(120, 3, 0)
				n := startNode(t, chain)
				n.finalized = 30
				server := gethrpc.NewServer()
				server.SetBatchLimits(limit, 25<<20)
				require.NoError(t, server.RegisterName("eth", ethAPI{n}))
				var handler http.Handler = server
				if kind == "ws" {
					handler = server.WebsocketHandler([]string{"*"})
				}

				front := httptest.NewServer(handler)
				t.Cleanup(func() { front.CloseClientConnections(); front.Close(); server.Stop() })
				s := start(t, Config{URLs: []string{strings.Replace(front.URL, "http", kind, 1)}, ChainID: 1, Finality: Latest,
					PollInterval: 20 * time.Millisecond})
				await(t, s, func(v View) bool { return v.Head == 120 && v.Final == 30 })
				require.EqualValues(t, 121, backlog(t, s, chain, 1, 120, time.Minute))
				require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)
			})
		}
	}
}

// Batches that are refused in other ways: by a status, by a page, for each item, without a word, or
// answered for the first item only.
func TestBatchesRefused(t *testing.T) {
	ways := map[string]func(w http.ResponseWriter, n *testNode, batch []testRequest){
		"first only": func(w http.ResponseWriter, n *testNode, batch []testRequest) {
			_, _ = fmt.Fprintf(w, "[%s]", n.serve(marshal(batch[0]), nil))
		},
		"each item": func(w http.ResponseWriter, _ *testNode, batch []testRequest) {
			var list []string
			for _, q := range batch {
				list = append(list, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"not permitted"}}`,
					q.ID))
			}

			_, _ = io.WriteString(w, "["+strings.Join(list, ",")+"]")
		},
		"one error": func(w http.ResponseWriter, _ *testNode, _ []testRequest) {
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"expected an object"}}`)
		},
		"one error in an array": func(w http.ResponseWriter, _ *testNode, _ []testRequest) {
			_, _ = io.WriteString(w,
				`[{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too many [\"eth_getLogs\"] methods in the batch"}}]`)
		},
		"a page":  func(w http.ResponseWriter, _ *testNode, _ []testRequest) { _, _ = io.WriteString(w, "<html>no</html>") },
		"dropped": func(http.ResponseWriter, *testNode, []testRequest) { panic(http.ErrAbortHandler) },
	}
	for _, status := range []int{400, 403, 405, 413, 500, 501} {
		ways[fmt.Sprint(status)] = func(w http.ResponseWriter, _ *testNode, _ []testRequest) { w.WriteHeader(status) }
	}

	for name, refuse := range ways {
		for _, most := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s beyond %d", name, most), func(t *testing.T) {
				t.Parallel()
				chain := newChain(100, 3, 0)
				n := startNode(t, chain)
				n.finalized = 30
				var refused atomic.Int64
				n.http = func(w http.ResponseWriter, r *http.Request) bool {
					b, _ := io.ReadAll(r.Body)
					var batch []testRequest
					if json.Unmarshal(b, &batch) == nil && len(batch) > most {
						refused.Add(1)
						refuse(w, n, batch)
					} else {
						_, _ = w.Write(n.serve(b, nil))
					}

					return true
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest,
					PollInterval: 20 * time.Millisecond})
				await(t, s, func(v View) bool { return v.Head == 100 && v.Final == 30 })
				require.EqualValues(t, 101, backlog(t, s, chain, 1, 100, time.Minute))
				require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)
				require.LessOrEqual(t, refused.Load(), int64(12))
			})
		}
	}
}

// limiter refuses what exceeds a rate, in items, as a provider does.
type limiter struct {
	mu      sync.Mutex
	tokens  float64
	at      time.Time
	refused int
	sent    []time.Time
}

func (l *limiter) take(n int) bool {
	const rate, burst = 5, 10
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.at.IsZero() {
		l.tokens, l.at = burst, now
	}

	l.tokens, l.at = min(l.tokens+rate*now.Sub(l.at).Seconds(), burst), now
	for range n {
		l.sent = append(l.sent, now)
	}

	if l.tokens < float64(n) {
		l.refused++
		return false
	}

	l.tokens -= float64(n)

	return true
}

// refusal is how a provider says that requests come too fast.
type refusal func(w http.ResponseWriter, batch []testRequest)

// respond is a refusal by a status.
func respond(status int, retry, text string) refusal {
	return func(w http.ResponseWriter, _ []testRequest) {
		switch retry {
		case "":
		case "date":
			w.Header().Set("Retry-After", time.Now().Add(2*time.Second).UTC().Format(http.TimeFormat))
		default:
			w.Header().Set("Retry-After", retry)
		}

		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// whole is a refusal by one JSON-RPC error for all of a batch, each by one for each request.
func whole(fault string) refusal {
	return respond(200, "", `{"jsonrpc":"2.0","id":null,"error":`+fault+`}`)
}

func each(fault string) refusal {
	return func(w http.ResponseWriter, batch []testRequest) {
		var list []string
		for _, q := range batch {
			list = append(list, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, fault))
		}

		text := "[" + strings.Join(list, ",") + "]"
		if len(batch) == 1 {
			text = list[0]
		}

		_, _ = io.WriteString(w, text)
	}
}

// refusals are how providers say so. Those that begin with "each" and "whole" come over WebSocket too.
var refusals = map[string]refusal{
	"429":               respond(429, "", ""),
	"429 and seconds":   respond(429, "1", ""),
	"429 and a date":    respond(429, "date", ""),
	"503":               respond(503, "", ""),
	"503 and seconds":   respond(503, "1", ""),
	"503 and a date":    respond(503, "date", ""),
	"429 with an error": respond(429, "", `{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"project ID request rate exceeded"}}`),
	"a page under 429":  respond(429, "", "<html>Too many requests</html>"),
	"a page under 403":  respond(403, "", "<html>error 1015: You are being rate limited</html>"),
	"a page under 503":  respond(503, "", "<html>Over the rate limit, slow down</html>"),
	"whole, Infura":     whole(`{"code":-32005,"message":"daily request count exceeded, request rate limited"}`),
	"whole, Chainstack": whole(`{"code":-32005,"message":"You've exceeded the RPS limit available on the current plan."}`),
	"each":              each(`{"code":-32005,"message":"project ID request rate exceeded"}`),
	"each, QuickNode":   each(`{"code":-32007,"message":"50/second request limit reached - reduce calls per second or upgrade your account at quicknode.com"}`),
	"each, Alchemy":     each(`{"code":429,"message":"Your app has exceeded its compute units per second capacity."}`),
	"each, in data":     each(`{"code":-32005,"message":"denied","data":{"rate":{"allowed_rps":5,"backoff_seconds":1}, "why":"rate limit"}}`),
}

// With 5 items per second and at most 101 blocks a range, a backlog comes about as fast as the
// provider lets it, however it says no, and it is not stormed; above finality too, where a batch of
// headers is larger than the burst.
func TestRates(t *testing.T) {
	for name, refuse := range refusals {
		for _, kind := range []string{"http", "ws"} {
			if kind == "ws" && !strings.HasPrefix(name, "each") && !strings.HasPrefix(name, "whole") {
				continue
			}

			t.Run(name+" over "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { readUnderRate(t, refuse, kind, 3000, 30, 2*time.Minute) })
			})
		}

		t.Run(name+", above finality", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { readUnderRate(t, refuse, "http", 2940, 30, 2*time.Minute) })
		})
	}
}

func readUnderRate(t *testing.T, refuse refusal, kind string, final uint64, refusals int,
	within time.Duration) {
	const blocks = 3000
	chain := newChain(blocks, 10, 0)
	var p pipes
	n, _ := p.node(t, chain)
	n.finalized = final
	l := &limiter{}
	var large atomic.Int64
	n.lie = func(method string, params []json.RawMessage) (any, error) {
		if method == rpc.GetLogs {
			if q := parseQuery(t, params[0]); q.ToBlock-q.FromBlock+1 > 101 {
				large.Add(1)
				return nil, errors.New("block range is too wide")
			}
		}

		return nil, nil
	}
	serve := func(w http.ResponseWriter, b []byte, subscribed func()) {
		var batch []testRequest
		if json.Unmarshal(b, &batch) != nil {
			batch = make([]testRequest, 1)
			_ = json.Unmarshal(b, &batch[0])
		}

		if l.take(len(batch)) {
			_, _ = w.Write(n.serve(b, subscribed))
		} else {
			refuse(w, batch)
		}
	}
	url := n.server.URL
	if kind == "ws" {
		url = n.ws()
		n.limit = func(b []byte, subscribed func()) []byte {
			rec := httptest.NewRecorder()
			serve(rec, b, subscribed)
			return rec.Body.Bytes()
		}
	} else {
		n.http = func(w http.ResponseWriter, r *http.Request) bool {
			b, _ := io.ReadAll(r.Body)
			serve(w, b, nil)
			return true
		}
	}

	s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second, Dial: p.dial})
	begun := time.Now()
	await(t, s, func(v View) bool { return v.Final == final })
	require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, within))
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d blocks in %s: %d items, %d refusals for the rate, %d for the range", blocks,
		time.Since(begun).Round(100*time.Millisecond), len(l.sent), l.refused, large.Load())
	require.LessOrEqual(t, l.refused, refusals)
	worst := 0
	for i, at := range l.sent {
		if at.Sub(l.sent[0]) < 5*time.Second {
			continue
		}

		within := 0
		for _, other := range l.sent[i:] {
			if other.Sub(at) < 5*time.Second {
				within++
			}
		}

		worst = max(worst, within)
	}

	require.LessOrEqual(t, worst, 3*5*5, "three times the rate in 5 s")
}

// An endpoint that refuses eth_getLogs altogether is left after a few requests, for the other. Its word on which block
// is the chain's counts all the same, and once it has refused for over a minute the other's on what is in a block.
func TestEndpointWithoutLogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(3000, 10, 0)
		var p pipes
		without, _ := p.node(t, chain)
		with, _ := p.node(t, chain)
		without.finalized, with.finalized = 2900, 2900
		without.lie = func(method string, _ []json.RawMessage) (any, error) {
			if method == rpc.GetLogs {
				return nil, errors.New("this method is not for you")
			}

			return nil, nil
		}
		s := start(t, Config{URLs: []string{without.server.URL, with.server.URL}, ChainID: 1, Finality: Latest, Dial: p.dial,
			PollInterval: time.Second, Logger: slog.New(slog.DiscardHandler)})
		await(t, s, func(v View) bool { return v.Final == 2900 && allUp(s) })
		for again, most := range []int{60, 25, 25, 25, 25, 25} {
			before := without.count(rpc.GetLogs)
			require.EqualValues(t, 2901, backlog(t, s, chain, 1, 2900, time.Minute))
			require.LessOrEqual(t, without.count(rpc.GetLogs)-before, most, again)
			<-time.After(time.Minute)
		}

		require.EqualValues(t, 3001, backlog(t, s, chain, 2901, 3000, time.Minute))
		require.Equal(t, endpoint.Healthy, s.Endpoints()[0].State)
		require.Equal(t, Agreed, s.Trust())
	})
}

// behindBalancer has a node answer two of three requests for logs or receipts from a machine that is 20 blocks
// behind, and has no logs of blocks that it does not know; with heads, every other look at the head too.
func behindBalancer(n *testNode, heads bool) {
	const late = 20
	n.receipts = true
	var readings, looks atomic.Int64
	n.lie = func(method string, params []json.RawMessage) (any, error) {
		behind := (method == rpc.GetLogs || method == rpc.GetReceipts) && readings.Add(1)%3 != 0 ||
			heads && method == rpc.GetByNumber && string(params[0]) == `"latest"` && looks.Add(1)%2 == 0
		if !behind {
			return nil, nil
		}

		n.mu.Lock()
		defer n.mu.Unlock()
		n.head -= late
		defer func() { n.head += late }()

		return n.answer(method, params)
	}
}

// A gateway that announces blocks by one backend and answers for logs by another, which is 20
// blocks behind and knows no blocks by an empty list. Its blooms are full. No block with logs is
// read as one without; nor where the chain calls a block final as soon as it is there, so that it
// may be read by range, with a header that another backend gives.
func TestUnequalBackends(t *testing.T) {
	for _, kind := range []string{"ws", "http"} {
		for _, nodes := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s %d", kind, nodes), func(t *testing.T) { unequalBackends(t, kind, nodes, false) })
		}

		t.Run(kind+" final", func(t *testing.T) { unequalBackends(t, kind, 1, true) })
	}
}

func unequalBackends(t *testing.T, kind string, nodes int, final bool) {
	t.Parallel()
	chain := newChain(110, 2, 0)
	chain.crowd(150)
	var urls []string
	var list []*testNode
	finalized := func(head uint64) uint64 {
		if final {
			return head
		}

		return 0
	}

	for range nodes {
		n := startNode(t, chain)
		n.head, n.finalized = 80, finalized(80)
		behindBalancer(n, false)
		list = append(list, n)
		urls = append(urls, map[string]string{"ws": n.ws(), "http": n.server.URL}[kind])
	}

	cfg := Config{URLs: urls, ChainID: 1, Finality: Confirmations, Confirmations: 2, PollInterval: 20 * time.Millisecond}
	if final {
		cfg.Finality, cfg.Confirmations = Finalized, 0
	}

	s := start(t, cfg)
	await(t, s, func(v View) bool { return v.Head == 80 && v.Target >= 78 && allUp(s) })
	next := s.View().Target + 1
	for head := uint64(81); head <= 110; head++ {
		for _, n := range list {
			n.set(func() { n.head, n.finalized = head, finalized(head) })
			n.announce()
		}

		v := await(t, s, func(v View) bool { return v.Head == head && v.Target == head-cfg.Confirmations })
		next = backlog(t, s, chain, next, v.Target, time.Minute)
	}

	require.Equal(t, 111-cfg.Confirmations, next)
	if final { // what has been seen of the machines counts for a backlog too
		require.Equal(t, next, backlog(t, s, chain, 40, next-1, time.Minute))
	}
}

// A backlog that ends at the head is read by range up to where machines behind the URL may be apart.
func TestBacklogBehindBalancer(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart %v", apart), func(t *testing.T) {
			t.Parallel()
			chain := newChain(200, 2, 0)
			chain.crowd(150)
			n := startNode(t, chain)
			n.finalized = 200
			if apart {
				behindBalancer(n, true)
			}

			s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest,
				PollInterval: 20 * time.Millisecond})
			await(t, s, func(v View) bool { return v.Final == 200 })
			require.EqualValues(t, 201, backlog(t, s, chain, 1, 200, time.Minute))
			if !apart {
				// Blocks that prove nothing are asked again, with their header, where they have no logs.
				require.LessOrEqual(t, n.count(rpc.GetLogs), 20+2*farBlocks)
			}
		})
	}
}

// A node that lost its old blocks says so by null and by empty lists. It is not asked for them
// again while another has them, and keeps serving the head.
func TestSilentlyPruned(t *testing.T) {
	chain := newChain(1000, 7, 0)
	pruned, archive := startNode(t, chain), startNode(t, chain)
	pruned.finalized, archive.finalized = 990, 990
	pruned.lie = func(method string, params []json.RawMessage) (any, error) {
		switch method {
		case rpc.GetByNumber:
			var tag string
			_ = json.Unmarshal(params[0], &tag)
			if strings.HasPrefix(tag, "0x") && len(tag) < 5 { // below block 256
				return null, nil
			}
		case rpc.GetLogs:
			if q := parseQuery(t, params[0]); q.BlockHash == nil && q.FromBlock < 256 {
				return []types.Log{}, nil
			}
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{pruned.server.URL, archive.server.URL}, ChainID: 1,
		Finality: Latest, MaxRange: 50})
	await(t, s, func(v View) bool { return v.Final == 990 && allUp(s) })
	require.EqualValues(t, 1001, backlog(t, s, chain, 1, 1000, time.Minute))
	require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)

	alone := start(t, Config{URLs: []string{pruned.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 50})
	await(t, alone, func(v View) bool { return v.Final == 990 })
	for b, err := range alone.Read(t.Context(), 1, 200, filterA()) {
		require.ErrorIs(t, err, ErrNoHistory, "block %d", b.To)
	}
}

// A node that refuses the first header of a range in words, and gives the logs of the rest, has not
// shown that there are none before.
func TestFirstHeaderIsRefused(t *testing.T) {
	chain := newChain(100, 7, 0)
	pruned := startNode(t, chain)
	pruned.finalized = 90
	pruned.lie = func(method string, params []json.RawMessage) (any, error) {
		switch {
		case method == rpc.GetByNumber && string(params[0]) == `"0x1"`:
			return nil, errors.New("required history is pruned")
		case method == rpc.GetLogs:
			return []types.Log{}, nil
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{pruned.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Final == 90 })
	read := 0
	for b, err := range s.Read(t.Context(), 1, 20, filterA()) {
		require.Error(t, err, "blocks %d to %d", b.From, b.To)
		require.Equal(t, rpc.Pruned, rpc.Classify(err))
		read++
	}

	require.Equal(t, 1, read)
}

// A provider that gives logs of named contracts only is read with addresses, and an error says what to set without.
func TestAddressRequired(t *testing.T) {
	chain := newChain(60, 3, 0)
	n := startNode(t, chain)
	n.finalized = 40
	n.lie = func(method string, params []json.RawMessage) (any, error) {
		if method == rpc.GetLogs && parseQuery(t, params[0]).Address == nil {
			return nil, errors.New("Please specify an address in your request or, to remove restrictions, order a dedicated full node here")
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Head == 60 && v.Final == 40 })
	f := filterA()
	f.Addresses = append(f.Addresses, emitter)
	got, _ := collect(t, s, 1, 60, f)
	require.Equal(t, chain.all(1, 60), got)
	for range 20 {
		for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
			require.ErrorContains(t, err, "LOG_FILTER=addresses")
		}
	}

	require.True(t, s.Endpoints()[0].Up)
	require.NotZero(t, n.count(rpc.GetLogs))
}

// A head above what the database can hold is no head, and fields that other chains add are passed over.
func TestForeignHeaders(t *testing.T) {
	chain := newChain(60, 1, 0)
	liar, honest := startNode(t, chain), startNode(t, chain)
	answer := func(number string) func(string, []json.RawMessage) (any, error) {
		return func(_ string, params []json.RawMessage) (any, error) {
			if len(params) > 0 && string(params[0]) == `"latest"` {
				j := blockJSON(chain.headers[60])
				j["number"] = number
				return j, nil
			}

			return nil, nil
		}
	}
	liar.lie = answer("0x8000000000000400")
	honest.lie = func(_ string, params []json.RawMessage) (any, error) {
		if len(params) > 0 && string(params[0]) == `"latest"` {
			j := blockJSON(chain.headers[60])
			j["l1BlockNumber"], j["sha3Uncles"], j["size"], j["logsBloom"] = 7, nil, map[string]any{"a": []int{1}}, "0x"
			return j, nil
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{honest.server.URL, liar.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Target == 60 })
	await(t, s, func(View) bool { return strings.Contains(s.Endpoints()[1].LastError, "absurd") })
	require.EqualValues(t, 60, s.View().Target)
}
