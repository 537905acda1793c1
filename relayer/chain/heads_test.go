package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

func TestFinality(t *testing.T) {
	chain := newChain(300, 1, 0)
	node := startNode(t, chain)
	node.finalized = 200
	node.lie = func(_ string, params []json.RawMessage) (any, error) {
		if len(params) > 0 && string(params[0]) == `"safe"` {
			return blockJSON(chain.headers[250]), nil
		}

		return nil, nil
	}
	at := func(n uint64) time.Time { return time.Unix(int64(chain.headers[n].Time), 0) }
	for _, c := range []struct {
		finality      string
		confirmations uint64
		target, final uint64
	}{
		{Confirmations, 12, 288, 200}, {Confirmations, 150, 150, 150}, {Confirmations, 1000, 0, 0}, {Latest, 0, 300, 200},
		{Safe, 0, 250, 200}, {Finalized, 0, 200, 200},
	} {
		s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: c.finality,
			Confirmations: c.confirmations})
		v := await(t, s, func(v View) bool { return v.Head == 300 })
		of := at(300) // whose distance to the target does not change
		if c.finality == Safe || c.finality == Finalized {
			of = at(c.target)
		}

		require.Equal(t, View{Head: 300, Target: c.target, Final: c.final, HeadTime: at(300), TargetTime: of,
			Ready: true, Trust: Believed}, v, c.finality)
	}

	// A node that knows no tags: blocks deep enough are final all the same, unless the tag decides what is processed.
	node.set(func() {
		node.lie = func(_ string, params []json.RawMessage) (any, error) {
			if len(params) > 0 && (string(params[0]) == `"safe"` || string(params[0]) == `"finalized"`) {
				return null, nil
			}

			return nil, nil
		}
	})
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Confirmations: 12})
	require.EqualValues(t, 300-deepBlocks, await(t, s, func(v View) bool { return v.Head == 300 }).Final)
	s = New(Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Safe})
	t.Cleanup(s.Close)
	s.poll(t.Context(), s.nodes[0])
	s.poll(t.Context(), s.nodes[0])
	require.False(t, s.View().Ready)
	require.ErrorContains(t, s.Health(), "FINALITY=confirmations")
}

// The View does not go back because the best node went away and the others lag, but it does not
// wait for ever for a head that was invented.
func TestViewDoesNotGoBack(t *testing.T) {
	chain := newChain(300, 1, 0)
	best, late := startNode(t, chain), startNode(t, chain)
	late.head = 250
	var offset atomic.Int64
	s := start(t, Config{URLs: []string{best.server.URL, late.server.URL}, ChainID: 1, Finality: Latest,
		believeAfter: viewHold, Now: func() time.Time {
			return time.Now().Add(time.Duration(offset.Load()))
		}})
	before := await(t, s, func(v View) bool { return v.Target == 250 && allUp(s) })
	best.stop()
	await(t, s, func(View) bool { return !s.Endpoints()[0].Up })
	late.set(func() { late.head = 260 })
	await(t, s, func(View) bool { return s.Endpoints()[1].Head == 260 })
	now := s.View()
	require.GreaterOrEqual(t, now.Final, before.Final)
	now.Final = before.Final // blocks below an older head are final as well
	require.Equal(t, before, now)
	offset.Store(int64(viewHold + time.Second))
	await(t, s, func(v View) bool { return v.Head == 260 && v.Target == 260 })
}

// Who tells of blocks that do not exist is found out, and what exists is read from the others.
func TestInventedHead(t *testing.T) {
	chain := newChain(60, 1, 0)
	liar, honest := startNode(t, chain), startNode(t, chain)
	liar.lie = func(_ string, params []json.RawMessage) (any, error) {
		if len(params) > 0 && string(params[0]) == `"latest"` {
			h := chain.headers[60]
			h.Number = 1_000_000
			return blockJSON(h), nil
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{liar.server.URL, honest.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Target == 60 && s.Endpoints()[0].LastError != "" })
	require.False(t, s.Endpoints()[0].Up)
	require.Contains(t, s.Endpoints()[0].LastError, "1000000")
	got, _ := collect(t, s, 1, 60, filterA())
	require.Equal(t, chain.all(1, 60), got)
}

// lieOnce has a node give one answer about a block with another number: that to a tag.
func (n *testNode) lieOnce(tag string, number uint64) {
	var lied atomic.Bool
	n.set(func() {
		n.lie = func(_ string, params []json.RawMessage) (any, error) {
			if len(params) == 0 || string(params[0]) != `"`+tag+`"` || lied.Swap(true) {
				return nil, nil
			}

			h := n.chain.headers[0]
			h.Number = number

			return blockJSON(h), nil
		}
	})
}

// One answer with a head, or a final block, far above the chain stops nothing for longer than a moment,
// whether its endpoint is the only one or not, at the start or later: nothing that is above the chain's
// head may be read, and none of its blocks counts as confirmed or final for it.
func TestOneAbsurdAnswer(t *testing.T) {
	const absurd = 1_000_000_000_000
	for _, finality := range []string{Latest, Finalized} {
		for _, tag := range []string{"latest", "finalized"} {
			for _, endpoints := range []int{1, 2} {
				for _, atStart := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, %s, %d endpoints, at the start %t", finality, tag, endpoints, atStart), func(t *testing.T) {
						t.Parallel()
						chain := newChain(200, 1, 0)
						liar, honest := startNode(t, chain), startNode(t, chain)
						set := func(head uint64) {
							for _, n := range []*testNode{liar, honest} {
								n.set(func() { n.head, n.finalized = head, head-20 })
							}
						}
						set(100)
						if atStart {
							liar.lieOnce(tag, absurd)
						}

						s := start(t, Config{URLs: []string{liar.server.URL, honest.server.URL}[:endpoints], ChainID: 1,
							Finality: finality, PollInterval: 20 * time.Millisecond})
						await(t, s, func(v View) bool { return v.Target >= 80 })
						if !atStart {
							liar.lieOnce(tag, absurd)
						}

						for head := uint64(101); head <= 110; head++ {
							set(head)
							v := await(t, s, func(v View) bool { return v.Head >= head })
							require.LessOrEqual(t, v.Target, head)
							if finality == Finalized {
								require.LessOrEqual(t, v.Target, head-20)
							}
						}
					})
				}
			}
		}
	}
}

// A final block that no endpoint calls so any more, as after one wrong answer, does not stay the target
// for ever.
func TestFinalBlockThatNobodyVouchesFor(t *testing.T) {
	n := startNode(t, newChain(100, 1, 0))
	n.finalized = 90
	var offset atomic.Int64
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Finalized, Now: func() time.Time {
		return time.Now().Add(time.Duration(offset.Load()))
	}})
	await(t, s, func(v View) bool { return v.Target == 90 })
	n.set(func() { n.finalized = 60 })
	await(t, s, func(View) bool { return s.nodes[0].Claim().Final.Number == 60 })
	require.EqualValues(t, 90, s.View().Target, "an endpoint that lags does not turn the clock back")
	offset.Store(int64(viewHold + time.Second))
	await(t, s, func(v View) bool { return v.Target == 60 && v.Final == 60 && v.Head == 100 })
}

// At the head, over a WebSocket, a block costs one request, however many watch it.
func TestOneRequestABlock(t *testing.T) {
	chain := newChain(50, 1, 0)
	node := startNode(t, chain)
	node.head = 40
	s := start(t, Config{URLs: []string{node.ws()}, ChainID: 1, Finality: Latest, PollInterval: time.Hour})
	await(t, s, func(v View) bool { return v.Head == 40 && node.count(rpc.Subscribe) == 1 })
	f := filterA()
	collect(t, s, 38, 40, f)
	headers, logs := node.count(rpc.GetByNumber)+node.count(rpc.GetByHash), node.count(rpc.GetLogs)
	for head := uint64(41); head <= 50; head++ {
		node.set(func() { node.head = head })
		node.announce()
		await(t, s, func(v View) bool { return v.Head == head })
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for b, err := range s.Read(t.Context(), head, head, f) {
					require.NoError(t, err)
					require.Equal(t, chain.all(head, head), b.Logs)
					require.Equal(t, chain.headers[head-1].Hash, b.Parent)
				}
			})
		}

		wg.Wait()
	}

	require.Equal(t, 10, node.count(rpc.GetLogs)-logs)
	require.Zero(t, node.count(rpc.GetByNumber)+node.count(rpc.GetByHash)-headers)
}

// A connection that breaks is replaced, and answers that were awaited are asked for again elsewhere.
func TestReconnect(t *testing.T) {
	t.Parallel()
	chain := newChain(50, 1, 0)
	node, reserve := startNode(t, chain), startNode(t, chain)
	s := start(t, Config{URLs: []string{node.ws(), reserve.ws()}, ChainID: 1, Finality: Latest, Timeout: 10 * time.Second})
	await(t, s, func(View) bool { return allUp(s) })
	for i := range 5 {
		for next := uint64(1); next <= 50; {
			for b, err := range s.Read(t.Context(), next, 50, filterA()) {
				if err != nil { // one endpoint's word does not count yet
					require.ErrorIs(t, err, ErrDisagree)
					break
				}

				require.Equal(t, chain.all(b.From, b.To), b.Logs)
				if next = b.To + 1; next == uint64(10*i) {
					node.disconnect()
				}
			}
		}
	}

	await(t, s, func(View) bool { return allUp(s) && node.count(rpc.Subscribe) > 1 })
}

// Without subscriptions a WebSocket is polled.
func TestNoSubscriptions(t *testing.T) {
	chain := newChain(50, 1, 0)
	node := startNode(t, chain)
	node.head = 40
	node.lie = func(method string, _ []json.RawMessage) (any, error) {
		if method == rpc.Subscribe {
			return nil, http.ErrNotSupported
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{node.ws()}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Head == 40 })
	node.set(func() { node.head = 50 })
	await(t, s, func(v View) bool { return v.Head == 50 })
}

// A node that ends the connection over which it is to announce its head, at once or a little later, is polled, and
// seldom asked for that again.
func TestSubscriptionsEndTheConnection(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			chain := newChain(60, 1, 0)
			var p pipes
			node, host := p.node(t, chain)
			node.head = 50
			node.limit = func(body []byte, _ func()) []byte {
				answer := node.serve(body, func() {})
				switch subscribes := strings.Contains(string(body), rpc.Subscribe); {
				case subscribes && answers:
					time.AfterFunc(time.Millisecond, host.cut)
				case subscribes:
					host.cut()
				}

				return answer
			}
			s := start(t, Config{URLs: []string{node.ws()}, ChainID: 1, Finality: Latest, PollInterval: time.Second,
				Dial: p.dial})
			await(t, s, func(v View) bool { return v.Head == 50 })
			<-time.After(10 * time.Minute)
			require.Less(t, node.count(rpc.Subscribe), 100)
			node.set(func() { node.head = 60 })
			await(t, s, func(v View) bool { return v.Head == 60 })
		})
	}
}

// A node without subscriptions is polled, asked for one now and then, and the log says so once.
func TestNoSubscriptionsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		node, _ := p.node(t, newChain(60, 1, 0))
		node.lie = func(method string, _ []json.RawMessage) (any, error) {
			if method == rpc.Subscribe {
				return nil, errors.New("the method eth_subscribe does not exist/is not available")
			}

			return nil, nil
		}
		var mu sync.Mutex
		var log strings.Builder
		s := start(t, Config{URLs: []string{node.ws()}, ChainID: 1, Finality: Latest, PollInterval: time.Second, Dial: p.dial,
			Logger: slogTo(&mu, &log)})
		await(t, s, func(v View) bool { return v.Head == 60 })
		<-time.After(2 * time.Hour)
		require.Greater(t, node.count(rpc.Subscribe), 10)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 1, strings.Count(log.String(), "endpoint refuses to announce its head"), log.String())
	})
}

// A reader that is called off is no answer for another that waits for the same block.
func TestMemo(t *testing.T) {
	m := newMemo()
	key := memoKey{hash: common.Hash{1}}
	ctx, cancel := context.WithCancel(t.Context())
	started, joined := make(chan struct{}), make(chan struct{})
	go func() {
		_, err := m.get(ctx, key, func() (reading, error) {
			close(started)
			<-ctx.Done()
			return reading{}, ctx.Err()
		})
		if err != nil {
			close(joined)
		}
	}()
	<-started
	go cancel()
	got, err := m.get(t.Context(), key, func() (reading, error) { return reading{logs: []types.Log{{Index: 7}}}, nil })
	require.NoError(t, err)
	require.EqualValues(t, 7, got.logs[0].Index)
	<-joined
	for i := range 3 * memoSize {
		_, err := m.get(t.Context(), memoKey{hash: common.Hash{2, byte(i), byte(i >> 8)}},
			func() (reading, error) { return reading{}, nil })
		require.NoError(t, err)
	}

	require.Equal(t, memoSize, m.entries.Len())
}

// Start, stop in the middle of everything, and leave nothing behind: TestMain looks for goroutines.
func TestStop(t *testing.T) {
	chain := newChain(100, 1, 0)
	node := startNode(t, chain)
	node.finalized = 50
	for i := range 20 {
		s := New(Config{URLs: []string{node.ws(), node.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 3,
			PollInterval: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if i > 0 {
			await(t, s, func(v View) bool { return v.Final == 50 })
			read := 0
			for _, err := range s.Read(ctx, 1, 100, filterA()) {
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					break
				}

				if read++; read == i {
					if i%2 == 0 {
						break
					}

					cancel()
				}
			}
		}

		cancel()
		require.NoError(t, <-done)
	}
}

// Where the tag that decides is not given, Health says so, though the endpoint answers all else: the head
// is not known, or does not move, for a reason that is not the chain's.
func TestHealthNamesTheMissingTag(t *testing.T) {
	n := startNode(t, newChain(100, 1, 0))
	n.lie = func(_ string, params []json.RawMessage) (any, error) {
		if len(params) > 0 && string(params[0]) == `"finalized"` {
			return null, nil
		}

		return nil, nil
	}
	s := New(Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Finalized})
	t.Cleanup(s.Close)
	s.poll(t.Context(), s.nodes[0])
	_, err := s.nodes[0].Header(t.Context(), 1)
	require.NoError(t, err)
	require.True(t, s.Endpoints()[0].Up)
	require.ErrorContains(t, s.Health(), "the head of the chain is not known yet")
	require.ErrorContains(t, s.Health(),
		"it does not know the finalized block: wait for it, or set FINALITY=confirmations")
}

// A number is final on the branch of its block only: where machines behind two URLs have stayed on a branch that the
// chain has left, and others there name the final block, what the former have at that height is not processed.
func TestATagIsOfItsBranch(t *testing.T) {
	for final, refusal := range map[uint64]error{16: ErrDisagree, 20: ErrBehind} { // below the tip, and above it
		left := newChain(19, 1, 0)
		chain := left.fork(15, 1, 1)
		var urls []string
		var nodes []*testNode
		for range 2 {
			n := startNode(t, left)
			n.lie = func(_ string, params []json.RawMessage) (any, error) {
				if len(params) > 0 && string(params[0]) == `"finalized"` {
					return blockJSON(chain.headers[final]), nil
				}

				return nil, nil //nolint:nilnil // the truth
			}
			urls, nodes = append(urls, n.server.URL), append(nodes, n)
		}

		s := start(t, Config{URLs: urls, ChainID: 1, Finality: Finalized})
		await(t, s, func(v View) bool { return v.Target == min(final, 19) && v.Head == 19 && allUp(s) })
		for _, err := range s.Read(t.Context(), 1, min(final, 19), filterA()) {
			require.ErrorIs(t, err, refusal, "finalized %d", final)
		}

		for _, n := range nodes {
			n.set(func() { n.chain, n.head = chain, 20 })
		}

		await(t, s, func(v View) bool { return v.Head == 20 })
		got, _ := collect(t, s, 1, final, filterA())
		require.Equal(t, chain.all(1, final), got)
	}
}

// A final block far above all that is known, of one endpoint, takes neither memory nor headers without end, also where
// what another one calls final is of another branch.
func TestFinalBlockFarAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(100, 1, 0)
		var p pipes
		liar, _ := p.node(t, chain)
		honest, _ := p.node(t, chain)
		liar.finalized = 80
		other := chain.headers[80]
		other.Hash = common.Hash{9}
		honest.lie = func(_ string, params []json.RawMessage) (any, error) {
			if len(params) > 0 && string(params[0]) == `"finalized"` {
				return blockJSON(other), nil
			}

			return nil, nil
		}
		s := start(t, Config{URLs: []string{liar.server.URL, honest.server.URL}, ChainID: 1, Finality: Finalized,
			Dial: p.dial})
		await(t, s, func(v View) bool { return v.Target == 80 && allUp(s) })
		top, parent := chain.headers[1], chain.headers[0]
		top.Number, parent.Number = 1<<40, 1<<40-1
		liar.set(func() {
			liar.lie = func(method string, params []json.RawMessage) (any, error) {
				switch {
				case method == rpc.GetByHash:
					return blockJSON(parent), nil
				case len(params) > 0 && strings.Contains(`"latest" "finalized"`, string(params[0])):
					return blockJSON(top), nil
				}

				return nil, nil
			}
		})
		await(t, s, func(View) bool { return s.nodes[0].Claim().Final.Number == top.Number && allUp(s) })
		for _, err := range s.Read(t.Context(), 60, 80, filterA()) {
			require.ErrorIs(t, err, ErrDisagree)
		}
	})
}

// An endpoint that announces inventions all the time does not have another one asked for each of them.
func TestInventionsAskNothingOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(60, 1, 0)
		forks := []*testChain{chain.fork(51, 1, 1), chain.fork(51, 1, 2)}
		var p pipes
		honest, _ := p.node(t, chain)
		liar, _ := p.node(t, chain)
		honest.head, liar.head = 50, 50
		s := start(t, Config{URLs: []string{honest.server.URL, liar.ws()}, ChainID: 1, Finality: Latest, Dial: p.dial,
			PollInterval: time.Second})
		await(t, s, func(v View) bool { return v.Target == 50 && liar.count(rpc.Subscribe) > 0 })
		before := honest.count(rpc.GetByNumber)
		honest.set(func() { honest.head = 60 })
		for i := range 6000 {
			liar.set(func() { liar.chain, liar.head = forks[i%2], 51 })
			liar.announce()
			<-time.After(10 * time.Millisecond)
		}

		require.EqualValues(t, 50, s.View().Target)
		require.Less(t, honest.count(rpc.GetByNumber)-before, 600)
	})
}
