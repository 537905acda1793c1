package chain

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// direct is a node that is asked over pipes, so that time in a bubble goes on.
type direct struct {
	node *testNode
	host *host
}

// startDirect runs a Source on nodes without sockets, in a bubble.
func startDirect(t *testing.T, chain *testChain, nodes int, cfg Config) (*Source, []*direct) {
	t.Helper()
	var p pipes
	cfg.ChainID, cfg.Finality, cfg.Dial, cfg.believeAfter = 1, Latest, p.dial, 50*time.Millisecond
	list := make([]*direct, nodes)
	for i := range list {
		n, h := p.node(t, chain)
		list[i] = &direct{n, h}
		cfg.URLs = append(cfg.URLs, n.server.URL)
	}

	s := start(t, cfg)
	await(t, s, func(v View) bool { return v.Head == uint64(len(chain.headers)-1) })

	return s, list
}

// foreign makes a node add what nobody asked for to all logs, or tell the truth again.
func (d *direct) foreign(on bool) {
	d.node.set(func() {
		d.node.lie = nil
		if on {
			d.node.lie = changing(d.node, func(logs []types.Log) []types.Log {
				logs[0].Topics = []common.Hash{topicB}
				return logs
			})
		}
	})
}

// persist reads as a watch does, again and again, until all is read, and says how long that took.
// What is wrong is never handed out.
func persist(t *testing.T, s *Source, chain *testChain, limit time.Duration) time.Duration {
	t.Helper()
	begun := time.Now()
	to := uint64(len(chain.headers) - 1)
	for next := uint64(1); next <= to; {
		require.Less(t, time.Since(begun), limit, "%+v", s.Endpoints())
		for b, err := range s.Read(t.Context(), next, to, filterA()) {
			if err != nil {
				break
			}

			require.Equal(t, chain.all(b.From, b.To), b.Logs)
			next = b.To + 1
		}

		if next <= to {
			<-time.After(100 * time.Millisecond)
		}
	}

	return time.Since(begun)
}

// When all endpoints have lied, for however long, they are tried again seconds after they have stopped.
func TestAloneALiarIsTriedAgainSoon(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		for _, jitter := range []float64{0, 0.999} {
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(40, 4, 0)
				s, list := startDirect(t, chain, nodes, Config{Rand: func() float64 { return jitter }})
				for _, d := range list {
					d.foreign(true)
				}

				lying, asked := time.Now(), 0
				for time.Since(lying) < 10*time.Minute {
					for b, err := range s.Read(t.Context(), 4, 40, filterA()) {
						require.Error(t, err, "block %d", b.To)
					}

					<-time.After(100 * time.Millisecond)
				}

				for _, d := range list {
					asked += d.node.count(rpc.GetLogs)
				}

				require.Less(t, asked, nodes*3*200, "pauses of seconds, not a loop")
				for _, d := range list {
					d.foreign(false)
				}

				require.Less(t, persist(t, s, chain, time.Minute), endpoint.LongestWait+time.Second)
				require.NoError(t, s.Health())
			})
		}
	}
}

// While another serves, a liar stays out for long, and is back seconds after the other is gone.
func TestALiarStaysOutWhileOthersServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(40, 4, 0)
		s, list := startDirect(t, chain, 2, Config{})
		liar, other := list[0], list[1]
		liar.foreign(true)
		begun := time.Now()
		persist(t, s, chain, 3*time.Second)
		require.False(t, s.Endpoints()[0].Up)
		liar.foreign(false)
		before := liar.node.count(rpc.GetByNumber) + liar.node.count(rpc.GetLogs)
		<-time.After(time.Until(begun.Add(29 * time.Second)))
		require.Equal(t, before, liar.node.count(rpc.GetByNumber)+liar.node.count(rpc.GetLogs))
		require.False(t, s.Endpoints()[0].Up)
		<-time.After(30 * time.Second)
		require.True(t, s.Endpoints()[0].Up, "its time is up")

		liar.foreign(true)
		persist(t, s, chain, 3*time.Second)
		liar.foreign(false)
		<-time.After(10 * time.Second)
		require.False(t, s.Endpoints()[0].Up)
		other.host.refuse(true)
		require.Less(t, persist(t, s, chain, time.Minute), endpoint.LongestWait+time.Second)
		require.True(t, s.Endpoints()[0].Up)
		require.NoError(t, s.Health())
	})
}

// One that was used for want of a better one is out again when that one is back, unless it has told
// the truth meanwhile.
func TestALiarIsOutAgainWhenAnotherIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(40, 4, 0)
		s, list := startDirect(t, chain, 2, Config{})
		list[0].foreign(true)
		persist(t, s, chain, 3*time.Second)
		list[1].host.refuse(true)
		<-time.After(15 * time.Second)
		require.True(t, s.Endpoints()[0].Up, "it still tells the head")
		list[1].host.refuse(false)
		<-time.After(8*time.Second + 10*time.Second)
		require.True(t, s.Endpoints()[1].Up)
		s.nodes[0].Blame(t.Context(), rpc.ErrInvalid)
		<-time.After(10 * time.Second)
		require.False(t, s.Endpoints()[0].Up)
	})
}

// What a liar says of a header is no proof of a reorganisation: it does not lead to the head.
func TestALiarHasNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(40, 4, 0)
		s, list := startDirect(t, chain, 1, Config{})
		list[0].foreign(true)
		for _, err := range s.Read(t.Context(), 4, 40, filterA()) {
			require.Error(t, err)
		}

		wrong := chain.headers[20]
		wrong.Hash = common.Hash{0xbad >> 4}
		list[0].node.set(func() {
			list[0].node.lie = func(method string, params []json.RawMessage) (any, error) {
				switch {
				case method == rpc.GetByNumber && string(params[0]) == `"0x14"`, method == rpc.GetByHash:
					return blockJSON(wrong), nil
				case method == rpc.GetLogs:
					return []types.Log{}, nil
				}

				return nil, nil
			}
		})
		begun := time.Now()
		for time.Since(begun) < 5*time.Minute {
			if h, err := s.Canonical(t.Context(), 20, chain.headers[20].Hash); err == nil {
				require.Equal(t, chain.headers[20], h)
			}

			<-time.After(time.Second)
		}

		list[0].foreign(false)
		begun = time.Now()
		for {
			h, err := s.Canonical(t.Context(), 20, chain.headers[20].Hash)
			if err == nil {
				require.Equal(t, chain.headers[20], h)
				break
			}

			require.Less(t, time.Since(begun), endpoint.LongestWait+2*time.Second)
			<-time.After(time.Second)
		}
	})
}

// The same through a proxy that adds logs and leaves all out, in front of a real chain: nothing
// wrong is read, and what is right as soon as the lies end.
func TestLiesEndBehindAProxy(t *testing.T) {
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 3})
	traffic, err := testchain.NewTraffic(t.Context(),
		testchain.TrafficConfig{URL: sim.HTTP(), Accounts: sim.Accounts()[:5], Deployment: d, Seed: 7})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 4 {
		require.NoError(t, traffic.Step(t.Context(), 10))
		require.NoError(t, sim.Mine(t.Context(), 1))
	}

	truth := start(t, Config{URLs: []string{sim.HTTP()}, ChainID: 1337, Finality: Latest})
	view := await(t, truth, func(v View) bool { return v.Head > 3 })
	first, head := view.Final+1, view.Head // what a range leaves out, only a second reading finds
	want, _ := collect(t, truth, first, head, &Filter{})
	require.NotEmpty(t, want)
	invented := want[len(want)-1]
	invented.Index++
	for _, fault := range []faults.Fault{
		{Mode: faults.Receipts, Logs: []types.Log{invented}}, {Mode: faults.Chain, N: 5},
	} {
		t.Run(string(fault.Mode), func(t *testing.T) {
			t.Parallel()
			proxy, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, proxy.Close()) })
			cfg, _ := hurried(Config{URLs: []string{proxy.HTTP(), proxy.WS()}, ChainID: 1337, Finality: Latest})
			s := start(t, cfg)
			await(t, s, func(v View) bool { return v.Head == head && allUp(s) })
			lies := proxy.Inject(fault)
			if fault.Mode == faults.Chain { // is asked for after an endpoint was out of use, and on new connections
				down := proxy.Inject(faults.Fault{Mode: faults.Down})
				await(t, s, func(View) bool { return !s.Endpoints()[0].Up && !s.Endpoints()[1].Up })
				down.Remove()
			}

			f := &Filter{Topics: topicsOf(want)}
			read := func() (logs []types.Log, err error) {
				for b, err := range s.Read(t.Context(), first, head, f) {
					if err != nil {
						return logs, err
					}

					logs = append(logs, b.Logs...)
				}

				return logs, nil
			}
			for lies.Hits() < 4 { // both have lied, and more than once
				_, err := read()
				require.Error(t, err)
			}

			lies.Remove()
			begun := cfg.Now()
			for {
				logs, err := read()
				if err == nil {
					require.Equal(t, want, logs)
					break
				}

				require.Less(t, cfg.Now().Sub(begun), 2*endpoint.LongestWait)
			}

			require.Less(t, cfg.Now().Sub(begun), 2*endpoint.LongestWait)
		})
	}
}

func topicsOf(logs []types.Log) (topics []common.Hash) {
	seen := map[common.Hash]bool{}
	for i := range logs {
		if len(logs[i].Topics) > 0 && !seen[logs[i].Topics[0]] {
			seen[logs[i].Topics[0]] = true
			topics = append(topics, logs[i].Topics[0])
		}
	}

	return topics
}
