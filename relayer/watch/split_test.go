package watch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// keptFinal is the final block of each machine.
const keptFinal = 140

// kept is a machine that has stayed on the branch that the chain had when it was made.
type kept struct {
	byNumber []json.RawMessage
	byHash   map[common.Hash]json.RawMessage
	logs     []types.Log
	newest   *atomic.Uint64 // block that it shows
}

func keep(t *testing.T, url string, head uint64, newest *atomic.Uint64) *kept {
	c, err := rpc.DialContext(t.Context(), url)
	require.NoError(t, err)
	defer c.Close()
	k := &kept{byHash: map[common.Hash]json.RawMessage{}, newest: newest}
	for n := range head + 1 {
		var raw json.RawMessage
		require.NoError(t, c.CallContext(t.Context(), &raw, "eth_getBlockByNumber", hexutil.Uint64(n), false))
		var h struct{ Hash common.Hash }
		require.NoError(t, json.Unmarshal(raw, &h))
		k.byNumber = append(k.byNumber, raw)
		k.byHash[h.Hash] = raw
	}

	require.NoError(t, c.CallContext(t.Context(), &k.logs, "eth_getLogs",
		map[string]any{"fromBlock": "0x0", "toBlock": hexutil.Uint64(head)}))

	return k
}

func (k *kept) ChainId() hexutil.Uint64 { return chainID }

func (k *kept) GetBlockByNumber(n rpc.BlockNumber, _ bool) json.RawMessage {
	switch n {
	case rpc.LatestBlockNumber:
		n = rpc.BlockNumber(k.newest.Load())
	case rpc.FinalizedBlockNumber, rpc.SafeBlockNumber:
		n = keptFinal
	}

	if uint64(n) > k.newest.Load() {
		return nil
	}

	return k.byNumber[n]
}

func (k *kept) GetBlockByHash(hash common.Hash, _ bool) json.RawMessage { return k.byHash[hash] }

func (k *kept) GetLogs(q filters.FilterCriteria) ([]types.Log, error) {
	if q.BlockHash != nil && k.byHash[*q.BlockHash] == nil {
		return nil, errors.New("unknown block") // as geth says it
	}

	f := chain.Filter{}
	if len(q.Addresses) > 0 { // geth makes an empty list of none
		f.Addresses = q.Addresses
	}

	if len(q.Topics) > 0 {
		f.Topics = q.Topics[0]
	}

	return slices.DeleteFunc(slices.Clone(k.logs), func(l types.Log) bool {
		if q.BlockHash != nil {
			return l.BlockHash != *q.BlockHash || !f.Matches(&l)
		}

		return l.BlockNumber < q.FromBlock.Uint64() || l.BlockNumber > q.ToBlock.Uint64() || !f.Matches(&l)
	}), nil
}

// serve answers through geth's own server.
func (k *kept) serve(t *testing.T) http.Handler {
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("eth", k))
	t.Cleanup(server.Stop)

	return server
}

// Behind one URL are machines on two branches that part far below finality, and requests go to them by
// turns. What is processed of a backlog is of one branch at each watch; where the two have begun on
// different ones, they wait for each other. Once the machines agree, one rolls both back to where they
// met, the verifier takes back what is left below, and exactly the chain's events are there.
func TestTwoBranchesBehindOneURL(t *testing.T) {
	t.Parallel()
	const fork, begin, head = 40, 160, 220
	for name, stay := range map[string]bool{"one leaves its branch": false, "the other leaves": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(3)
			w.mine(1)
			truth, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), w.d.Factory)
			require.NoError(t, err)
			w.mine(int(fork - w.head()))
			for w.head() < head-6 {
				w.approve(1, truth.Escrows...)
				w.create(1)
				w.mine(5)
			}

			w.mine(int(head - w.head()))
			var newest atomic.Uint64
			newest.Store(begin)
			first := keep(t, w.sim.HTTP(), head, &newest)
			require.NoError(t, w.sim.Reorg(t.Context(), head-fork, testchain.Keep)) // the same events, elsewhere
			second := keep(t, w.sim.HTTP(), head, &newest)

			machines := []http.Handler{first.serve(t), second.serve(t)}
			last, stays := second, 1
			if stay {
				last, stays = first, 0
			}

			var turns atomic.Int64
			var agreed atomic.Bool
			front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				machine := machines[turns.Add(1)%2]
				if agreed.Load() {
					machine = machines[stays]
				}

				machine.ServeHTTP(rw, r)
			}))
			t.Cleanup(front.Close)
			w.src = openSource(t, front.URL)
			w.run(watch.FilterTopics, true)
			require.Eventually(t, func() bool { return turns.Load() > 150 }, patience, 5*time.Millisecond)
			agreed.Store(true)

			events := map[string]uint64{} // and their blocks
			for i := range last.logs {
				if e, err := w.abi.Decode(&last.logs[i]); err == nil && published(e.Name) {
					events[e.ID()+" "+e.BlockHash.Hex()] = e.BlockNumber
				}
			}

			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			t.Cleanup(func() { cancel(); wg.Wait() })
			verifier := verify.New(verify.Config{Source: w.src, Ledger: w.led, ABI: w.abi, Factories: w.followed(),
				Filters: watch.NewFilters(w.abi, w.followed(), watch.FilterTopics, 1000).Again(),
				Every:   50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Metrics: verify.NewMetrics(prometheus.NewRegistry())})
			wg.Go(func() { require.NoError(t, verifier.Run(ctx, 1)) })
			var got, want map[string]uint64
			var stood atomic.Value
			t.Cleanup(func() { // it has failed once, with nothing in the log that says where it stood
				if t.Failed() {
					stacks := make([]byte, 1<<20)
					t.Logf("%v, view %+v\n%s", stood.Load(), w.src.View(), stacks[:runtime.Stack(stacks, true)])
				}
			})
			shown := time.Now()
			require.Eventually(t, func() bool {
				pause := time.Second // a watch looks again with the next block
				if maps.Equal(want, got) {
					pause = 5 * time.Second // on a busy machine it takes its time to come to that block
				}

				if time.Since(shown) > pause && newest.Load() < head {
					newest.Add(1)
					shown = time.Now()
				}

				to := newest.Load() - confirmations
				want = maps.Clone(events)
				maps.DeleteFunc(want, func(_ string, block uint64) bool { return block > to })
				var next uint64
				require.NoError(t, w.DB.QueryRow(t.Context(), `select least((select min(next_block) from leadership),
					(select min(next_block) from cursors))`).Scan(&next))
				stored, err := w.led.Stored(t.Context(), 0, 1<<40)
				require.NoError(t, err)
				got = map[string]uint64{}
				for i := range stored {
					stored[i].Occurrence = 0 // where the log is, not how it is called
					if published(stored[i].Name) {
						got[stored[i].ID()+" "+stored[i].BlockHash.Hex()] = stored[i].BlockNumber
					}
				}

				stood.Store(fmt.Sprintf("head %d, next block %d, %d events of %d", newest.Load(), next, len(got), len(want)))

				return next == to+1 && maps.Equal(want, got)
			}, patience, 10*time.Millisecond)
			require.Greater(t, len(want), 20)
		})
	}
}
