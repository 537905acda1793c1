package watch

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// Metrics of both watches of an instance.
type Metrics struct {
	blocks, duplicates, foreign, retractions prometheus.Counter
	escrows, late                            prometheus.Gauge
	commits                                  *prometheus.CounterVec
	duration                                 *prometheus.HistogramVec
	events                                   *prometheus.CounterVec
	reorgs                                   *prometheus.CounterVec
	total                                    atomic.Int64 // events, of all names
}

// Events is how many events this process has stored, those that were stored already included.
func (m *Metrics) Events() int64 { return m.total.Load() }

// NewMetrics registers the metrics; names are the event names that may occur.
func NewMetrics(reg prometheus.Registerer, names []string) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		blocks: f.NewCounter(prometheus.CounterOpts{Name: "relayer_blocks_processed",
			Help: "Blocks processed for the slots of this instance."}),
		duplicates: f.NewCounter(prometheus.CounterOpts{Name: "event_deduplication_hits",
			Help: "Events that were stored already when this instance came to store them."}),
		foreign: f.NewCounter(prometheus.CounterOpts{Name: "relayer_foreign_logs_total",
			Help: "Logs of followed contracts under a known topic that the ABI does not decode."}),
		retractions: f.NewCounter(prometheus.CounterOpts{Name: "relayer_retractions_total",
			Help: "Published events that a reorganisation removed and that were retracted."}),
		escrows: f.NewGauge(prometheus.GaugeOpts{Name: "relayer_escrows_monitored",
			Help: "Escrows that this instance watches."}),
		late: f.NewGauge(prometheus.GaugeOpts{Name: "relayer_late_escrows",
			Help: "Escrows that are being caught up."}),
		commits: f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_commits_total",
			Help: "Commits by watch and outcome."}, []string{"watch", "outcome"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{Name: "relayer_commit_duration_seconds",
			Help: "Time of a commit.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"watch"}),
		events: f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_events_total", Help: "Events stored, by name."},
			[]string{"event_name"}),
		reorgs: f.NewCounterVec(prometheus.CounterOpts{Name: "relayer_reorgs_total",
			Help: "Reorganisations deeper than the configured finality that this instance rolled back, by depth in blocks."},
			[]string{"depth"}),
	}
	for _, watch := range []string{"slots", "factory", "past"} {
		for _, outcome := range []string{"ok", "moved", "error"} {
			m.commits.WithLabelValues(watch, outcome)
		}

		m.duration.WithLabelValues(watch)
	}

	for _, name := range names {
		m.events.WithLabelValues(name)
	}

	for _, d := range depths {
		m.reorgs.WithLabelValues(d.name)
	}

	return m
}

var depths = []struct {
	upTo int64
	name string
}{{1, "1"}, {6, "2-6"}, {12, "7-12"}, {32, "13-32"}, {64, "33-64"}, {1 << 62, "65+"}}

func (m *Metrics) reorg(depth int64) {
	for _, d := range depths {
		if depth <= d.upTo {
			m.reorgs.WithLabelValues(d.name).Inc()
			return
		}
	}
}

func (m *Metrics) commit(watch, outcome string, took time.Duration) {
	m.commits.WithLabelValues(watch, outcome).Inc()
	if outcome == "ok" {
		m.duration.WithLabelValues(watch).Observe(took.Seconds())
	}
}

// stored counts what a commit changed. Events of the batch that were stored already are counted by
// name too: the difference is in duplicates.
func (m *Metrics) stored(r ledger.Result, events []contract.Event, blocks int64) {
	m.blocks.Add(float64(max(blocks, 0)))
	m.duplicates.Add(float64(r.Duplicates))
	m.retractions.Add(float64(r.Retracted))
	m.total.Add(int64(len(events)))
	for i := range events {
		m.events.WithLabelValues(events[i].Name).Inc()
	}
}

func (m *Metrics) slots(escrows, late int) {
	m.escrows.Set(float64(escrows))
	m.late.Set(float64(late))
}
