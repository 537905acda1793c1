// Package metrics serves the metrics of the instance's registry, for every kind of scraper, and has those that no part
// of it measures itself: what it knows of itself and of the fleet (gauges.go).
//
// Some metrics have historical names that dashboards use but that violate Prometheus' conventions.
// Each of these is served under a conforming name too.
package metrics

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Aliases are the conforming names (https://prometheus.io/docs/practices/naming) of the metrics with historical ones.
var Aliases = map[string]string{
	"relayer_blocks_processed":   "relayer_blocks_processed_total",
	"relayer_events_published":   "relayer_events_published_total",
	"relayer_last_heartbeat_age": "relayer_last_heartbeat_age_seconds",
	"total_active_instances":     "relayer_active_instances",
	"total_escrows_registered":   "relayer_escrows_registered",
	"leader_election_count":      "relayer_leader_elections_total",
	"event_deduplication_hits":   "relayer_event_deduplication_hits_total",
}

// Handler serves the metrics of a gatherer in Prometheus' text format, or in OpenMetrics, with
// exemplars, to a scraper that asks for it.
func Handler(from prometheus.Gatherer, log *slog.Logger) http.Handler {
	serve := func(g prometheus.Gatherer, openMetrics bool) http.Handler {
		return promhttp.HandlerFor(g, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), EnableOpenMetrics: openMetrics,
		})
	}
	text, open := serve(withAliases{from}, false), serve(openNames{withAliases{from}}, true)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
		if format.FormatType() == expfmt.TypeOpenMetrics {
			open.ServeHTTP(w, r)
			return
		}

		text.ServeHTTP(w, r)
	})
}

// withAliases adds to each family with a conforming name a copy under that name.
type withAliases struct{ from prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g withAliases) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.from.Gather()
	all := make([]*dto.MetricFamily, 0, len(families)+len(Aliases))
	for _, f := range families {
		all = append(all, f)
		if name, ok := Aliases[f.GetName()]; ok {
			all = append(all, &dto.MetricFamily{Name: &name, Help: f.Help, Type: f.Type, Metric: f.Metric, Unit: f.Unit})
		}
	}

	return all, err
}

// openNames preserves the names of counters. OpenMetrics requires that a counter's name ends in _total, and the encoder
// appends it: a dashboard would lose the series as soon as its Prometheus negotiates OpenMetrics. A counter with
// another name is therefore served as a metric of unknown type.
type openNames struct{ from prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g openNames) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.from.Gather()
	for i, f := range families {
		if f.GetType() != dto.MetricType_COUNTER || strings.HasSuffix(f.GetName(), "_total") {
			continue
		}

		unknown := &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: dto.MetricType_UNTYPED.Enum(), Unit: f.Unit}
		for _, m := range f.Metric {
			unknown.Metric = append(unknown.Metric, &dto.Metric{Label: m.Label, TimestampMs: m.TimestampMs,
				Untyped: &dto.Untyped{Value: m.GetCounter().Value}})
		}

		families[i] = unknown
	}

	return families, err
}
