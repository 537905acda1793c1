package send

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Metrics of all senders of an instance: what it does itself. What is so of a sender, whoever owns
// it, every instance tells from the database (relayer/fleet).
type Metrics struct {
	answers                                   *prometheus.CounterVec
	broadcasts, reopened, underpriced, budget *prometheus.CounterVec
	signErrors, roundErrors                   *prometheus.CounterVec
	owned                                     *prometheus.GaugeVec
}

// answerable are the states that an answer may have.
var answerable = []command.State{
	command.Done, command.DoneLate, command.Reverted, command.Voided, command.Already, command.Superseded,
	command.Expired, command.Cancelled, command.Refused,
}

// NewMetrics registers the metrics. senders are the names of those that are configured: every
// series exists from the start.
func NewMetrics(reg prometheus.Registerer, senders []string) *Metrics {
	label := []string{"sender"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &Metrics{
		answers: counter("relayer_command_answers_total", "Commands that got their final answer, by state.", "state"),
		broadcasts: counter("relayer_sender_broadcasts_total", "Transactions sent to the endpoints, repetitions included.",
			label...),
		reopened: counter("relayer_sender_reopened_total", "Answers that a reorganisation took back.", label...),
		underpriced: counter("relayer_sender_fee_cap_reached_total",
			"Times that the chain asked for more than a command may pay.", label...),
		budget: counter("relayer_sender_budget_reached_total",
			"Times that a command had to wait because the budget of the day was used up.", label...),
		signErrors:  counter("relayer_sender_sign_errors_total", "Signatures that failed; the command waits.", label...),
		roundErrors: counter("relayer_sender_round_errors_total", "Rounds that failed and were tried again.", label...),
		owned: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_sender_owned",
			Help: "1 while this instance owns the sender."}, label),
	}
	reg.MustRegister(m.owned)

	for _, s := range answerable {
		m.answers.WithLabelValues(string(s))
	}

	for _, name := range senders {
		for _, c := range []*prometheus.CounterVec{m.broadcasts, m.reopened, m.underpriced, m.budget, m.signErrors,
			m.roundErrors} {
			c.WithLabelValues(name)
		}

		m.owned.WithLabelValues(name)
	}

	return m
}

func (m *Metrics) answered(a command.Answer) { m.answers.WithLabelValues(string(a.State)).Inc() }
