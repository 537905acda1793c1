package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// chainConfig is that of a chain that has one metric.
func chainConfig(t *testing.T, chain int64, source *instanceStub) Config {
	t.Helper()
	reg := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "relayer_is_leader", Help: "Whether it leads.",
		ConstLabels: prometheus.Labels{"chain_id": json.Number(count(chain)).String()}})
	reg.MustRegister(gauge)
	db := broken(t)

	return Config{Source: source, Fleet: &reads{db: db}, DB: db, ChainID: chain, Metrics: reg,
		Commands: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s on chain %d", r.URL.Path, chain)
		})}
}

// Each chain has its own pages and readiness; what has not come, or has ended, is not ready, and the others
// stay as they are.
func TestFrontOfSeveralChains(t *testing.T) {
	t.Parallel()
	f, err := NewFront(FrontConfig{Chains: []int64{1, 2, 3}, Mask: mask})
	require.NoError(t, err)
	h := f.Handler()
	source := &instanceStub{i: fleet.Self{ID: "relayer-0"}}
	f.Mount(chainConfig(t, 1, source))
	f.Mount(chainConfig(t, 2, source))

	ready := func(path string, status int) string {
		r := get(t, h, path)
		require.Equal(t, status, r.StatusCode, path)
		text := body(t, r)
		require.NotContains(t, text, secret)

		return text
	}
	ready("/readyz/1", http.StatusOK)
	ready("/readyz/2", http.StatusOK)
	require.Contains(t, ready("/readyz/3", http.StatusServiceUnavailable), "starting")
	require.Contains(t, ready("/readyz", http.StatusServiceUnavailable), "starting")
	ready("/readyz/4", http.StatusNotFound)
	ready("/chains/4/", http.StatusNotFound)
	require.Contains(t, ready("/chains/3/status", http.StatusServiceUnavailable), "starting")

	f.Mount(chainConfig(t, 3, source))
	var all allReady
	require.NoError(t, json.Unmarshal([]byte(ready("/readyz", http.StatusOK)), &all))
	require.True(t, all.Ready)
	require.Len(t, all.Chains, 3)

	f.Ended(2, errGone)
	require.Contains(t, ready("/readyz/2", http.StatusServiceUnavailable), "connection refused")
	require.NoError(t, json.Unmarshal([]byte(ready("/readyz", http.StatusServiceUnavailable)), &all))
	require.True(t, all.Chains[1].Ready)
	require.False(t, all.Chains[2].Ready)
	page := ready("/", http.StatusOK)
	require.Contains(t, page, `href="chains/1/"`)
	require.Contains(t, page, "connection refused")
	require.Contains(t, page, `<span title="">–</span>`, "factories that nobody could read are not none")
	f.drawn.at = time.Now().Add(time.Hour)
	before := source.asked
	require.Equal(t, page, ready("/", http.StatusOK))
	require.Equal(t, before, source.asked, "it is rendered once for all who look")
	require.Contains(t, ready("/status", http.StatusOK), `"relayer-0"`)
	require.Contains(t, ready("/chains/1/", http.StatusOK), `href="../../"`)
	require.Equal(t, "/commands on chain 2", ready("/chains/2/commands", http.StatusOK))
	text := ready("/metrics", http.StatusOK)
	for _, id := range []string{"1", "2", "3"} {
		require.Contains(t, text, `relayer_is_leader{chain_id="`+id+`"} 0`)
	}

	f.Mount(chainConfig(t, 2, source))
	ready("/readyz/2", http.StatusOK)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, rec.Code)
}

// With one chain its pages are at /, as ever, and below /chains/ too.
func TestFrontOfOneChain(t *testing.T) {
	t.Parallel()
	f, err := NewFront(FrontConfig{Chains: []int64{testChain}})
	require.NoError(t, err)
	h := f.Handler()
	r := get(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
	require.JSONEq(t, `{"ready":false,"checks":{"process":{"ok":false,"reason":"starting"}}}`, body(t, r))
	require.Equal(t, http.StatusOK, get(t, h, "/healthz").StatusCode)
	require.Equal(t, http.StatusServiceUnavailable, get(t, h, "/").StatusCode)

	s, _ := bare(t, broken(t))
	f.Mount(s.cfg)
	r = get(t, h, "/readyz")
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.JSONEq(t, `{"ready":true,"checks":{"session":{"ok":true},"database":{"ok":true},"node":{"ok":true},"storing":{"ok":true}}}`,
		body(t, r))
	for _, path := range []string{"/", "/status", "/chains/11155111/", "/readyz/11155111"} {
		r := get(t, h, path)
		require.Equal(t, http.StatusOK, r.StatusCode, path)
		require.NotContains(t, body(t, r), "all chains")
	}
}
