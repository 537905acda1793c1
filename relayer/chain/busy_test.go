package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	gethrpc "github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// An endpoint that has given logs and refuses them for ten seconds, in words that nobody knows, is
// the only one there is. It is not left alone for an hour as one that never gives logs.
func TestOnlyEndpointIsBusyForAWhile(t *testing.T) {
	for _, words := range []string{
		"server is busy", "backend is over capacity", "service temporarily unavailable", "Internal error",
		"no backend is currently healthy to serve traffic",
	} {
		t.Run(words, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const blocks = 3000
				chain := newChain(blocks, 10, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = blocks
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 100, Dial: p.dial})
				await(t, s, func(v View) bool { return v.Final == blocks })
				require.EqualValues(t, 301, backlog(t, s, chain, 1, 300, time.Minute))

				n.set(func() {
					n.lie = func(method string, _ []json.RawMessage) (any, error) {
						if method == rpc.GetLogs {
							return nil, errors.New(words)
						}

						return nil, nil
					}
				})
				next := backlog(t, s, chain, 301, blocks, 10*time.Second)
				require.EqualValues(t, 301, next)
				n.set(func() { n.lie = nil })
				require.EqualValues(t, blocks+1, backlog(t, s, chain, next, blocks, 2*time.Minute), "%+v", s.Endpoints())
			})
		})
	}
}

// An endpoint that takes requests and does not answer is used again within 10 s of the moment from
// which it answers new ones. What it was asked before is never answered.
func TestHungEndpointIsUsedAgainWithin10Seconds(t *testing.T) {
	for _, kind := range []string{"http", "ws"} {
		for _, hung := range []time.Duration{20 * time.Second, 47 * time.Second, 95 * time.Second} {
			for phase := range 5 {
				t.Run(fmt.Sprintf("%s %s %d", kind, hung, phase), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						hangs(t, kind, hung+time.Duration(phase)*1700*time.Millisecond)
					})
				})
			}
		}
	}
}

func hangs(t *testing.T, kind string, hung time.Duration) {
	chain := newChain(30, 1, 0)
	var p pipes
	n, _ := p.node(t, chain)
	n.head = 20
	url := n.server.URL
	if kind == "ws" {
		url = n.ws()
	}

	s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second, Dial: p.dial,
		Rand: func() float64 { return 0.999 }})
	await(t, s, func(v View) bool { return v.Head == 20 })

	over := make(chan struct{}) // closed at the test's end, for what is never answered
	defer close(over)
	n.set(func() {
		n.http = func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-over:
			case <-r.Context().Done():
			}

			return true
		}
		n.limit = func([]byte, func()) []byte { <-over; return nil }
	})
	<-time.After(hung)
	n.set(func() { n.http, n.limit, n.head = nil, nil, 30 })
	ended := time.Now()
	await(t, s, func(v View) bool { return v.Head == 30 })
	require.LessOrEqual(t, time.Since(ended), 10*time.Second)
}

// While a provider refuses everything for its rate, the refusals say nothing about the rate that it
// will allow: nothing was let through. When it is over, the head is reached soon, and followed.
func TestRateThatNothingMeetsIsNotLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const first, blocks = 20, 160
		chain := newChain(first+blocks, 1, 0)
		var p pipes
		n, _ := p.node(t, chain)
		n.head = first
		s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, PollInterval: time.Second,
			Dial: p.dial})
		await(t, s, func(v View) bool { return v.Head == first })

		var growing sync.WaitGroup
		defer growing.Wait()
		var came [first + blocks + 1]time.Time
		growing.Go(func() {
			for block := first + 1; block <= first+blocks; block++ {
				<-time.After(time.Second)
				n.set(func() { n.head, came[block] = uint64(block), time.Now() })
			}
		})
		var over time.Time
		growing.Go(func() {
			<-time.After(40 * time.Second)
			n.set(func() {
				n.lie = func(string, []json.RawMessage) (any, error) { return nil, errors.New("rate limit exceeded") }
			})
			<-time.After(20 * time.Second)
			n.set(func() { n.lie, over = nil, time.Now() })
		})
		for next := uint64(first + 1); next <= first+blocks; {
			news := s.Changed()
			for b, err := range s.Read(t.Context(), next, s.View().Target, filterA()) {
				if err != nil {
					<-time.After(100 * time.Millisecond)
					break
				}

				next = b.To + 1
				n.set(func() {
					if !over.IsZero() && time.Since(over) > 25*time.Second {
						require.Less(t, time.Since(came[b.To]), 3*time.Second, "block %d", b.To)
					}
				})
			}

			if s.View().Target < next && next <= first+blocks {
				<-news
			}
		}
	})
}

// At a low rate, the headers above finality, of which the reader needs a hundred before it gets its
// first block, come in the end: a refusal between them does not make it begin anew.
func TestHeadersUnderALowRate(t *testing.T) {
	for _, rate := range []float64{1, 2, 5} {
		for _, burst := range []float64{2, 4, 10} {
			t.Run(fmt.Sprintf("%v per second, %v at once", rate, burst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const blocks, final = 300, 200
					// Of each a header and logs, and for most a proof that they have none, of two items.
					ideal := time.Duration(4 * (blocks - final) / rate * float64(time.Second))
					s, chain := limited(t, &meter{rate: rate, burst: burst}, blocks, final)
					limit := 5*ideal + 2*time.Minute // in which the rate is found out
					require.EqualValues(t, blocks+1, backlog(t, s, chain, final+1, blocks, limit), "%+v", s.Endpoints())
				})
			})
		}
	}
}

// A provider that lets one request through at a time takes no batch, however small.
func TestBurstOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, chain := limited(t, &meter{rate: 5, burst: 1}, 300+farBlocks, 300)
		await(t, s, func(v View) bool { return v.Final == 300 })
		require.EqualValues(t, 301, backlog(t, s, chain, 1, 300, time.Minute))
	})
}

// meter is a bucket of items, from which a batch is taken as a whole or not at all.
type meter struct {
	rate, burst float64 // items per second; at once

	mu     sync.Mutex
	tokens float64
	filled time.Time
}

func (m *meter) take(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.filled.IsZero() {
		m.tokens, m.filled = m.burst, now
	}

	m.tokens, m.filled = min(m.tokens+m.rate*now.Sub(m.filled).Seconds(), m.burst), now
	if m.tokens+1e-9 < float64(n) {
		return false
	}

	m.tokens -= float64(n)

	return true
}

// limited starts a node behind a meter, which refuses by a bare 429, and a Source of it.
func limited(t *testing.T, m *meter, blocks, final uint64) (*Source, *testChain) {
	chain := newChain(blocks, 10, 0)
	var p pipes
	n, _ := p.node(t, chain)
	n.finalized = final
	n.http = func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		var batch []testRequest
		if json.Unmarshal(b, &batch) != nil {
			batch = make([]testRequest, 1)
		}

		if m.take(len(batch)) {
			_, _ = w.Write(n.serve(b, nil))
		} else {
			w.WriteHeader(http.StatusTooManyRequests)
		}

		return true
	}

	return start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 100,
		PollInterval: time.Second, Dial: p.dial}), chain
}

// A rate is found out also where the refusal does not say that it is one: a firewall's bare 403, a
// connection that is closed, words that nobody knows. What is refused has been answered before, at
// the same size; above finality, where headers are asked for too.
func TestRateWithoutWords(t *testing.T) {
	for name, refuse := range map[string]refusal{
		"403":     respond(403, "", "<html><head><title>403 Forbidden</title></head></html>"),
		"dropped": func(http.ResponseWriter, []testRequest) { panic(http.ErrAbortHandler) },
		"busy":    each(`{"code":-32000,"message":"server is busy"}`),
		"no text": each(`{"code":-32005,"message":"limit exceeded"}`),
		"no id":   respond(200, "", `{"message":"You have exceeded the rate limit"}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { readUnderRate(t, refuse, "http", 2900, 150, 6*time.Minute) })
		})
	}
}

// What a provider lets through is used: 30 ranges of 100 blocks and two headers each are 90 items,
// which a rate of 5 per second and 10 at once allows in 16 s. Looks at the head, and what it takes to
// find the rate and the range, may cost as long again and more: 14 to 20 s were measured.
func TestRateIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s, chain := limited(t, &meter{rate: 5, burst: 10}, 3000+farBlocks, 3000)
		await(t, s, func(v View) bool { return v.Final == 3000 })
		require.EqualValues(t, 3001, backlog(t, s, chain, 1, 3000, 30*time.Second-time.Since(begun)))
	})
}

// A batch of headers whose answer is too large for the node, or for this process, is asked for in
// parts: geth gives what fits and an error for each that does not.
func TestHeadersThatAreTooLargeTogether(t *testing.T) {
	for _, kind := range []string{"http", "ws"} {
		t.Run("geth's limit over "+kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(120, 3, 0)
				var p pipes
				n, h := p.node(t, chain)
				n.finalized = 30
				server := gethrpc.NewServer()
				server.SetBatchLimits(1000, 10_000) // bytes; a header has some 1,000
				t.Cleanup(func() { h.cut(); server.Stop() })
				require.NoError(t, server.RegisterName("eth", ethAPI{n}))
				handler, url := http.Handler(server), n.server.URL
				if kind == "ws" {
					handler, url = server.WebsocketHandler([]string{"*"}), n.ws()
				}

				n.http = func(w http.ResponseWriter, r *http.Request) bool { handler.ServeHTTP(w, r); return true }
				s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second,
					Dial: p.dial})
				await(t, s, func(v View) bool { return v.Final == 30 })
				require.EqualValues(t, 121, backlog(t, s, chain, 1, 120, time.Minute), "%+v", s.Endpoints())
			})
		})
	}

	t.Run("our own", func(t *testing.T) {
		chain := newChain(70, 3, 0)
		n := startNode(t, chain)
		n.finalized = 30
		transactions := slices.Repeat([]string{common.Hash{1}.Hex()}, 4000) // of one block; 0.3 MB
		n.lie = func(method string, params []json.RawMessage) (any, error) {
			if method != rpc.GetByNumber || !strings.HasPrefix(string(params[0]), `"0x`) {
				return nil, nil
			}

			n.mu.Lock()
			defer n.mu.Unlock()
			block, err := n.answer(method, params)
			if m, is := block.(map[string]any); is {
				m["transactions"] = transactions
			}

			return block, err
		}
		s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Timeout: time.Minute})
		await(t, s, func(v View) bool { return v.Final == 30 })
		require.EqualValues(t, 71, backlog(t, s, chain, 1, 70, time.Minute), "%+v", s.Endpoints())
	})
}

// Some answer the first requests of a batch and refuse those beyond their limit one by one, in words
// that alone would mean a range.
func TestBatchRefusedBeyondALimit(t *testing.T) {
	for _, fault := range []string{
		`{"code":-32005,"message":"limit exceeded"}`, `{"code":-32003,"message":"response too large"}`,
		`{"code":-32600,"message":"not permitted"}`, `{"code":429,"message":"Too many requests"}`,
	} {
		for _, most := range []int{1, 2, 3, 10} {
			t.Run(fmt.Sprintf("%s beyond %d", fault, most), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					chain := newChain(120, 3, 0)
					var p pipes
					n, _ := p.node(t, chain)
					n.finalized = 30
					var refused atomic.Int64
					n.http = func(w http.ResponseWriter, r *http.Request) bool {
						b, _ := io.ReadAll(r.Body)
						var batch []testRequest
						if json.Unmarshal(b, &batch) != nil || len(batch) <= most {
							_, _ = w.Write(n.serve(b, nil))
							return true
						}

						refused.Add(1)
						var answers []string
						for i, q := range batch {
							if i < most {
								answers = append(answers, string(n.serve(marshal(q), nil)))
							} else {
								answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, fault))
							}
						}

						_, _ = io.WriteString(w, "["+strings.Join(answers, ",")+"]")

						return true
					}
					s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest,
						PollInterval: time.Second, Dial: p.dial})
					await(t, s, func(v View) bool { return v.Final == 30 })
					require.EqualValues(t, 121, backlog(t, s, chain, 1, 120, 3*time.Minute), "%+v", s.Endpoints())
					require.LessOrEqual(t, refused.Load(), int64(20))
				})
			})
		}
	}
}

// Behind a balancer that takes turns, one machine takes batches and the other takes none. That a
// batch was answered once does not mean that the next refusal is not for its size.
func TestUnequalBatchLimits(t *testing.T) {
	for name, refuse := range map[string]refusal{
		"403":     respond(403, "", `{"message":"Forbidden"}`),
		"405":     respond(405, "", ""),
		"dropped": func(http.ResponseWriter, []testRequest) { panic(http.ErrAbortHandler) },
		"no id":   respond(200, "", "{}"),
		"each":    each(`{"code":-32600,"message":"not permitted"}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(120, 3, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = 30
				var turns, refused atomic.Int64
				n.http = func(w http.ResponseWriter, r *http.Request) bool {
					b, _ := io.ReadAll(r.Body)
					var batch []testRequest
					if json.Unmarshal(b, &batch) == nil && turns.Add(1)%2 == 0 {
						refused.Add(1)
						refuse(w, batch)
					} else {
						_, _ = w.Write(n.serve(b, nil))
					}

					return true
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest,
					PollInterval: time.Second, Dial: p.dial})
				await(t, s, func(v View) bool { return v.Final == 30 })
				require.EqualValues(t, 121, backlog(t, s, chain, 1, 120, time.Minute), "%+v", s.Endpoints())
				require.LessOrEqual(t, refused.Load(), int64(30))
			})
		})
	}
}
