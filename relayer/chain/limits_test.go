package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// provider is a node behind several limits at once; zero: there is no such limit.
type provider struct {
	t       *testing.T
	lets    func(items int) bool // what comes too fast it refuses
	tooFast refusal
	atOnce  int // batches; more it refuses
	tooMany refusal
	batch   int           // requests
	blocks  uint64        // of one request
	each    time.Duration // an item has it to itself for so long, also when nobody waits for it any more

	mu       sync.Mutex
	busy     time.Time // until then it works
	inFlight int
	sent     []time.Time // items
	refused  int         // batches, for any limit
}

// answersAfter is how long a node takes to answer.
const answersAfter = 20 * time.Millisecond

// before has a node ask the provider before each answer, and returns its URL.
func (p *provider) before(n *testNode, kind string) string {
	n.limit = func(b []byte, subscribed func()) []byte {
		rec := httptest.NewRecorder()
		p.serve(n, rec, b, subscribed)

		return rec.Body.Bytes()
	}
	if kind == "ws" {
		return n.ws()
	}

	n.http = func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		p.serve(n, w, b, nil)

		return true
	}

	return n.server.URL
}

func (p *provider) serve(n *testNode, w http.ResponseWriter, b []byte, subscribed func()) {
	var batch []testRequest
	if json.Unmarshal(b, &batch) != nil {
		batch = make([]testRequest, 1)
		_ = json.Unmarshal(b, &batch[0])
	}

	refuse := p.begin(batch)
	if refuse != nil {
		p.end()
		refuse(w, batch)
		return
	}

	select {
	case <-time.After(answersAfter + p.queue(len(batch))):
	case <-p.t.Context().Done(): // a bubble ends with everything in it
	}

	answer := n.serve(b, subscribed)
	p.end() // who has the answer may ask again at once, before this returns
	_, _ = w.Write(answer)
}

// queue is how long a batch of so many items waits, behind those before it, for the end of its own work.
func (p *provider) queue(items int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.busy.Before(now) {
		p.busy = now
	}

	p.busy = p.busy.Add(time.Duration(items) * p.each)

	return time.Until(p.busy)
}

func (p *provider) begin(batch []testRequest) (refuse refusal) {
	wide := func(q testRequest) bool {
		if q.Method != rpc.GetLogs {
			return false
		}

		f := parseQuery(p.t, q.Params[0])

		return f.BlockHash == nil && uint64(f.ToBlock-f.FromBlock)+1 > p.blocks
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
	for range batch {
		p.sent = append(p.sent, time.Now())
	}

	switch {
	case p.atOnce > 0 && p.inFlight > p.atOnce:
		refuse = p.tooMany
	case p.lets != nil && !p.lets(len(batch)):
		refuse = p.tooFast
	case p.batch > 0 && len(batch) > p.batch:
		refuse = whole(`{"code":-32600,"message":"batch limit exceeded"}`)
	case p.blocks > 0 && slices.ContainsFunc(batch, wide):
		refuse = each(`{"code":-32000,"message":"block range is too wide"}`)
	default:
		return nil
	}

	p.refused++

	return refuse
}

func (p *provider) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
}

// worst is how many items came in any five seconds after the first five.
func (p *provider) worst() (worst int) {
	last := 0
	for i, at := range p.sent {
		for last < len(p.sent) && p.sent[last].Sub(at) < 5*time.Second {
			last++
		}

		if at.Sub(p.sent[0]) >= 5*time.Second {
			worst = max(worst, last-i)
		}
	}

	return worst
}

// everything reads a chain as an instance does, two watches and a verifier, until the watches have all.
func everything(t *testing.T, s *Source, chain *testChain, final, blocks uint64, limit time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var watches, verifier sync.WaitGroup
	defer verifier.Wait()
	defer cancel()
	f := filterA()
	verifier.Go(func() {
		for from := uint64(1); from <= final && ctx.Err() == nil; {
			for b, err := range s.ReadOther(Later(ctx), Batch{From: from, To: final, Filter: filterA()}) {
				if err != nil {
					break
				}

				from = b.To + 1
			}

			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})

	for range 2 {
		watches.Go(func() {
			end := time.Now().Add(limit)
			for from := uint64(1); from <= blocks && time.Now().Before(end); {
				for b, err := range s.Read(ctx, from, blocks, f) {
					if err != nil {
						break
					}

					if from = b.To + 1; from > blocks {
						return
					}
				}

				<-time.After(50 * time.Millisecond)
			}

			t.Errorf("not all was read in %s: %+v", limit, s.Endpoints())
		})
	}

	watches.Wait()
}

// A provider that takes a few requests at a time, whatever it says to one more, and whatever other limits
// it has, is read with few refusals, and about as fast as by a reader that asks so many at a time.
func TestFewRequestsAtATime(t *testing.T) {
	t.Parallel()
	const blocks, final = 3000, 2970
	words := map[string]refusal{
		"429":           respond(429, "", ""),
		"503":           respond(503, "", ""),
		"403":           respond(403, "", "<html>Forbidden</html>"),
		"each, words":   each(`{"code":-32000,"message":"too many concurrent requests"}`),
		"each, limit":   each(`{"code":-32005,"message":"limit exceeded"}`),
		"each, busy":    each(`{"code":-32000,"message":"server is busy"}`),
		"each, in data": each(`{"code":-32017,"message":"Timeout","data":"Too many concurrent requests."}`),
	}
	limits := map[string]func() *provider{
		"one":              func() *provider { return &provider{atOnce: 1} },
		"two, and a batch": func() *provider { return &provider{atOnce: 2, batch: 3} },
		"one, a rate, and a batch": func() *provider {
			return &provider{atOnce: 1, lets: (&meter{rate: 5, burst: 10}).take, tooFast: words["each, limit"], batch: 10}
		},
	}
	for name, say := range words {
		for which, limit := range limits {
			for _, kind := range []string{"http", "ws"} {
				if kind == "ws" && !strings.HasPrefix(name, "each") {
					continue
				}

				if which != "one" && name != "429" && name != "each, limit" {
					continue // that costs time, and shows no more
				}

				t.Run(fmt.Sprintf("%s: %s over %s", which, name, kind), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := limit()
						p.t, p.tooMany, p.blocks = t, say, 101
						within := 90 * time.Second // a busy machine reorders what is sent at once: a refusal more pauses for up to 32 s
						if p.lets != nil {
							within = 4 * time.Minute
						}

						p.isRead(kind, blocks, final, within)
					})
				})
			}
		}
	}
}

// However a provider measures what it lets through, and whoever asks: no more than five times as much is sent in any
// 5 s after the first 5 (four times may be let through where a window of 10 s ends in them), few requests are refused,
// and it is read as fast as that allows.
func TestLimitOfTheRate(t *testing.T) {
	t.Parallel()
	const blocks, final = 3000, 2970
	for name, limiter := range map[string]func(rate float64) func(int) bool{
		"a bucket":      func(rate float64) func(int) bool { return (&meter{rate: rate, burst: 2 * rate}).take },
		"in one second": func(rate float64) func(int) bool { return perWindow(rate, time.Second, false) },
		"in each ten":   func(rate float64) func(int) bool { return perWindow(rate, 10*time.Second, true) },
		"a ban of 10 s": func(rate float64) func(int) bool { return banned(rate, 10*time.Second) },
	} {
		for _, rate := range []float64{5, 25} {
			if strings.Contains(name, "ban") && rate == 5 {
				continue // 19 or 20 are refused
			}

			for _, kind := range []string{"http", "ws"} {
				if kind == "ws" && name != "a bucket" {
					continue
				}

				t.Run(fmt.Sprintf("%v, %s, over %s", rate, name, kind), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := &provider{t: t, lets: limiter(rate), blocks: 101,
							tooFast: each(`{"code":-32005,"message":"project ID request rate exceeded"}`)}
						p.isRead(kind, blocks, final, 6*time.Minute)
						p.mu.Lock()
						defer p.mu.Unlock()
						require.LessOrEqual(t, float64(p.worst()), 5*5*rate)
					})
				})
			}
		}
	}
}

// A node that refuses nothing and takes long for each item is read to the end, as fast as it answers: what it is asked
// for at once becomes so little that it answers in time.
func TestASlowNodeIsRead(t *testing.T) {
	for _, each := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		for _, kind := range []string{"http", "ws"} {
			t.Run(fmt.Sprintf("%s an item over %s", each, kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := &provider{t: t, each: each}
					p.isRead(kind, 120, 60, time.Minute+2000*each)
				})
			})
		}
	}
}

// isRead has a chain behind the provider read to its end, with few refusals.
func (p *provider) isRead(kind string, blocks, final uint64, within time.Duration) {
	chain := newChain(blocks, 10, 0)
	var pipes pipes
	n, _ := pipes.node(p.t, chain)
	n.finalized = final
	s := start(p.t, Config{URLs: []string{p.before(n, kind)}, ChainID: 1, Finality: Latest, PollInterval: time.Second,
		Dial: pipes.dial})
	begun := time.Now()
	await(p.t, s, func(v View) bool { return v.Final == final })
	everything(p.t, s, chain, final, blocks, within)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Logf("%s: %d items, %d refused, at most %d in 5 s", time.Since(begun), len(p.sent), p.refused, p.worst())
	require.LessOrEqual(p.t, p.refused, 30+len(p.sent)/20) // its limits are learned, and tried anew each minute
}

// perWindow lets so many items per second through in a window, which begins with each of them, or each
// time that one ends.
func perWindow(rate float64, window time.Duration, fixed bool) func(int) bool {
	var passed []time.Time

	return func(items int) bool {
		now := time.Now()
		since := now.Add(-window)
		if fixed {
			since = now.Truncate(window).Add(-1)
		}

		passed = slices.DeleteFunc(passed, func(at time.Time) bool { return !at.After(since) })
		if float64(len(passed)+items) > rate*window.Seconds() {
			return false
		}

		passed = append(passed, slices.Repeat([]time.Time{now}, items)...)

		return true
	}
}

// banned lets nothing through for a time after a bucket was empty, which begins anew with each request.
func banned(rate float64, long time.Duration) func(int) bool {
	m := &meter{rate: rate, burst: 2 * rate}
	var until time.Time

	return func(items int) bool {
		if time.Now().Before(until) || !m.take(items) {
			until = time.Now().Add(long)
			return false
		}

		return true
	}
}
