package watch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// kept is a machine that has stayed on the branch that the chain had when it was made.
type kept struct {
	byNumber []json.RawMessage
	byHash   map[common.Hash]json.RawMessage
	hashes   []common.Hash
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
		k.byNumber, k.hashes = append(k.byNumber, raw), append(k.hashes, h.Hash)
		k.byHash[h.Hash] = raw
	}

	require.NoError(t, c.CallContext(t.Context(), &k.logs, "eth_getLogs",
		map[string]any{"fromBlock": "0x0", "toBlock": hexutil.Uint64(head)}))

	return k
}

func (k *kept) answer(t *testing.T, method string, params []json.RawMessage) (any, error) {
	switch method {
	case "eth_chainId":
		return hexutil.Uint64(chainID), nil
	case "eth_getBlockByNumber":
		n := hexutil.Uint64(k.newest.Load())
		if string(params[0]) != `"latest"` {
			require.NoError(t, json.Unmarshal(params[0], &n))
		}

		if uint64(n) <= k.newest.Load() {
			return k.byNumber[n], nil
		}

		return nil, nil
	case "eth_getBlockByHash":
		var hash common.Hash
		require.NoError(t, json.Unmarshal(params[0], &hash))
		if raw, ok := k.byHash[hash]; ok {
			return raw, nil
		}

		return nil, nil
	case "eth_getLogs":
		var q struct {
			FromBlock, ToBlock hexutil.Uint64
			BlockHash          *common.Hash
			Address            json.RawMessage
			Topics             [][]common.Hash
		}
		require.NoError(t, json.Unmarshal(params[0], &q))
		if q.BlockHash != nil && !slices.Contains(k.hashes, *q.BlockHash) {
			return nil, fmt.Errorf("unknown block") // as geth says it
		}

		return slices.DeleteFunc(slices.Clone(k.logs), func(l types.Log) bool {
			in := l.BlockNumber >= uint64(q.FromBlock) && l.BlockNumber <= uint64(q.ToBlock)
			if q.BlockHash != nil {
				in = l.BlockHash == *q.BlockHash
			}

			named := q.Address == nil || strings.Contains(strings.ToLower(string(q.Address)), strings.ToLower(l.Address.Hex()))

			return !in || !named || len(q.Topics) > 0 && !slices.Contains(q.Topics[0], l.Topics[0])
		}), nil
	}

	return nil, fmt.Errorf("the method %s does not exist/is not available", method)
}

// serve answers a request, which may be a batch.
func (k *kept) serve(t *testing.T, body []byte) []byte {
	type request struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	single := bytes.HasPrefix(bytes.TrimSpace(body), []byte("{"))
	if single {
		body = slices.Concat([]byte("["), body, []byte("]"))
	}

	var batch []request
	require.NoError(t, json.Unmarshal(body, &batch))
	var answers []string
	for _, q := range batch {
		said := `"result":`
		result, err := k.answer(t, q.Method, q.Params)
		if err != nil {
			said, result = `"error":`, map[string]any{"code": -32000, "message": err.Error()}
		}

		raw, err := json.Marshal(result)
		require.NoError(t, err)
		answers = append(answers, `{"jsonrpc":"2.0","id":`+string(q.ID)+`,`+said+string(raw)+`}`)
	}

	if single {
		return []byte(answers[0])
	}

	return []byte("[" + strings.Join(answers, ",") + "]")
}

// Behind one URL are machines on two branches that part far below finality, and requests go to them by
// turns. What is processed of a backlog is of one branch at each watch; where the two have begun on
// different ones, they wait for each other. Once the machines agree, one rolls both back to where they
// met, the verifier takes back what is left below, and exactly the chain's events are there.
func TestTwoBranchesBehindOneURL(t *testing.T) {
	const fork, final, begin, head = 40, 140, 160, 220
	for name, stay := range map[string]bool{"one leaves its branch": false, "the other leaves": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(3)
			w.mine(1)
			truth, err := testchain.ReadTruth(t.Context(), w.sim.HTTP(), 0, w.head(), w.d.Factory)
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

			var turns, agreed atomic.Int64
			front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}

				for _, tag := range []string{"finalized", "safe"} {
					body = bytes.ReplaceAll(body, []byte(`"`+tag+`"`), []byte(`"`+hexutil.Uint64(final).String()+`"`))
				}

				machines := []*kept{first, second}
				machine := machines[turns.Add(1)%2]
				if agreed.Load() > 0 {
					machine = machines[map[bool]int{true: 0, false: 1}[stay]]
				}

				_, _ = rw.Write(machine.serve(t, body))
			}))
			t.Cleanup(front.Close)
			w.src = openSource(t, front.URL)
			w.run(watch.FilterTopics, true)
			require.Eventually(t, func() bool { return turns.Load() > 150 }, time.Minute, 5*time.Millisecond)
			agreed.Store(1)

			last := second
			if stay {
				last = first
			}

			events := map[string]uint64{} // and their blocks
			for i := range last.logs {
				if e, err := w.abi.Decode(&last.logs[i]); err == nil && published(e.Name) {
					events[e.ID()+" "+e.BlockHash.Hex()] = e.BlockNumber
				}
			}

			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			t.Cleanup(func() { cancel(); wg.Wait() })
			verifier := verify.New(verify.Config{Source: w.src, Ledger: w.led, ABI: w.abi, Factory: w.d.Factory,
				Filters: watch.NewFilters(w.abi, w.d.Factory, watch.FilterTopics, 1000, 4000).Again(),
				Every:   50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Metrics: verify.NewMetrics(prometheus.NewRegistry())})
			wg.Go(func() { require.NoError(t, verifier.Run(ctx, 1)) })
			var got, want map[string]uint64
			shown := time.Now()
			require.Eventually(t, func() bool {
				if time.Since(shown) > time.Second && newest.Load() < head { // a watch looks again with the next block
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

				return next == to+1 && maps.Equal(want, got)
			}, time.Minute, 10*time.Millisecond, "%v instead of %v", &got, &want)
			require.Greater(t, len(want), 20)
		})
	}
}
