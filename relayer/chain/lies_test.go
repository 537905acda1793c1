package chain

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

var filterA = func() *Filter { return &Filter{Topics: []common.Hash{topicA}} }

func disagreements(t *testing.T, s *Source, endpoint string) float64 {
	t.Helper()
	reg := s.cfg.Registerer.(*prometheus.Registry)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "relayer_rpc_disagreements_total" {
			continue
		}

		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == endpoint {
				return m.GetCounter().GetValue()
			}
		}
	}

	require.FailNow(t, "no such endpoint", endpoint)

	return 0
}

func allUp(s *Source) bool {
	return !slices.ContainsFunc(s.Endpoints(), func(e EndpointStatus) bool { return !e.Up || e.Head == 0 })
}

// changing returns a lie that alters the logs of every answer that has some.
func changing(n *testNode, change func([]types.Log) []types.Log) func(string, []json.RawMessage) (any, error) {
	return func(method string, params []json.RawMessage) (any, error) {
		if method != rpc.GetLogs {
			return nil, nil
		}

		n.mu.Lock()
		defer n.mu.Unlock()
		got, err := n.getLogs(params[0])
		logs := got.([]types.Log)
		if err != nil || len(logs) == 0 {
			return got, err
		}

		return change(slices.Clone(logs)), nil
	}
}

// Each lie is seen through, the liar is left alone, and the honest node's answer is taken.
func TestLies(t *testing.T) {
	edit := func(change func(*types.Log)) func([]types.Log) []types.Log {
		return func(logs []types.Log) []types.Log {
			l := logs[len(logs)-1]
			change(&l)
			logs[len(logs)-1] = l

			return logs
		}
	}
	cases := map[string]struct {
		change func([]types.Log) []types.Log
		ranges bool // also seen when read by range
	}{
		"foreign topic":   {edit(func(l *types.Log) { l.Topics = []common.Hash{topicB} }), true},
		"no topics":       {edit(func(l *types.Log) { l.Topics = nil }), true},
		"outside":         {edit(func(l *types.Log) { l.BlockNumber += 1000 }), true},
		"removed":         {edit(func(l *types.Log) { l.Removed = true }), true},
		"pending":         {edit(func(l *types.Log) { l.BlockHash = common.Hash{} }), true},
		"twice":           {func(logs []types.Log) []types.Log { return append(logs, logs[0]) }, true},
		"other block":     {edit(func(l *types.Log) { l.BlockHash = common.Hash{9} }), false},
		"not in bloom":    {edit(func(l *types.Log) { l.Address = common.Address{0x99} }), false},
		"not even a list": {nil, true},
	}
	for name, c := range cases {
		for _, final := range []uint64{0, 40} {
			if final > 0 && !c.ranges {
				continue
			}

			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const head = 40 + farBlocks
				chain := newChain(head, 4, 0)
				liar, honest := startNode(t, chain), startNode(t, chain)
				liar.finalized, honest.finalized = final, final
				if c.change == nil {
					liar.lie = func(method string, _ []json.RawMessage) (any, error) {
						if method == rpc.GetLogs {
							return "logs", nil
						}

						return nil, nil
					}
				} else {
					liar.lie = changing(liar, c.change)
				}

				s := start(t, Config{URLs: []string{liar.server.URL, honest.server.URL}, ChainID: 1, Finality: Latest})
				await(t, s, func(v View) bool { return v.Head == head && v.Final == final && allUp(s) })
				got, _ := collect(t, s, 1, 40, filterA())
				require.Equal(t, chain.all(1, 40), got)
				require.False(t, s.Endpoints()[0].Up)
				require.NotEmpty(t, s.Endpoints()[0].LastError)
				require.GreaterOrEqual(t, disagreements(t, s, s.nodes[0].Name()), 1.)
				require.Zero(t, disagreements(t, s, s.nodes[1].Name()))
				require.NoError(t, s.Health())

				// Alone, it is not believed either.
				alone := start(t, Config{URLs: []string{liar.server.URL}, ChainID: 1, Finality: Latest})
				await(t, alone, func(v View) bool { return v.Head == head })
				read := 0
				for b, err := range alone.Read(t.Context(), 1, 40, filterA()) {
					if err != nil {
						require.True(t, errors.Is(err, rpc.ErrInvalid) || errors.Is(err, ErrUnavailable) ||
							errors.Is(err, ErrBehind), err)
						break
					}

					read++
					require.Equal(t, b.To, b.Last.Number)
				}

				require.Less(t, read, 40)
			})
		}
	}
}

// A node that lags says that there are no logs. It is not believed, by range or by hash.
func TestBehind(t *testing.T) {
	for _, final := range []uint64{0, 40} {
		chain := newChain(40, 4, 0)
		late, current := startNode(t, chain), startNode(t, chain)
		late.finalized, current.finalized = final, final
		s := start(t, Config{URLs: []string{late.server.URL, current.server.URL}, ChainID: 1, Finality: Latest})
		await(t, s, func(v View) bool { return v.Head == 40 && v.Final == final && allUp(s) })
		// Behind one URL, requests may reach a node that is older than the one that told the head.
		late.set(func() {
			late.lie = func(method string, params []json.RawMessage) (any, error) {
				var arg string
				if len(params) > 0 {
					_ = json.Unmarshal(params[0], &arg)
				}

				switch {
				case method == rpc.GetLogs:
					return []types.Log{}, nil
				case method == rpc.GetByNumber && arg != "latest" && arg != "finalized", method == rpc.GetByHash:
					return null, nil
				}

				return nil, nil
			}
		})
		for b, err := range s.Read(t.Context(), 1, 40, filterA()) { // it takes two to say what is in a block
			require.Error(t, err, "block %d", b.To)
		}

		alone := start(t, Config{URLs: []string{late.server.URL}, ChainID: 1, Finality: Latest})
		await(t, alone, func(v View) bool { return v.Head == 40 })
		for _, err := range alone.Read(t.Context(), 0, 40, filterA()) {
			require.ErrorIs(t, err, ErrBehind)
		}

		_, err := alone.Canonical(t.Context(), 7, common.Hash{})
		require.ErrorIs(t, err, ErrBehind)

		late.set(func() { late.lie, late.receipts, current.receipts = nil, true, true })
		got, _ := collect(t, s, 0, 40, filterA())
		require.Equal(t, chain.all(0, 40), got)
		require.Equal(t, 0., disagreements(t, s, s.nodes[0].Name()))
		require.True(t, s.Endpoints()[0].Up, "lagging is not lying")
	}
}

// geth answers with an error instead.
func TestBehindInWords(t *testing.T) {
	chain := newChain(10, 1, 0)
	node := startNode(t, chain)
	node.finalized = 10
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Final == 10 })
	node.set(func() {
		node.lie = func(method string, _ []json.RawMessage) (any, error) {
			if method == rpc.GetLogs {
				return nil, errors.New("block range extends beyond current head block")
			}

			return nil, nil
		}
	})
	for _, err := range s.Read(t.Context(), 0, 10, filterA()) {
		require.ErrorIs(t, err, ErrBehind)
	}

	require.True(t, s.Endpoints()[0].Up)
}

// Blocks that are not each other's parents are not handed out as a chain.
func TestChainMoves(t *testing.T) {
	chain := newChain(40, 1, 0)
	node := startNode(t, chain)
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Head == 40 })
	other := chain.fork(20, 1, 1)
	for b, err := range s.Read(t.Context(), 0, 40, filterA()) {
		if err != nil {
			require.True(t, errors.Is(err, ErrDisagree) || errors.Is(err, ErrBehind), err)
			break
		}

		require.Less(t, b.To, uint64(40), "it must be noticed")
		if b.To == 10 {
			node.set(func() { node.chain, node.head = other, 41 })
		}
	}

	await(t, s, func(v View) bool { return v.Head == 41 })
	got, batches := collect(t, s, 0, 41, filterA())
	require.Equal(t, other.all(0, 41), got)
	require.Equal(t, other.headers[41].Hash, batches[41].Last.Hash)
	h, err := s.Canonical(t.Context(), 25, chain.headers[25].Hash)
	require.NoError(t, err)
	require.Equal(t, other.headers[25], h)
}

// A range whose logs are of another chain than its last header is read again.
func TestRangeOfTwoChains(t *testing.T) {
	chain := newChain(40+farBlocks, 1, 0)
	other := chain.fork(30, 1, 1)
	node := startNode(t, chain)
	node.finalized = 40
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Final == 40 })
	node.set(func() {
		node.lie = changing(node, func([]types.Log) []types.Log { return other.all(0, 40) })
	})
	for _, err := range s.Read(t.Context(), 0, 40, filterA()) {
		require.ErrorIs(t, err, ErrDisagree)
	}

	require.True(t, s.Endpoints()[0].Up)
}

func TestCanonical(t *testing.T) {
	chain := newChain(20, 1, 0)
	a, b, c := startNode(t, chain), startNode(t, chain.fork(10, 1, 1)), startNode(t, chain)
	s := start(t, Config{URLs: []string{a.server.URL, b.server.URL}, ChainID: 1, believeAfter: time.Hour})
	await(t, s, func(v View) bool { return v.Head == 20 && allUp(s) })
	_, err := s.Canonical(t.Context(), 9, common.Hash{})
	require.ErrorIs(t, err, ErrBehind, "no block is agreed on from which to look")

	s = start(t, Config{URLs: []string{a.server.URL, b.server.URL, c.server.URL}, ChainID: 1})
	await(t, s, func(v View) bool { return allUp(s) && v.Trust == Agreed })
	h, err := s.Canonical(t.Context(), 10, common.Hash{})
	require.NoError(t, err, "two of three")
	require.Equal(t, chain.headers[10], h)
	await(t, s, func(View) bool { return disagreements(t, s, s.nodes[1].Name()) > 0 })
}

// A second reading is had from somebody else.
func TestReadOther(t *testing.T) {
	chain := newChain(40+farBlocks, 1, 0)
	a, b := startNode(t, chain), startNode(t, chain)
	a.finalized, b.finalized = 30, 30
	// At other depths the head is asked for with a hint of logs, which no reading asked for.
	s := start(t, Config{URLs: []string{a.server.URL, b.server.URL}, ChainID: 1, Finality: Finalized})
	await(t, s, func(v View) bool { return v.Final == 30 && allUp(s) })
	_, batches := collect(t, s, 0, 30, filterA())
	require.Zero(t, b.count(rpc.GetLogs))
	before := a.count(rpc.GetLogs)
	for _, first := range batches {
		for batch, err := range s.ReadOther(t.Context(), first) {
			require.NoError(t, err)
			require.Equal(t, chain.all(batch.From, batch.To), batch.Logs)
		}
	}

	require.Equal(t, before, a.count(rpc.GetLogs))
	require.NotZero(t, b.count(rpc.GetLogs))
}

// An endpoint that leaves logs out is not asked twice while the other is out of use: neither while it
// serves another chain nor while it is silent.
func TestReadOtherWaits(t *testing.T) {
	t.Parallel()
	chain := newChain(40, 1, 0)
	a, b := startNode(t, chain), startNode(t, chain)
	a.finalized, b.finalized = 30, 30
	var batches []Batch
	again := func(s *Source) (got []types.Log, err error) {
		for _, first := range batches {
			for batch, err := range s.ReadOther(t.Context(), first) {
				if err != nil {
					return nil, err
				}

				got = append(got, batch.Logs...)
			}
		}

		return got, nil
	}
	open := func() *Source {
		s := start(t, Config{URLs: []string{a.server.URL, b.server.URL}, ChainID: 1, Finality: Finalized})
		await(t, s, func(v View) bool { return v.Final == 30 && s.Endpoints()[0].Up })
		_, batches = collect(t, s, 0, 30, filterA())

		return s
	}

	b.chainID = 5
	_, err := again(open())
	require.ErrorContains(t, err, "chain 5")

	b.set(func() {
		b.chainID = 1
		b.http = func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
	})
	s := open()
	before := a.count(rpc.GetLogs)
	_, err = again(s)
	require.ErrorContains(t, err, "502")
	require.Equal(t, before, a.count(rpc.GetLogs))

	b.set(func() { b.http = nil })
	require.Eventually(t, func() bool {
		got, err := again(s)
		return err == nil && len(got) == len(chain.all(0, 30))
	}, 10*time.Minute, 10*time.Millisecond)
	require.Equal(t, before, a.count(rpc.GetLogs), "all of it is from the other")
}
