package chain

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/race"
)

// tide is a chain that grows on several nodes at once, at a pace that is steady or jittered, a reader
// that follows it, and a verifier's second readings.
type tide struct {
	kind     string // http or ws
	every    time.Duration
	jitter   float64 // share of every by which a block comes early or late
	nodes    int
	finality string
	epoch    uint64 // blocks by which the finalized tag moves, two of them below the head
	blocks   int
}

// measured is what a block cost, all nodes together, and how late it was read after it was there.
type measured struct {
	items    float64
	p50, p99 time.Duration
}

// serve starts the nodes that cfg is to read, in a network of their own.
func (c tide) serve(t *testing.T, chain *testChain, cfg *Config, head, finalized uint64) (nodes []*testNode) {
	var p pipes
	cfg.Dial = p.dial
	for range c.nodes {
		n, _ := p.node(t, chain)
		n.head, n.finalized, n.receipts = head, finalized, true
		nodes = append(nodes, n)
		cfg.URLs = append(cfg.URLs, map[string]string{"http": n.server.URL, "ws": n.ws()}[c.kind])
	}

	return nodes
}

// run follows the chain with POLL_INTERVAL's default, through the real client and server. The second
// half counts.
func (c tide) run(t *testing.T) (m measured) {
	const before, confirmations = 130, 12
	epoch := cmp.Or(c.epoch, 32)
	chain := newChain(before+uint64(c.blocks)+1, 10, 0)
	chain.crowd(60)
	chain.seal()
	cfg := Config{ChainID: 1, PollInterval: time.Second, Finality: c.finality, Confirmations: confirmations}
	nodes := c.serve(t, chain, &cfg, before, before-2*epoch)
	s := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = s.Run(ctx) })
	var mu sync.Mutex
	there := make([]time.Time, len(chain.headers))
	random := rand.New(rand.NewPCG(1, 2))
	total := func() (sum int) {
		for _, n := range nodes {
			sum += n.total()
		}

		return sum
	}
	start, half := 0, before+c.blocks/2
	grown := make(chan struct{})
	go func() {
		defer close(grown)
		for head := uint64(before + 1); head <= uint64(before+c.blocks); head++ {
			<-time.After(time.Duration(float64(c.every) * (1 + c.jitter*(2*random.Float64()-1))))
			if head == uint64(half) {
				start = total()
			}

			mu.Lock()
			there[head] = time.Now()
			mu.Unlock()
			for _, n := range nodes {
				n.set(func() { n.head, n.finalized = head, (head/epoch-2)*epoch })
				n.announce()
			}
		}
	}()
	f := filterA()
	f.Topics = append(f.Topics, topicB, common.Hash{3}, common.Hash{4}, common.Hash{5}, common.Hash{6})
	running.Go(func() { c.verify(ctx, s, f) })
	var late []time.Duration
	depth := uint64(0)
	if c.finality == Confirmations {
		depth = confirmations
	}

	last := uint64(before+c.blocks) - depth
	if c.finality == Finalized {
		last = (uint64(before+c.blocks)/epoch - 2) * epoch
	}

	for next := uint64(0); next <= last; {
		news := s.Changed()
		if v := s.View(); v.Ready && v.Target >= max(next, 1) {
			if next == 0 {
				next = v.Target + 1
				continue
			}

			for b, err := range s.Read(ctx, next, v.Target, f) {
				require.NoError(t, err)
				next = b.To + 1
				mu.Lock()
				at := there[min(b.To+depth, uint64(len(there)-1))]
				mu.Unlock()
				if b.To+depth > uint64(half) && !at.IsZero() {
					late = append(late, time.Since(at))
				}
			}

			continue
		}

		<-news
	}

	<-grown
	m.items = float64(total()-start) / float64(c.blocks/2)
	slices.Sort(late)
	m.p50, m.p99 = late[len(late)/2], late[len(late)*99/100]

	return m
}

// verify reads a second time as package verify does at its default: every 30 s, where 32 blocks or
// ten such times have come together.
func (c tide) verify(ctx context.Context, s *Source, f *Filter) {
	from, waited := uint64(0), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
		}

		final := s.View().Final
		if from == 0 {
			from = final
		}

		if waited++; final <= from || final-from < 32 && waited < 10 {
			continue
		}

		for b, err := range s.ReadOther(Later(ctx), Batch{From: from + 1, To: final, Filter: f}) {
			if err != nil {
				return
			}

			for _, err := range s.ReadOther(Later(ctx), b) {
				if err != nil {
					return
				}
			}
		}

		from, waited = final, 0
	}
}

func (n *testNode) total() (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.asked {
		sum += k
	}

	return sum
}

// blockTimes are those of the tables.
var blockTimes = []time.Duration{12 * time.Second, 2 * time.Second, time.Second, 250 * time.Millisecond}

// What a block costs, and how soon it is read: the tables of internal/bench/MEASURED.md. COST_TABLE=full measures
// all of them, and -v prints them.
func TestCostOfABlock(t *testing.T) {
	// Finalized is read an epoch at a time, three of which have to pass.
	full, blocks := os.Getenv("COST_TABLE") == "full", map[string]int{Finalized: 160, Confirmations: 80, Latest: 80}
	if full {
		blocks = map[string]int{Finalized: 200, Confirmations: 200, Latest: 200}
	}

	times := blockTimes
	switch {
	case race.Detector:
		times = times[len(times)-1:]
	case !full && !long.Tables:
		times = []time.Duration{times[0], times[len(times)-1]}
	}

	for _, kind := range []string{"http", "ws"} {
		for _, finality := range []string{Confirmations, Finalized} {
			for _, nodes := range []int{1, 2, 3} {
				for _, every := range times {
					name := fmt.Sprintf("items.%s.%s.%d.%s", kind, finality, nodes, every)
					if !full && (nodes > 1 && finality == Confirmations || nodes == 3 && kind == "http") {
						continue
					}

					t.Run(name, func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) {
							m := tide{kind: kind, every: every, jitter: 0.3, nodes: nodes, finality: finality,
								blocks: blocks[finality]}.run(t)
							t.Logf("figure %s %.2f items", name, m.items)
							most := map[string]float64{"http": 4, "ws": 2}[kind] + 0.6*float64(nodes-1)
							if kind == "http" && finality == Confirmations && every > 2*time.Second {
								most += 4 // what looks every POLL_INTERVAL cost
							}

							require.LessOrEqual(t, m.items, most)
						})
					})
				}
			}
		}

		for _, every := range times { // a chain that calls each block final when two are on top of it
			name := fmt.Sprintf("items.%s.soonfinal.1.%s", kind, every)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					m := tide{kind: kind, every: every, jitter: 0.3, nodes: 1, finality: Finalized, epoch: 1,
						blocks: blocks[Latest]}.run(t)
					t.Logf("figure %s %.2f items", name, m.items)
					require.LessOrEqual(t, m.items, map[string]float64{"http": 4, "ws": 2.5}[kind])
				})
			})
		}

		for _, jitter := range []float64{0, 0.3} {
			for _, every := range times {
				how := map[bool]string{true: "steady", false: "jittered"}[jitter == 0]
				name := fmt.Sprintf("latency.%s.%s.%s", kind, how, every)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						m := tide{kind: kind, every: every, jitter: jitter, nodes: 1, finality: Latest,
							blocks: blocks[Latest]}.run(t)
						t.Logf("figure %s.p50 %d ms", name, m.p50.Milliseconds())
						t.Logf("figure %s.p99 %d ms", name, m.p99.Milliseconds())
						require.LessOrEqual(t, m.p99, 1100*time.Millisecond)
						if every == time.Second {
							require.LessOrEqual(t, m.p50, 250*time.Millisecond)
						}
					})
				})
			}
		}
	}
}

// An endpoint whose tags stand still, or are always behind, delays what the others call final, and
// does not stop it, also where that moves with every block.
func TestOneThatIsBehindStopsNobody(t *testing.T) {
	for _, kind := range []string{"http", "ws"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const before, deep, blocks = 100, 10, 120
				chain := newChain(before+blocks, 10, 0)
				cfg := Config{ChainID: 1, PollInterval: time.Second, Finality: Finalized}
				nodes := tide{kind: kind, nodes: 3}.serve(t, chain, &cfg, before, before-deep)
				s := New(cfg)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				defer running.Wait()
				defer cancel()
				running.Go(func() { _ = s.Run(ctx) })
				for head := uint64(before + 1); head <= before+blocks; head++ {
					<-time.After(time.Second)
					for i, n := range nodes {
						n.set(func() {
							if n.head = head; i < 2 {
								n.finalized = head - deep
							}
						})
						n.announce()
					}
				}

				synctest.Wait()
				require.GreaterOrEqual(t, s.View().Target, uint64(before+blocks-deep-20))
			})
		})
	}
}
