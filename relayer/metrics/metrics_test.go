package metrics_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
)

const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"

func scrape(t *testing.T, h http.Handler, accept string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)

	return string(body)
}

// registry has a counter of the first version, a conforming one, and a histogram with an exemplar.
func registry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	f := promauto.With(reg)
	f.NewCounter(prometheus.CounterOpts{Name: "event_deduplication_hits", Help: "Events found stored."}).Add(3)
	f.NewCounter(prometheus.CounterOpts{Name: "relayer_commits_total", Help: "Commits."}).Add(5)
	latency := f.NewHistogram(prometheus.HistogramOpts{Name: "relayer_event_latency_seconds", Help: "Latency."})
	latency.(prometheus.ExemplarObserver).ObserveWithExemplar(0.02,
		prometheus.Labels{"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"})

	return reg
}

// A metric keeps its name in either format: a dashboard does not lose it when a scraper changes the format.
func TestNamesAreTheSameInBothFormats(t *testing.T) {
	t.Parallel()
	h := metrics.Handler(registry(), slog.New(slog.DiscardHandler))
	for _, accept := range []string{"text/plain", openMetrics} {
		body := scrape(t, h, accept)
		for _, line := range []string{"event_deduplication_hits 3", "relayer_event_deduplication_hits_total 3",
			"relayer_commits_total 5"} {
			require.Contains(t, strings.ReplaceAll(body, ".0\n", "\n"), "\n"+line+"\n", accept)
		}

		require.NotContains(t, body, "\nevent_deduplication_hits_total", accept)
	}

	body := scrape(t, h, openMetrics)
	require.True(t, strings.HasSuffix(body, "# EOF\n"))
	require.Contains(t, body, `# {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.02`)
}

// What the linter of Prometheus has against a name is answered by an alias that it has nothing against.
func TestAliasesConform(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	f := promauto.With(reg)
	for name, alias := range metrics.Aliases {
		if strings.HasSuffix(alias, "_total") {
			f.NewCounter(prometheus.CounterOpts{Name: name, Help: "Help."})
		} else {
			f.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Help."})
		}
	}

	body := scrape(t, metrics.Handler(reg, slog.New(slog.DiscardHandler)), "text/plain")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(t, err)
	require.Len(t, families, 2*len(metrics.Aliases))
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		require.Contains(t, metrics.Aliases, p.Metric, p.Text)
	}
}
