package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/node"
)

// tide is a chain that grows on several nodes at once, at a pace that is steady or jittered, and a
// reader that follows it.
type tide struct {
	every    time.Duration
	jitter   float64 // share of every by which a block comes early or late
	nodes    int
	finality string
	blocks   int
}

// measured is what a block cost, all nodes together, and how late it was read after it was there.
type measured struct {
	items    float64
	p50, p99 time.Duration
}

// run follows the chain over http with POLL_INTERVAL's default. The second half counts.
func (c tide) run(t *testing.T) (m measured) {
	const before, confirmations, epoch = 130, 12, 32
	chain := newChain(before+uint64(c.blocks)+1, 10, 0)
	chain.crowd(60)
	cfg := Config{ChainID: 1, PollInterval: time.Second, Finality: c.finality, Confirmations: confirmations,
		URLs: slices.Repeat([]string{"http://localhost"}, c.nodes)}
	s, err := New(cfg)
	require.NoError(t, err)
	var nodes []*testNode
	for i := range s.nodes {
		n := &testNode{t: t, chain: chain, head: before, finalized: before - 2*epoch, chainID: 1, asked: map[string]int{}}
		nc := s.nodeConfig(s.nodes[i].Name(), cfg.URLs[i])
		nc.Client = &direct{node: n}
		s.nodes[i] = node.New(nc)
		nodes = append(nodes, n)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Run(ctx) }()
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

			for _, n := range nodes {
				n.set(func() { n.head, n.finalized = head, (head/epoch-2)*epoch })
			}

			mu.Lock()
			there[head] = time.Now()
			mu.Unlock()
		}
	}()
	f := filterA()
	f.Topics = append(f.Topics, topicB, common.Hash{3}, common.Hash{4}, common.Hash{5}, common.Hash{6})
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
	cancel()
	synctest.Wait()

	return m
}

func (n *testNode) total() (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.asked {
		sum += k
	}

	return sum
}

// What a block costs, and how soon it is read: the tables of ARCHITECTURE. The pause between two
// looks is a matter of each endpoint that is read from, so another one costs little.
func TestCostOfABlock(t *testing.T) {
	var table strings.Builder
	for _, finality := range []string{Confirmations, Finalized} {
		for _, nodes := range []int{1, 2, 3} {
			fmt.Fprintf(&table, "\n%s, %d:", finality, nodes)
			for _, every := range []time.Duration{12 * time.Second, 2 * time.Second, time.Second, 250 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					m := tide{every: every, jitter: 0.3, nodes: nodes, finality: finality, blocks: 200}.run(t)
					fmt.Fprintf(&table, "  %s %.2f", every, m.items)
					if every <= time.Second {
						require.Less(t, m.items, 4.5+float64(nodes-1), "%s %d %s", finality, nodes, every)
					}
				})
			}
		}
	}

	for _, jitter := range []float64{0, 0.3} {
		fmt.Fprintf(&table, "\nlatency at jitter %.1f:", jitter)
		for _, every := range []time.Duration{12 * time.Second, 2 * time.Second, time.Second, 250 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				m := tide{every: every, jitter: jitter, nodes: 1, finality: Latest, blocks: 200}.run(t)
				fmt.Fprintf(&table, "  %s p50 %s p99 %s", every, m.p50.Round(time.Millisecond), m.p99.Round(time.Millisecond))
				require.LessOrEqual(t, m.p99, 1100*time.Millisecond, "%s", every)
				if every == time.Second {
					require.LessOrEqual(t, m.p50, 250*time.Millisecond)
				}
			})
		}
	}

	t.Log(table.String())
}
