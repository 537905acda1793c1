package chain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// growing is a node whose chain grows by a block in a fixed time, each with logs, and a Source of it.
type growing struct {
	s     *Source
	n     *testNode
	chain *testChain
	next  uint64 // block that is read next
}

// grow starts it. over is closed before the test's end, for what is never answered. Called in a bubble.
func grow(t *testing.T, kind string, every, lasts time.Duration) (g *growing, over chan struct{}) {
	t.Helper()
	const first = 20
	blocks := uint64(lasts / every)
	var p pipes
	g = &growing{chain: newChain(first+blocks, 1, 0), next: first + 1}
	g.n, _ = p.node(t, g.chain)
	g.n.head = first
	url := g.n.server.URL
	if kind == "ws" {
		url = g.n.ws()
	}

	g.s = start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second, Dial: p.dial,
		Rand: func() float64 { return 0.999 }})
	await(t, g.s, func(v View) bool { return v.Head == first })
	over = make(chan struct{})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); close(over); wg.Wait() })
	ticks := time.NewTicker(every)
	t.Cleanup(ticks.Stop)
	wg.Go(func() {
		for block := uint64(first + 1); block <= first+blocks; block++ {
			select {
			case <-ticks.C:
			case <-ctx.Done():
				return
			}

			g.n.set(func() { g.n.head = block })
			g.n.announce()
		}
	})

	return g, over
}

// watchPause is how long at most it is from one of a watch's tries to the next after errors.
const watchPause = 4500 * time.Millisecond

// read reads what there is, as a watch does, until a moment or until a block has been read.
func (g *growing) read(t *testing.T, block uint64, until time.Time) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), until)
	defer cancel()
	for g.next <= block && ctx.Err() == nil {
		news, began := g.s.Changed(), time.Now()
		failed := false
		for b, err := range g.s.Read(ctx, g.next, g.s.View().Target, filterA()) {
			if failed = err != nil; failed {
				break
			}

			require.Equal(t, g.next, b.From)
			require.Equal(t, g.chain.matching(b.From, b.To), b.Logs)
			if g.next = b.To + 1; g.next > block {
				return
			}
		}

		pause := time.Second
		if failed {
			news, pause = nil, watchPause-time.Since(began)
		}

		select {
		case <-ctx.Done():
		case <-news:
		case <-time.After(pause):
		}
	}
}

// hang has a node answer nothing that a test of a request's body says, for so long. Of what it took
// meanwhile nothing is ever answered.
func (g *growing) hang(kind string, long time.Duration, over chan struct{}, hangs func([]byte) bool) {
	g.n.set(func() {
		g.n.http = func(w http.ResponseWriter, r *http.Request) bool {
			if kind == "ws" {
				return false
			}

			b, _ := io.ReadAll(r.Body)
			if !hangs(b) {
				_, _ = w.Write(g.n.serve(b, nil))
				return true
			}

			select {
			case <-over:
			case <-r.Context().Done():
			}

			return true
		}
		g.n.limit = func(b []byte, subscribed func()) []byte {
			if !hangs(b) {
				return g.n.serve(b, subscribed)
			}

			<-over

			return nil
		}
	})
	time.AfterFunc(long, func() { g.n.set(func() { g.n.http, g.n.limit = nil, nil }) })
}

// A node that has hung for long is read from again within 10 s, and not only looked at: a request for a
// block's logs that it took and never answered does not hold up the next one. So is one that answered
// all but logs meanwhile, and might have been only slow.
func TestHungEndpointIsReadFromAgainWithin10Seconds(t *testing.T) {
	logs := func(b []byte) bool { return strings.Contains(string(b), rpc.GetLogs) }
	for _, what := range []string{"all", "logs"} {
		for _, kind := range []string{"http", "ws"} {
			for phase := range 8 {
				hung := time.Minute + time.Duration(phase)*1240*time.Millisecond
				t.Run(fmt.Sprintf("%s %s %s", what, kind, hung), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						g, over := grow(t, kind, 250*time.Millisecond, 3*time.Minute)
						g.read(t, 1000, time.Now().Add(10*time.Second))
						var hanging atomic.Bool // from the next request for logs on
						begun := time.Now()
						g.hang(kind, hung, over, func(b []byte) bool {
							if logs(b) {
								hanging.Store(true)
							}

							return logs(b) || what == "all" && hanging.Load()
						})
						missed := g.next + uint64(hung/(250*time.Millisecond))
						g.read(t, 1000, begun.Add(hung+10*time.Second))
						require.Greater(t, g.next, missed, "%+v", g.s.Endpoints())
					})
				})
			}
		}
	}
}

// Logs that always take longer than a dead connection is waited for are read all the same.
func TestLogsThatTakeLong(t *testing.T) {
	for _, kind := range []string{"http", "ws"} {
		for _, every := range []time.Duration{time.Second, 12 * time.Second} {
			t.Run(fmt.Sprintf("%s, a block in %s", kind, every), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					g, over := grow(t, kind, every, 30*every)
					slow := func(b []byte) {
						if strings.Contains(string(b), rpc.GetLogs) {
							select {
							case <-over:
							case <-time.After(7 * time.Second):
							}
						}
					}
					g.n.set(func() {
						g.n.http = func(w http.ResponseWriter, r *http.Request) bool {
							if kind == "ws" {
								return false
							}

							b, _ := io.ReadAll(r.Body)
							slow(b)
							_, _ = w.Write(g.n.serve(b, nil))

							return true
						}
						g.n.limit = func(b []byte, subscribed func()) []byte {
							slow(b)
							return g.n.serve(b, subscribed)
						}
					})
					g.read(t, 30, time.Now().Add(30*every+3*time.Minute))
					require.EqualValues(t, 31, g.next, "%+v", g.s.Endpoints())
				})
			})
		}
	}
}

// What can wait waits for a slow node: an audit does not end because it took its node for a dead one.
func TestWhatCanWaitWaitsForASlowNode(t *testing.T) {
	for _, way := range []string{"by range", "block by block"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(100, 3, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = map[string]uint64{"by range": 100}[way]
				n.http = func(w http.ResponseWriter, r *http.Request) bool {
					b, _ := io.ReadAll(r.Body)
					if strings.Contains(string(b), rpc.GetLogs) || strings.Contains(string(b), rpc.GetReceipts) {
						select {
						case <-t.Context().Done():
						case <-time.After(7 * time.Second):
						}
					}

					_, _ = w.Write(n.serve(b, nil))

					return true
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Dial: p.dial})
				await(t, s, func(v View) bool { return v.Head == 100 })
				last := uint64(0)
				for b, err := range s.Read(Later(t.Context()), 1, 20, filterA()) {
					require.NoError(t, err)
					last = b.To
				}

				require.EqualValues(t, 20, last)
			})
		})
	}
}

// Logs that begin to arrive in time may take as long as a request may, and are asked for once.
func TestLogsThatArriveSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, over := grow(t, "http", time.Minute, 5*time.Minute)
		var asked atomic.Int64
		g.n.set(func() {
			g.n.http = func(w http.ResponseWriter, r *http.Request) bool {
				b, _ := io.ReadAll(r.Body)
				answer := g.n.serve(b, nil)
				if strings.Contains(string(b), rpc.GetLogs) {
					asked.Add(1)
					_, _ = w.Write(answer[:10])
					_ = http.NewResponseController(w).Flush()
					select {
					case <-over:
					case <-time.After(9 * time.Second):
					}

					answer = answer[10:]
				}

				_, _ = w.Write(answer)

				return true
			}
		})
		g.read(t, 25, time.Now().Add(6*time.Minute))
		require.EqualValues(t, 26, g.next, "%+v", g.s.Endpoints())
		require.EqualValues(t, 5, asked.Load())
	})
}
