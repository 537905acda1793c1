package send

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Metrics of all senders of an instance: what it does itself. The state of a sender, whichever instance owns
// it, is told by every instance from the database (relayer/fleet).
type Metrics struct {
	answers, broadcasts, roundErrors *prometheus.CounterVec
}

// NewMetrics registers the metrics. senders are the names of those that are configured: every
// series exists from the start.
func NewMetrics(reg prometheus.Registerer, senders []string) *Metrics {
	f, labels := promauto.With(reg), []string{"sender"}
	counter := func(name, help string) *prometheus.CounterVec {
		c := f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		for _, sender := range senders {
			c.WithLabelValues(sender)
		}

		return c
	}
	m := &Metrics{
		answers: f.NewCounterVec(prometheus.CounterOpts{
			Name: "relayer_command_answers_total", Help: "Commands that got their final answer, by state.",
		}, []string{"state"}),
		broadcasts: counter("relayer_sender_broadcasts_total",
			"Transactions sent to the endpoints, repetitions included."),
		roundErrors: counter("relayer_sender_round_errors_total", "Rounds that failed and were tried again."),
	}
	for _, t := range command.Transitions {
		if t.To.Final() {
			m.answers.WithLabelValues(string(t.To))
		}
	}

	return m
}
