package chain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// thrownAway are the forms in which nodes answer that they have thrown an old block away, or what is in it.
var thrownAway = map[string]struct {
	of   []string // methods; empty: all
	says any
}{
	"headers are null":         {[]string{rpc.GetByNumber, rpc.GetByHash}, null},
	"headers are refused":      {[]string{rpc.GetByNumber, rpc.GetByHash}, errors.New("pruned history unavailable")},
	"no block":                 {[]string{rpc.GetByNumber, rpc.GetByHash}, errors.New("block not found")},
	"all is refused":           {nil, errors.New("pruned history unavailable")},
	"all is null":              {nil, null},
	"logs are refused":         {[]string{rpc.GetLogs}, errors.New("history has been pruned for this block")},
	"receipts are null":        {[]string{rpc.GetReceipts}, null},
	"receipts and logs":        {[]string{rpc.GetReceipts, rpc.GetLogs}, errors.New("pruned history unavailable")},
	"logs are empty":           {[]string{rpc.GetLogs}, []types.Log{}},
	"logs and receipts, empty": {[]string{rpc.GetLogs, rpc.GetReceipts}, []types.Log{}},
}

// An endpoint that has thrown old blocks away, or their logs or receipts, has no say in them: with one that has
// kept them a backfill begins at once and reads all, whichever is first in the list, and nobody is named.
func TestPrunedEndpointAbstains(t *testing.T) {
	const head, pruned = 1000, 801 // the newest block that it has thrown away has logs
	for i, name := range slices.Sorted(maps.Keys(thrownAway)) {
		form := thrownAway[name]
		for _, first := range []bool{true, false} {
			if !long.Tables && first != (i%2 == 0) {
				continue
			}

			t.Run(fmt.Sprintf("%s, first %t", name, first), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					chain := clocked(head, 0)
					var p pipes
					full, _ := p.node(t, chain)
					short, _ := p.node(t, chain)
					for _, n := range []*testNode{full, short} {
						n.receipts, n.finalized = true, head-64
					}

					short.lie = func(method string, params []json.RawMessage) (any, error) {
						if form.of != nil && !strings.Contains(strings.Join(form.of, " "), method) || !asksBelow(chain, pruned, params) {
							return nil, nil
						}

						err, _ := form.says.(error)
						if err != nil {
							return nil, err
						}

						return form.says, nil
					}
					cfg := Config{URLs: []string{full.server.URL, short.server.URL}, ChainID: 1, Confirmations: settled, Dial: p.dial,
						PollInterval: time.Second, Logger: slog.New(slog.DiscardHandler), MaxRange: 150}
					if first {
						cfg.URLs = []string{short.server.URL, full.server.URL}
					}

					s := start(t, cfg)
					await(t, s, func(v View) bool { return v.Target == head-settled })
					began := time.Now()
					h, err := s.Canonical(t.Context(), 63, chain.headers[63].Hash)
					require.NoError(t, err)
					require.Equal(t, chain.headers[63].Hash, h.Hash)
					require.EqualValues(t, head-settled+1, backlog(t, s, chain, 64, head-settled, time.Minute))
					require.Less(t, time.Since(began), time.Minute)
					readsAgain(t, s, 64, head-settled)
					require.Empty(t, s.Faults())
				})
			})
		}
	}
}

// readsAgain reads blocks a second time, as package verify does, until all of them are.
func readsAgain(t *testing.T, s *Source, from, to uint64) {
	t.Helper()
	var last error
	for began := time.Now(); from <= to; time.Sleep(30 * time.Second) {
		require.Less(t, time.Since(began), 10*time.Minute, "from block %d on: %v", from, last)
		for b, err := range s.ReadOther(t.Context(), Batch{From: from, To: to, Filter: filterA()}) {
			require.NoError(t, err)
			again := []types.Log{}
			for other, failed := range s.ReadOther(Later(t.Context()), b) {
				again, err = append(again, other.Logs...), cmp.Or(err, failed)
			}

			if last = err; err != nil {
				break
			}

			require.Equal(t, b.Logs, again)
			from = b.To + 1
		}
	}
}

// A range across the block from which on a node has logs is not whole: where the node gives the newer logs of it, where
// those are not wanted, and where its first blocks have none.
func TestRangeAcrossTheEdgeOfANode(t *testing.T) {
	for every, gap := range map[uint64]uint64{7: 1, 50: 46} { // of a block that has logs
		for _, wanted := range []bool{true, false} {
			t.Run(fmt.Sprintf("in each %dth, newer ones wanted %t", every, wanted), func(t *testing.T) {
				t.Parallel()
				chain := newChain(1000, every, 0)
				edge := 400/every*every + 1
				n := startNode(t, chain)
				n.finalized = 990
				for i := edge; i < 1000 && !wanted; i++ {
					h := &chain.headers[i]
					for j := range chain.logs[h.Hash] {
						chain.logs[h.Hash][j].Topics[0] = topicB
						h.Bloom.Add(topicB[:])
					}
				}

				n.lie = func(method string, params []json.RawMessage) (any, error) {
					if method != rpc.GetLogs {
						return nil, nil
					}

					n.mu.Lock()
					defer n.mu.Unlock()
					answer, err := n.answer(method, params)

					return slices.DeleteFunc(answer.([]types.Log), func(l types.Log) bool { return l.BlockNumber < edge }), err
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
				await(t, s, func(v View) bool { return v.Final == 990 })
				for _, blocks := range [][2]uint64{{edge - 200, edge - 100}, {edge - gap, edge + 100}} {
					again := Batch{From: blocks[0], To: blocks[1], Filter: filterA()}
					for b, err := range s.ReadOther(t.Context(), again) {
						require.ErrorIs(t, err, ErrNoHistory, "blocks %d to %d", b.From, b.To)
					}
				}
			})
		}
	}
}

// asksBelow reports whether a request is about a block below another one.
func asksBelow(c *testChain, limit uint64, params []json.RawMessage) bool {
	if len(params) == 0 {
		return false
	}

	var q struct {
		FromBlock string
		BlockHash common.Hash
	}
	_ = json.Unmarshal(params[0], &q)
	var text string
	if json.Unmarshal(params[0], &text) == nil {
		q.FromBlock, q.BlockHash = text, common.HexToHash(text)
	}

	if number, err := hexutil.DecodeUint64(q.FromBlock); err == nil {
		return number < limit
	}

	for _, h := range c.headers[:limit] {
		if h.Hash == q.BlockHash {
			return true
		}
	}

	return false
}
