package endpoint

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// other stands for every method that is not one of methods.
const other = "other"

var (
	methods = []string{rpc.ChainID, rpc.GetCode, rpc.GetByNumber, rpc.GetByHash, rpc.GetLogs, rpc.GetReceipts,
		rpc.Subscribe, other}
	outcomes = []rpc.Kind{rpc.OK, rpc.Failed, rpc.TimedOut, rpc.RateLimited, rpc.RangeTooLarge, rpc.Behind, rpc.Invalid}
)

// Metrics of all nodes.
type Metrics struct {
	requests       *prometheus.CounterVec   // endpoint, method, outcome
	duration       *prometheus.HistogramVec // endpoint, method
	up             *prometheus.GaugeVec     // endpoint
	received, sent *prometheus.CounterVec   // endpoint
	disagreements  *prometheus.CounterVec   // endpoint
}

// NewMetrics registers the metrics of the endpoints with these names. reg nil: they are counted and not shown.
func NewMetrics(reg prometheus.Registerer, endpoints []string) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("relayer_rpc_requests_total", "Calls to the chain's nodes. Each call of a batch counts.",
			"endpoint", "method", "outcome"),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "relayer_rpc_request_duration_seconds",
			Help:    "Time to the answer of a batch, under the method of its first call.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"endpoint", "method"}),
		up: f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_rpc_endpoint_up",
			Help: "1 while the endpoint is healthy."}, []string{"endpoint"}),
		received: counter("relayer_rpc_received_bytes_total", "Bytes of answers, uncompressed.", "endpoint"),
		sent:     counter("relayer_rpc_sent_bytes_total", "Bytes of requests.", "endpoint"),
		disagreements: counter("relayer_rpc_disagreements_total",
			"Answers that were wrong or contradicted the other endpoints'.", "endpoint"),
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

func (m *Metrics) state(name string, s State) {
	up := 0.
	if s.Up() {
		up = 1
	}

	m.up.WithLabelValues(name).Set(up)
}

func (m *Metrics) exchanged(name string, calls []*rpc.Call, err error, traffic rpc.Traffic, took time.Duration) {
	m.sent.WithLabelValues(name).Add(float64(traffic.Sent))
	m.received.WithLabelValues(name).Add(float64(traffic.Received))
	m.duration.WithLabelValues(name, label(calls[0].Method)).Observe(took.Seconds())
	for _, c := range calls {
		kind := rpc.Classify(c.Err)
		switch {
		case err != nil && !errors.Is(err, rpc.ErrUnanswered):
			kind = rpc.Classify(err)
		case c.Null():
			kind = rpc.Behind
		}

		m.requests.WithLabelValues(name, label(c.Method), outcome(kind)).Inc()
	}
}

// label of a method: a closed set, whatever is called.
func label(method string) string {
	if slices.Contains(methods, method) {
		return method
	}

	return other
}

// outcome of a request in metrics: a closed set, coarser than the kinds.
func outcome(kind rpc.Kind) string {
	switch {
	case kind == rpc.TooManyAddresses:
		kind = rpc.RangeTooLarge
	case !slices.Contains(outcomes, kind):
		kind = rpc.Failed
	}

	return string(kind)
}
