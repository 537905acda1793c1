package source

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"
)

// living is a chain that grows, and who reads it as a watch does.
type living struct {
	s        *Source
	node     *testNode
	born     map[uint64]time.Time
	delays   []time.Duration // from a block's arrival at the node to its logs here, over the second half
	requests float64         // a block, over the second half
}

func (n *testNode) total() (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.asked {
		sum += k
	}
	return sum
}

// live lets a chain make blocks for a while, whose arrivals deviate, and reads them.
func live(t *testing.T, cfg Config, blocks int, every, spread time.Duration, logsEvery uint64, prepare func(*testNode)) *living {
	t.Helper()
	const before = 40
	chain := newChain(before+uint64(blocks)+1, logsEvery, 0)
	random := rand.New(rand.NewPCG(1, 2))
	cfg.Rand = random.Float64
	cfg.ChainID, cfg.URLs = 1, []string{"http://localhost"}
	s, err := New(cfg)
	require.NoError(t, err)
	n := &testNode{t: t, chain: chain, head: before, chainID: 1, asked: map[string]int{}}
	if prepare != nil {
		prepare(n)
	}
	s.endpoints[0].conn = &direct{node: n}
	l := &living{s: s, node: n, born: map[uint64]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	half := before + uint64(blocks)/2
	asked := 0
	go func() {
		begun := time.Now().Add(437 * time.Millisecond)
		for i := range blocks {
			due := begun.Add(time.Duration(i)*every + time.Duration((random.Float64()-0.5)*float64(spread)))
			<-time.After(time.Until(due))
			n.set(func() { n.head++; l.born[n.head] = time.Now() })
			if n.head == half {
				asked = n.total()
			}
		}
		<-time.After(every)
		l.requests = float64(n.total() - asked)
		<-time.After(every + 2*time.Second)
		cancel()
		done <- nil
	}()
	f := filterA()
	other := make(chan error, 1)
	go func() { // another watch, which reads the same
		for at := uint64(before) - cfg.Confirmations + 1; ctx.Err() == nil; {
			news := s.Changed()
			if v := s.View(); v.Ready && v.Target >= at {
				for b, err := range s.Read(ctx, at, v.Target, f) {
					if err != nil {
						<-time.After(50 * time.Millisecond)
						break
					}
					at = b.To + 1
				}
				continue
			}
			select {
			case <-news:
			case <-ctx.Done():
			}
		}
		other <- nil
	}()
	next := uint64(0)
	for ctx.Err() == nil {
		news := s.Changed()
		if v := s.View(); v.Ready && v.Target >= max(next, 1) {
			if next == 0 {
				next = v.Target + 1
				continue
			}
			for b, err := range s.Read(ctx, next, v.Target, f) {
				if err != nil {
					<-time.After(50 * time.Millisecond)
					break
				}
				require.Equal(t, chain.all(b.From, b.To), b.Logs)
				require.Equal(t, chain.headers[b.From].Parent, b.Parent)
				n.mu.Lock()
				if at, ok := l.born[b.To+cfg.Confirmations]; ok && b.To+cfg.Confirmations > half {
					l.delays = append(l.delays, time.Since(at))
				}
				n.mu.Unlock()
				next = b.To + 1
			}
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
		}
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.NoError(t, <-other)
	require.EqualValues(t, before+uint64(blocks)-cfg.Confirmations+1, next, "all was read")
	slices.Sort(l.delays)
	l.requests /= float64(n.head - half)
	t.Logf("%.3f requests a block; %d blocks after p50 %s, p90 %s, p99 %s", l.requests, len(l.delays), l.quantile(.5), l.quantile(.9), l.quantile(.99))
	return l
}

func (l *living) quantile(q float64) time.Duration { return l.delays[int(q*float64(len(l.delays)-1))] }

// At the head, over HTTP, a block costs two requests at most, whatever the looks that come too early cost, and is mostly read as soon as it is there.
func TestTwoRequestsABlock(t *testing.T) {
	for name, c := range map[string]struct {
		cfg       Config
		spread    time.Duration
		logsEvery uint64
		p50       time.Duration
	}{
		"latest":             {Config{Finality: Latest}, 0, 1, 100 * time.Millisecond},
		"late and early":     {Config{Finality: Latest}, 60 * time.Millisecond, 1, 300 * time.Millisecond},
		"unsteady":           {Config{Finality: Latest}, 250 * time.Millisecond, 1, 500 * time.Millisecond},
		"few logs":           {Config{Finality: Latest}, 0, 10, 100 * time.Millisecond},
		"confirmations":      {Config{Finality: Confirmations, Confirmations: 3}, 0, 1, 100 * time.Millisecond},
		"confirmed few logs": {Config{Finality: Confirmations, Confirmations: 12}, 60 * time.Millisecond, 10, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.cfg.PollInterval = time.Second
				l := live(t, c.cfg, 600, time.Second, c.spread, c.logsEvery, nil)
				require.LessOrEqual(t, l.requests, 2.0)
				require.Less(t, l.quantile(.5), c.p50)
				require.Less(t, l.quantile(1), 2500*time.Millisecond)
			})
		})
	}
}

// Where blocks come slowly and irregularly, or much faster than the looks.
func TestOtherTempos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := live(t, Config{Finality: Latest, PollInterval: time.Second}, 200, 12*time.Second, 2*time.Second, 1, nil)
		require.Less(t, l.requests, 7.0)
		require.Less(t, l.quantile(.5), time.Second)
	})
	synctest.Test(t, func(t *testing.T) {
		l := live(t, Config{Finality: Latest, PollInterval: time.Second}, 1000, 250*time.Millisecond, 0, 1, nil)
		require.LessOrEqual(t, l.requests, 2.0)
		require.Less(t, l.quantile(1), 2*time.Second)
	})
}

// What a hint lacks is not believed: the block is read by its hash.
func TestHintsProveThemselves(t *testing.T) {
	for name, lie := range map[string]func(*testNode) func([]types.Log) []types.Log{
		"left out": func(*testNode) func([]types.Log) []types.Log {
			return func([]types.Log) []types.Log { return []types.Log{} }
		},
		"of another block": func(n *testNode) func([]types.Log) []types.Log {
			return func(logs []types.Log) []types.Log {
				for i := range logs {
					logs[i].BlockHash[0]++
				}
				return logs
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, cfg := range []Config{{Finality: Latest}, {Finality: Confirmations, Confirmations: 2}} {
					cfg.PollInterval = time.Second
					l := live(t, cfg, 200, time.Second, 0, 1, func(n *testNode) {
						change := lie(n)
						wrong := changing(n, change)
						n.lie = func(method string, params []json.RawMessage) (any, error) {
							n.mu.Lock()
							hinted := len(n.batches) > 0 && slices.Contains(n.batches[len(n.batches)-1], numberMethod)
							n.mu.Unlock()
							if !hinted || method != logsMethod {
								return nil, nil
							}
							return wrong(method, params)
						}
					})
					require.True(t, l.s.hints.worth < worthwhile, "they are given up")
					require.Less(t, l.requests, 3.5)
				}
			})
		})
	}
}
