package chain

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// What happens to a connection is over within 10 s of its cause's end, and every block is read, in order.
func TestOutages(t *testing.T) {
	outages := map[string]func(n *testNode, h *host){
		"its subscription goes silent": func(n *testNode, _ *host) {
			n.set(func() {
				for c := range n.sockets {
					n.sockets[c] = nil
				}
			})
		},
		"its connections end every 10 s": func(_ *testNode, h *host) {
			for range 6 {
				<-time.After(10 * time.Second)
				h.cut()
			}
		},
		"it refuses connections for 20 s": func(_ *testNode, h *host) {
			h.refuse(true)
			<-time.After(20 * time.Second)
			h.refuse(false)
		},
	}
	for name, cause := range outages {
		for _, kind := range []string{"http", "ws"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { outage(t, kind, cause) })
			})
		}
	}
}

func outage(t *testing.T, kind string, cause func(n *testNode, h *host)) {
	const first, blocks = 20, 180
	chain := newChain(first+blocks, 1, 0)
	var p pipes
	n, h := p.node(t, chain)
	n.head = first
	url := n.server.URL
	if kind == "ws" {
		url = n.ws()
	}

	s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second, Dial: p.dial})
	await(t, s, func(v View) bool { return v.Head == first })
	begun := time.Now()
	came := func(block uint64) time.Time { return begun.Add(time.Duration(block-first) * time.Second) }
	var growing sync.WaitGroup
	defer growing.Wait()
	growing.Go(func() {
		for block := uint64(first + 1); block <= first+blocks; block++ {
			<-time.After(time.Until(came(block)))
			n.set(func() { n.head = block })
			n.announce()
		}
	})
	read := map[uint64]time.Time{}
	ended := make(chan time.Time, 1)
	growing.Go(func() {
		<-time.After(30 * time.Second) // the tempo is known by then
		cause(n, h)
		ended <- time.Now()
	})
	for next := uint64(first + 1); next <= first+blocks; {
		news := s.Changed()
		for b, err := range s.Read(t.Context(), next, s.View().Target, filterA()) {
			if err != nil {
				break
			}

			require.Equal(t, next, b.From)
			require.Equal(t, chain.all(b.From, b.To), b.Logs)
			for ; next <= b.To; next++ {
				read[next] = time.Now()
			}
		}

		select {
		case <-news:
		case <-time.After(time.Second): // as a watch does after an error
		}
	}

	back := (<-ended).Add(10 * time.Second)
	for block, at := range read {
		late := at.Sub(came(block))
		switch {
		case came(block).Before(begun.Add(30 * time.Second)):
		case came(block).Before(back):
			require.False(t, at.After(back), "block %d was read %s after the cause's end", block, at.Sub(back)+10*time.Second)
		case kind == "ws":
			require.Less(t, late, 100*time.Millisecond, "block %d is announced again", block)
		default:
			require.LessOrEqual(t, late, time.Second, "block %d", block)
		}
	}

	require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)
	if kind == "ws" {
		require.Greater(t, n.count(rpc.Subscribe), 1)
	}
}
