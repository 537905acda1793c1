package demo

import (
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// The counters are read from what a relayer serves: each series has the labels of its fleet.
func TestScrape(t *testing.T) {
	metrics := prometheus.NewRegistry()
	fleet := prometheus.WrapRegistererWith(prometheus.Labels{"chain_id": "1", "fleet": "a"}, metrics)
	for name, value := range map[string]float64{suppressed: 7, republished: 3, suppressed + "_else": 11} {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "A counter."})
		c.Add(value)
		fleet.MustRegister(c)
	}

	server := httptest.NewServer(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	defer server.Close()

	p := &lab.Process{URL: server.URL}
	seen, err := p.Metrics(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{suppressed: 7, republished: 3},
		map[string]int{suppressed: int(seen.Sum(suppressed)), republished: int(seen.Sum(republished))})
}
