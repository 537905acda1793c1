package source

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests       *prometheus.CounterVec   // endpoint, method, outcome
	duration       *prometheus.HistogramVec // endpoint, method
	up             *prometheus.GaugeVec     // endpoint
	received, sent *prometheus.CounterVec   // endpoint
	disagreements  *prometheus.CounterVec   // endpoint
}

func newMetrics(reg prometheus.Registerer, endpoints []string) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests: counter("relayer_rpc_requests_total", "Calls to the chain's nodes. Each call of a batch counts.", "endpoint", "method", "outcome"),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "relayer_rpc_request_duration_seconds", Help: "Time to the answer of a batch, under the method of its first call.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"endpoint", "method"}),
		up:            f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_rpc_endpoint_up", Help: "1 while the endpoint is healthy."}, []string{"endpoint"}),
		received:      counter("relayer_rpc_received_bytes_total", "Bytes of answers, uncompressed.", "endpoint"),
		sent:          counter("relayer_rpc_sent_bytes_total", "Bytes of requests.", "endpoint"),
		disagreements: counter("relayer_rpc_disagreements_total", "Answers that were wrong or contradicted the other endpoints'.", "endpoint"),
	}
	for _, e := range endpoints {
		m.up.WithLabelValues(e)
		m.received.WithLabelValues(e)
		m.sent.WithLabelValues(e)
		m.disagreements.WithLabelValues(e)
		for _, method := range methods {
			m.duration.WithLabelValues(e, method)
			for _, o := range outcomes {
				m.requests.WithLabelValues(e, method, string(o))
			}
		}
	}
	return m
}

// label of a method: a closed set, whatever is called.
func label(method string) string {
	if slices.Contains(methods, method) {
		return method
	}
	return otherMethod
}
