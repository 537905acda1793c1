package chain

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// A provider that wants addresses named, and says so in words that nobody knows, is not one that gives
// no logs at all: naming one shows it.
func TestAddressRequiredInUnknownWords(t *testing.T) {
	chain := newChain(60+farBlocks, 3, 0)
	n := startNode(t, chain)
	n.finalized = 40
	n.refuseLogs(func(_ testRequest, addresses, _, _ int) (int, string) {
		if addresses < 0 {
			return 0, `{"code":-32602,"message":"name the contracts whose events you want"}`
		}

		return 0, ""
	})
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Head == 60+farBlocks && v.Final == 40 })
	var last error
	for range 8 {
		for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
			last = err
		}
	}

	require.ErrorContains(t, last, "LOG_FILTER=addresses")
	got, _ := collect(t, s, 1, 60, naming(3))
	require.Equal(t, chain.matching(1, 60), got)
}

// A refusal for the number of addresses of a request that names none is no reason to ask for each
// address alone ever after.
func TestAddressLimitWithoutAddresses(t *testing.T) {
	chain := newChain(60+farBlocks, 3, 0)
	n := startNode(t, chain)
	n.finalized = 60
	n.refuseLogs(func(_ testRequest, addresses, _, _ int) (int, string) {
		if addresses < 0 {
			return 0, `{"code":-32602,"message":"exceed max addresses or topics per search position"}`
		}

		return 0, ""
	})
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxAddresses: 1000})
	await(t, s, func(v View) bool { return v.Final == 60 })
	for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
		require.Error(t, err)
	}

	before := n.count(rpc.GetLogs)
	got, _ := collect(t, s, 1, 60, naming(250))
	require.Equal(t, chain.matching(1, 60), got)
	require.LessOrEqual(t, n.count(rpc.GetLogs)-before, 8)
}

// examineOne examines a node that lies.
func examineOne(ctx context.Context, t *testing.T, n *testNode) Examination {
	s := New(Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 1000,
		Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})

	return s.Examine(ctx, emitter, 1)[0]
}

// An examination finds out by asking, not by words, that addresses have to be named.
func TestExamineFindsThatAddressesAreWanted(t *testing.T) {
	n := startNode(t, newChain(100, 3, 0))
	n.lie = func(method string, params []json.RawMessage) (any, error) {
		var query struct{ Address json.RawMessage }
		if method != rpc.GetLogs {
			return nil, nil
		}

		if _ = json.Unmarshal(params[0], &query); query.Address == nil {
			return nil, errors.New("name the contracts whose events you want")
		}

		return []any{}, nil
	}
	x := examineOne(t.Context(), t, n)
	require.ErrorContains(t, x.Addressed, "name the contracts")
	require.EqualValues(t, 101, x.Range)
	require.NoError(t, x.OldestErr)
}

// An endpoint that lets nothing through is reported with its own words, not with the end of the time; so is one that
// is not to be asked for a minute.
func TestExamineKeepsTheWordsOfARefusal(t *testing.T) {
	for _, later := range []string{"", "60"} {
		t.Run("Retry-After "+later, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p pipes
				n, _ := p.node(t, newChain(100, 3, 0))
				n.http = func(w http.ResponseWriter, _ *http.Request) bool {
					if later != "" {
						w.Header().Set("Retry-After", later)
					}

					w.WriteHeader(http.StatusPaymentRequired)
					_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":402,"message":"Payment Required"}}`)

					return true
				}
				s := New(Config{URLs: []string{n.server.URL}, ChainID: 1, Dial: p.dial})
				t.Cleanup(s.Close)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorContains(t, s.Examine(ctx, emitter, 1)[0].Err, "Payment Required")
			})
		})
	}
}

// That a node wants addresses named is forgotten after a while: it may have said so once, by mistake,
// or one machine of many behind its URL.
func TestAddressRequiredIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newChain(60, 3, 0)
		var p pipes
		n, _ := p.node(t, chain)
		n.finalized = 60
		once := errors.New(publicNode)
		n.lie = func(method string, _ []json.RawMessage) (any, error) {
			if method != rpc.GetLogs {
				return nil, nil
			}

			err := once
			once = nil

			return nil, err
		}
		s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, PollInterval: time.Minute,
			Dial: p.dial})
		await(t, s, func(v View) bool { return v.Final == 60 })
		for range 3 {
			for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
				require.ErrorIs(t, err, endpoint.ErrAddressRequired)
			}
		}

		require.Equal(t, 1, n.count(rpc.GetLogs), "it is not asked again and again")
		<-time.After(11 * time.Minute)
		got, _ := collect(t, s, 1, 60, filterA())
		require.Equal(t, chain.matching(1, 60), got)
	})
}

// An examination does not believe in a head whose endpoint does not show the block before it: the others
// would look as if they were far behind.
func TestExamineFindsAnInventedHead(t *testing.T) {
	n := startNode(t, newChain(100, 3, 0))
	n.lie = func(_ string, params []json.RawMessage) (any, error) {
		if len(params) > 0 && string(params[0]) == `"latest"` {
			h := n.chain.headers[100]
			h.Number = 1_000_000

			return blockJSON(h), nil
		}

		return nil, nil
	}
	x := examineOne(t.Context(), t, n)
	require.ErrorContains(t, x.Err, "it told of block 1000000 and does not show the block before it")
	require.Zero(t, x.Head)
}
