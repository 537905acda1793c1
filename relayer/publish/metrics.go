package publish

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Metrics outlive the publishers of several tenures.
type Metrics struct {
	published, republished prometheus.Counter
	errors                 *prometheus.CounterVec
	duration, latency      prometheus.Histogram
	inFlight, blocked      prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		published:   f.NewCounter(prometheus.CounterOpts{Name: "relayer_events_published", Help: "Messages that Pub/Sub acknowledged, replays and retractions included."}),
		republished: f.NewCounter(prometheus.CounterOpts{Name: "relayer_republished_total", Help: "Messages that may reach subscribers twice: sent without an answer, or acknowledged without the outbox row being deleted, when a tenure ended."}),
		errors:      f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_publish_errors_total", Help: "Failed publishes by gRPC code."}, []string{"code"}),
		duration:    f.NewHistogram(prometheus.HistogramOpts{Name: "relayer_publish_duration_seconds", Help: "From handing a message to the client to its acknowledgement.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		latency:     f.NewHistogram(prometheus.HistogramOpts{Name: "relayer_event_latency_seconds", Help: "From the timestamp of an event's block to its acknowledgement.", Buckets: prometheus.ExponentialBuckets(0.5, 2, 14)}),
		inFlight:    f.NewGauge(prometheus.GaugeOpts{Name: "relayer_publish_inflight_messages", Help: "Messages sent and not acknowledged yet."}),
		blocked:     f.NewGauge(prometheus.GaugeOpts{Name: "relayer_publish_blocked_keys", Help: "Ordering keys whose last publish failed."}),
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		m.errors.WithLabelValues(c.String())
	}
	return m
}

func (m *Metrics) failed(err error) { m.errors.WithLabelValues(status.Code(err).String()).Inc() }
