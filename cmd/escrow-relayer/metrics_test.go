package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/metricsdoc"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// families reads /metrics of a relayer.
func families(t *testing.T, p *lab.Process) map[string]*dto.MetricFamily {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/metrics", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)

	return found
}

// What /metrics serves and what deploy/metrics.md says are the same: names, types, labels and
// closed label values; from the start, since a series that appears with its first event hides that
// event from rate().
func TestMetricsAreDocumentedBothWays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 2, nil)
	w.ready("r0")
	documented, err := metricsdoc.Read("../../deploy/metrics.md")
	require.NoError(t, err)
	compare := func(id, when string) {
		served := families(t, w.fleet[id])
		for name, m := range documented {
			if name == "up" || m.Commands { // the scraper's, and what TestCommandsEndToEnd sees
				continue
			}

			require.Contains(t, served, name, "%s: metrics.md documents what %s does not serve", when, id)
			require.Equal(t, m.Kind, strings.ToLower(served[name].GetType().String()), "%s: the type of %s", when, name)
		}

		for name, f := range served {
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue
			}

			require.Contains(t, documented, name, "%s: %s serves what metrics.md does not document", when, id)
			require.False(t, documented[name].Commands, "%s: %s serves %s without commands", when, id, name)
			require.NotEmpty(t, f.GetHelp(), name)
			for _, series := range f.GetMetric() {
				var labels []string
				for _, l := range series.GetLabel() {
					labels = append(labels, l.GetName())
					if values := documented[name].Values[l.GetName()]; len(values) > 0 {
						require.Contains(t, values, l.GetValue(), "%s: %s has a value of %s that metrics.md does not name", when,
							name, l.GetName())
					}
				}

				want := slices.Sorted(slices.Values(append([]string{"chain_id", "fleet"}, documented[name].Labels...)))
				slices.Sort(labels)
				require.Equal(t, want, labels, "%s: the labels of %s", when, name)
			}

			for label, values := range documented[name].Values {
				for _, v := range values {
					require.True(t, slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool {
						return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
							return l.GetName() == label &&
								l.GetValue() == v
						})
					}), "%s: %s has no series with %s=%q, which metrics.md names", when, name, label, v)
				}
			}
		}
	}
	compare("r0", "at the start")

	// A standby that has never held a slot, and both after a takeover.
	w.run("r1", 0, 2, map[string]string{"RPC_URLS": w.Chain.HTTP()})
	w.ready("r1")
	compare("r1", "a standby")
	for id, believed := range map[string]float64{"r0": 0, "r1": 1} { // r1 has one endpoint
		require.InDelta(t, believed, families(t, w.fleet[id])["relayer_believed"].GetMetric()[0].GetGauge().GetValue(), 0, id)
	}

	w.blocks(5)
	w.fleet["r0"].Kill()
	w.until("r1 serves all", func(f *fleet.Fleet) bool { return slotsOf("r1", 2520)(f) && f.Leader.Valid })
	w.blocks(5)
	w.audit(true)
	compare("r1", "after a takeover")
}
