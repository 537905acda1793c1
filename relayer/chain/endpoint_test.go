package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// A provider that limits the range is asked for less, more and more carefully, and nothing is lost or twice.
func TestRangeAdapts(t *testing.T) {
	chain := newChain(3000+farBlocks, 10, 0)
	node := startNode(t, chain)
	node.finalized = 3000
	var largest, refused atomic.Uint64
	node.lie = func(method string, params []json.RawMessage) (any, error) {
		if method != rpc.GetLogs {
			return nil, nil
		}

		q := parseQuery(t, params[0])
		if size := uint64(q.ToBlock - q.FromBlock + 1); size > 100 {
			refused.Add(1)
			return nil, errors.New("query returned more than 10000 results")
		} else if size > largest.Load() {
			largest.Store(size)
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Final == 3000 })
	got, batches := collect(t, s, 0, 3000, filterA())
	require.Equal(t, chain.all(0, 3000), got)
	require.Less(t, len(batches), 70)
	require.Greater(t, largest.Load(), uint64(60))
	require.Less(t, refused.Load(), uint64(25))
	require.True(t, s.Endpoints()[0].Up)
}

func TestRateLimit(t *testing.T) {
	chain := newChain(20, 1, 0)
	node, reserve := startNode(t, chain), startNode(t, chain)
	s := start(t, Config{URLs: []string{node.server.URL, reserve.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Target == 20 && allUp(s) })
	var refusals atomic.Int64
	node.set(func() {
		node.http = func(w http.ResponseWriter, _ *http.Request) bool {
			refusals.Add(1)
			w.Header().Set("Retry-After", "300")
			w.WriteHeader(http.StatusTooManyRequests)

			return true
		}
	})
	got, _ := collect(t, s, 1, 20, filterA())
	require.Equal(t, chain.all(1, 20), got)
	require.True(t, s.Endpoints()[0].Up, "a limit is no fault")
	require.InDelta(t, 300, s.nodes[0].Pause(true).Seconds(), 5)
	before := refusals.Load()
	for range 5 {
		collect(t, s, 1, 20, filterA())
	}

	require.Equal(t, before, refusals.Load(), "it asked to be left alone")
	require.Contains(t, s.Endpoints()[0].LastError, "429")
}

// An endpoint of another chain is never used, whether it was so from the start or became so.
func TestWrongChain(t *testing.T) {
	chain, other := newChain(20, 1, 0), newChain(30, 1, 9)
	for _, kind := range []string{"http", "ws"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			right, wrong := startNode(t, chain), startNode(t, other)
			wrong.chainID = 5
			urls := []string{wrong.server.URL, right.server.URL}
			if kind == "ws" {
				urls = []string{wrong.ws(), right.ws()}
			}

			s := start(t, Config{URLs: urls, ChainID: 1, Finality: Latest})
			err := s.Check(t.Context(), common.Address{})
			require.ErrorIs(t, err, ErrWrongChain)
			require.ErrorContains(t, err, s.nodes[0].Name()+" serves chain 5, CHAIN_ID is 1")
			await(t, s, func(v View) bool { return v.Target == 20 })
			got, _ := collect(t, s, 1, 20, filterA())
			require.Equal(t, chain.all(1, 20), got)
			require.Zero(t, wrong.count(rpc.GetLogs))
			require.Zero(t, wrong.count(rpc.GetByNumber))
			require.False(t, s.Endpoints()[0].Up)

			// The right one is replaced by a node of another chain while nobody looks.
			await(t, s, func(View) bool { return s.Endpoints()[1].Up })
			right.set(func() {
				right.http = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(502); return true }
			})
			right.disconnect()
			await(t, s, func(View) bool { return !s.Endpoints()[1].Up })
			right.set(func() { right.chain, right.head, right.chainID, right.http = other, 30, 5, nil })
			await(t, s, func(View) bool {
				return strings.Contains(s.Endpoints()[1].LastError, s.nodes[1].Name()+" serves chain 5")
			})
			require.EqualValues(t, 20, s.View().Head)
			require.ErrorIs(t, s.Health(), ErrUnavailable)
		})
	}
}

// The check before the start.
func TestCheck(t *testing.T) {
	chain := newChain(20, 1, 0)
	node := startNode(t, chain)
	var log bytes.Buffer
	s := New(Config{URLs: []string{"http://127.0.0.1:1/some-secret-key", node.ws()}, ChainID: 1,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(s.Close)
	require.NoError(t, s.Check(t.Context(), emitter), "one endpoint is enough")
	require.Equal(t, 1, strings.Count(log.String(), "endpoint does not answer"))
	node.set(func() {
		node.lie = func(method string, _ []json.RawMessage) (any, error) {
			if method == rpc.GetCode {
				return "0x", nil
			}

			return nil, nil
		}
	})
	err := s.Check(t.Context(), emitter)
	require.ErrorIs(t, err, ErrNoCode)
	require.ErrorContains(t, err, emitter.Hex())
	node.stop()
	log.Reset()
	err = s.Check(t.Context(), emitter)
	require.ErrorIs(t, err, ErrUnavailable)
	require.NotContains(t, err.Error(), "some-secret-key")
	require.NotContains(t, log.String(), "endpoint does not answer", "the error says so, of both")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Check(ctx, emitter), context.Canceled)
}

// Neither the URL's key nor what a provider repeats of it gets into an error or a log.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const key = "0123456789abcdef"
	chain := newChain(20, 1, 0)
	node := startNode(t, chain)
	node.finalized = 10
	var log strings.Builder
	var mu sync.Mutex
	logger := slogTo(&mu, &log)
	var ahead atomic.Int64
	s := New(Config{URLs: []string{node.server.URL + "/v2/" + key, "ws://127.0.0.1:1/" + key}, ChainID: 1,
		Finality: Latest, Logger: logger, Timeout: 500 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	var texts []string
	note := func(err error) {
		require.Error(t, err)
		texts = append(texts, err.Error())
	}
	attempt := func(handler func(http.ResponseWriter, *http.Request) bool) {
		node.set(func() { node.http = handler })
		ahead.Add(int64(time.Hour)) // no endpoint is paused any more
		note(s.Check(t.Context(), emitter))
		note(s.Health())
		_, err := s.Canonical(t.Context(), 5, common.Hash{})
		note(err)
		for _, err := range s.Read(t.Context(), 5, 15, filterA()) {
			note(err)
		}
	}
	attempt(func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"key %s is over its limit"}}`, key)
		return true
	})
	attempt(func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(500); return true })
	attempt(func(w http.ResponseWriter, r *http.Request) bool { panic(http.ErrAbortHandler) })
	attempt(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://127.0.0.1:1/"+key, http.StatusTemporaryRedirect)
		return true
	})
	attempt(func(w http.ResponseWriter, r *http.Request) bool { hang(r); return true })
	for _, e := range s.Endpoints() {
		texts = append(texts, fmt.Sprintf("%+v", e))
	}

	s.Close()
	mu.Lock()
	defer mu.Unlock()
	texts = append(texts, log.String())
	require.NotEmpty(t, log.String())
	for _, text := range texts {
		require.NotContains(t, text, key)
	}
}

// hang waits for the client to give up, which a server only notices once it has read the request.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func slogTo(mu *sync.Mutex, to *strings.Builder) *slog.Logger {
	return slog.New(slog.NewTextHandler(lockedWriter{mu, to}, nil))
}

type lockedWriter struct {
	mu *sync.Mutex
	to *strings.Builder
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// A node that takes no batches is asked one by one.
func TestNoBatches(t *testing.T) {
	chain := newChain(30, 1, 0)
	for _, kind := range []string{"http", "ws"} {
		node := startNode(t, chain)
		node.finalized, node.noBatch = 20, true
		url := node.server.URL
		if kind == "ws" {
			url = node.ws()
		}

		s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest})
		await(t, s, func(v View) bool { return v.Head == 30 && v.Final == 20 })
		got, _ := collect(t, s, 1, 30, filterA())
		require.Equal(t, chain.all(1, 30), got)
	}
}

// Many addresses are asked for in parts, smaller ones where the node insists.
func TestAddresses(t *testing.T) {
	chain := newChain(30, 1, 0)
	node := startNode(t, chain)
	node.finalized = 20
	var most atomic.Int64
	node.lie = func(method string, params []json.RawMessage) (any, error) {
		if method == rpc.GetLogs {
			if n := int64(len(parseQuery(t, params[0]).Address)); n > 30 {
				return nil, errors.New("exceed max addresses or topics per search position")
			} else if n > most.Load() {
				most.Store(n)
			}
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest, MaxAddresses: 100})
	await(t, s, func(v View) bool { return v.Head == 30 && v.Final == 20 })
	f := &Filter{Topics: []common.Hash{topicA}}
	for i := range 2500 {
		f.Addresses = append(f.Addresses, common.Address{1, byte(i), byte(i >> 8)})
	}

	f.Addresses = append(f.Addresses, emitter)
	got, _ := collect(t, s, 1, 30, f)
	require.Equal(t, chain.all(1, 30), got)
	require.EqualValues(t, 25, most.Load())

	got, batches := collect(t, s, 1, 30, &Filter{Addresses: []common.Address{}})
	require.Empty(t, got, "no address, no logs")
	require.NotEmpty(t, batches)
}

// Older nodes do not tell a log's time; it is read from the headers.
func TestTimes(t *testing.T) {
	chain := newChain(60+farBlocks, 1, 0)
	node := startNode(t, chain)
	node.finalized = 60
	node.lie = changing(node, func(logs []types.Log) []types.Log {
		for i := range logs {
			logs[i].BlockTimestamp = 0
		}

		return logs
	})
	s := start(t, Config{URLs: []string{node.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Final == 60 })
	got, _ := collect(t, s, 1, 60, filterA())
	require.Equal(t, chain.all(1, 60), got)
}

// A node that hangs is given up after Timeout, and another is asked.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, p := newChain(20, 1, 0), &pipes{}
		node, host := p.node(t, chain)
		_, reserve := p.node(t, chain)
		s := start(t, Config{URLs: []string{"http://" + host.name, "http://" + reserve.name}, ChainID: 1, Finality: Latest,
			Timeout: 200 * time.Millisecond, Dial: p.dial})
		await(t, s, func(v View) bool { return v.Target == 20 && allUp(s) })
		node.set(func() { node.http = func(_ http.ResponseWriter, r *http.Request) bool { hang(r); return true } })
		got, _ := collect(t, s, 1, 20, filterA())
		require.Equal(t, chain.all(1, 20), got)
		await(t, s, func(View) bool { return !s.Endpoints()[0].Up })
		require.Contains(t, s.Endpoints()[0].LastError, "200ms")
		node.set(func() { node.http = nil })
		await(t, s, func(View) bool { return s.Endpoints()[0].Up })
	})
}
