package chain

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// instead has a node tell of another chain where a test says so, by the number of a block or by its hash on that chain.
func instead(n *testNode, other *testChain, of func(number uint64) bool) {
	n.lie = func(method string, params []json.RawMessage) (any, error) {
		switch method {
		case rpc.GetByNumber, rpc.GetByHash, rpc.GetReceipts, rpc.GetLogs:
		default:
			return nil, nil
		}

		var text string
		_ = json.Unmarshal(params[0], &text)
		for i := range other.headers {
			h := other.headers[i]
			if !of(h.Number) || text != fmt.Sprintf("0x%x", h.Number) && text != h.Hash.Hex() {
				continue
			}

			if method == rpc.GetReceipts {
				return other.sealed[h.Hash].receipts, nil
			}

			return other.block(h, string(params[1]) == "true"), nil
		}

		return nil, nil
	}
}

// withLogs is a node's answer to a query, with the logs of one block replaced.
func withLogs(n *testNode, query json.RawMessage, logs []types.Log) []types.Log {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer, _ := n.getLogs(query)
	list := answer.([]types.Log)
	for i := range list {
		if list[i].BlockNumber == logs[0].BlockNumber {
			return slices.Concat(list[:i], logs, slices.DeleteFunc(slices.Clone(list[i:]), func(l types.Log) bool {
				return l.BlockNumber == logs[0].BlockNumber
			}))
		}
	}

	return list
}

// Where headers prove no parents, one endpoint's header of the tip leads to blocks of its own making. That takes no
// block back that two others show.
func TestParentsThatNothingProvesTakeNothingBack(t *testing.T) {
	chain := newChain(100, 2, 0)
	other := chain.fork(50, 2, 1)
	liar, first, second := startNode(t, chain), startNode(t, chain), startNode(t, chain)
	forged := chain.headers[100]
	forged.Parent = other.headers[99].Hash
	s := start(t, Config{URLs: []string{liar.server.URL, first.server.URL, second.server.URL}, ChainID: 1,
		Finality: Latest, believeAfter: time.Hour})
	await(t, s, func(v View) bool { return v.Target == 100 && allUp(s) })
	liar.set(func() { instead(liar, other, func(number uint64) bool { return number >= 50 && number < 100 }) })
	s.ring.headers.Purge()
	s.ring.add(forged)
	for range 10 {
		h, err := s.Canonical(t.Context(), 70, chain.headers[70].Hash)
		require.True(t, err != nil || h.Hash == chain.headers[70].Hash, "taken back for %s", h.Hash)
		h, err = s.Canonical(t.Context(), 70, common.Hash{})
		require.True(t, err != nil || h.Hash == chain.headers[70].Hash, "it is %s", h.Hash)
	}
}

// A block of a liar's own making that proves itself, in a range whose blocks are to be proved, shows no law of a chain
// which has none: else what all others say of any block is a forgery from then on.
func TestOwnBlockShowsNoLaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const head, final, own = 400, 300, 200
		chain := newChain(head, 10, 0)
		chain.seal()
		other := chain.own(own, own)
		var p pipes
		cfg := Config{ChainID: 1, Finality: Finalized, Dial: p.dial, PollInterval: time.Second,
			Logger: slog.New(slog.DiscardHandler), believeAfter: time.Hour}
		for i := range 3 {
			n, _ := p.node(t, chain)
			n.finalized, n.receipts = final, true
			says := otherwise(n, rpc.GetReceipts) // its receipts make no root
			if n.lie = says; i == 0 {
				instead(n, other, func(number uint64) bool { return number == own })
				mine := n.lie
				n.lie = func(method string, params []json.RawMessage) (any, error) {
					answer, err := mine(method, params)
					if answer == nil && method == rpc.GetLogs {
						return withLogs(n, params[0], other.all(own, own)), nil
					} else if answer == nil {
						return says(method, params)
					}

					return answer, err
				}
			}

			cfg.URLs = append(cfg.URLs, n.server.URL)
		}

		s := start(t, cfg)
		await(t, s, func(v View) bool { return v.Final == final && allUp(s) })
		require.EqualValues(t, final+1, backlog(t, s, chain, 1, final, 10*time.Minute))
		require.Equal(t, []string{"headers hash"}, s.Shown())
		require.Empty(t, s.Faults())
	})
}

// A chain whose headers hash otherwise from a block on has honest endpoints that all say the same. That a liar has
// blocks of its own at that height which hash as before makes none of them a liar.
func TestOwnHeadersMakeNobodyALiar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(100, 2, 0)
		chain.seal()
		var p pipes
		cfg := Config{ChainID: 1, Finality: Latest, Dial: p.dial, PollInterval: time.Second,
			Logger: slog.New(slog.DiscardHandler), believeAfter: time.Hour}
		for i := range 3 {
			n, _ := p.node(t, chain)
			if n.lie = otherwise(n, "headers"); i == 0 {
				n.lie, n.chain, n.head = nil, chain.own(90, 110), 110
			}

			cfg.URLs = append(cfg.URLs, n.server.URL)
		}

		s := start(t, cfg)
		s.Demand([]string{"headers hash"})
		for range 30 {
			for b, err := range s.Read(t.Context(), 80, 110, filterA()) {
				require.Error(t, err, "block %d", b.To)
			}

			<-time.After(10 * time.Second)
		}

		for _, fault := range s.Faults() {
			require.Equal(t, s.nodes[0].Name(), fault.Endpoint, fault.Evidence[:min(len(fault.Evidence), 300)])
		}
	})
}
