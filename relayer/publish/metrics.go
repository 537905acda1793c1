package publish

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// Metrics are shared by the publishers of several tenures.
type Metrics struct {
	published, republished prometheus.Counter
	errors                 *prometheus.CounterVec
	duration, latency      prometheus.Histogram
	inFlight, blocked      prometheus.Gauge
	last                   atomic.Pointer[Failure]
}

// Failure is a failed publish request.
type Failure struct {
	At  time.Time
	Err error
}

// LastFailure returns the last failed request; nil: all have succeeded so far.
func (m *Metrics) LastFailure() *Failure { return m.last.Load() }

// NewMetrics registers the metrics; nil registers nothing.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		published: f.NewCounter(prometheus.CounterOpts{Name: "relayer_events_published",
			Help: "Messages that Pub/Sub acknowledged, replays and retractions included."}),
		republished: f.NewCounter(prometheus.CounterOpts{Name: "relayer_republished_total",
			Help: "Acknowledged messages that may be in the topic twice: the outcome of an earlier attempt is unknown, or an earlier process had them to send."}),
		errors: f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_publish_errors_total",
			Help: "Failed requests to publish, by gRPC code; each is tried again."}, []string{"code"}),
		duration: f.NewHistogram(prometheus.HistogramOpts{Name: "relayer_publish_duration_seconds",
			Help:    "From handing a message to the client to its acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		latency: f.NewHistogram(prometheus.HistogramOpts{Name: "relayer_event_latency_seconds",
			Help: "From the timestamp of an event's block to the acknowledgement of its message. " +
				"The exemplar is the trace of an event.",
			Buckets: prometheus.ExponentialBuckets(0.5, 2, 14)}),
		inFlight: f.NewGauge(prometheus.GaugeOpts{Name: "relayer_publish_inflight_messages",
			Help: "Messages sent and not acknowledged yet."}),
		blocked: f.NewGauge(prometheus.GaugeOpts{Name: "relayer_publish_blocked_keys",
			Help: "Ordering keys whose last publish failed and that wait for the next try."}),
	}
	m.everyCode()

	return m
}

func (m *Metrics) everyCode() {
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		m.errors.WithLabelValues(c.String())
	}
}

// observeLatency counts the latency of an event, with its trace as the exemplar; nil: it was not sampled.
func (m *Metrics) observeLatency(took time.Duration, of *trace.SpanContext) {
	var exemplar prometheus.Labels
	if of != nil {
		exemplar = prometheus.Labels{"trace_id": of.TraceID().String()}
	}

	observer := m.latency.(prometheus.ExemplarObserver) //nolint:forcetypeassert // each histogram is one
	observer.ObserveWithExemplar(max(0, took.Seconds()), exemplar)
}

// NewAnswerMetrics registers the metrics of a Publisher of answers. What else it measures is not shown.
func NewAnswerMetrics(reg prometheus.Registerer) *Metrics {
	m, f := NewMetrics(nil), promauto.With(reg)
	m.published = f.NewCounter(prometheus.CounterOpts{Name: "relayer_replies_published_total",
		Help: "Answers that Pub/Sub has acknowledged."})
	m.errors = f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_reply_failures_total",
		Help: "Requests to publish answers that failed, by gRPC code; each is tried again."}, []string{"code"})
	m.everyCode()

	return m
}

// hopeless reports whether an answer stays the same until a person acts.
func hopeless(c codes.Code) bool { return pubsub.Refused(c) && c != codes.ResourceExhausted }
