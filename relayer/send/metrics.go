package send

import (
	"math/big"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Metrics of all senders of an instance.
type Metrics struct {
	answers                                             *prometheus.CounterVec
	broadcasts, reopened, underpriced, budget           *prometheus.CounterVec
	signErrors, roundErrors                             *prometheus.CounterVec
	owned, halted, inFlight, balance, oldest, spentFees *prometheus.GaugeVec
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
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, label)
		reg.MustRegister(g)
		return g
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
		owned:       gauge("relayer_sender_owned", "1 while this instance owns the sender."),
		halted:      gauge("relayer_sender_halted", "1 while the sender is halted: somebody has to look."),
		inFlight:    gauge("relayer_sender_in_flight", "Nonces under way."),
		balance:     gauge("relayer_sender_balance_ether", "Balance of the account."),
		oldest: gauge("relayer_sender_oldest_flight_seconds",
			"Age of the oldest command that has a nonce and no answer."),
		spentFees: gauge("relayer_sender_spent_fees_ether", "Fees paid or reserved since midnight UTC."),
	}
	for _, s := range answerable {
		m.answers.WithLabelValues(string(s))
	}

	for _, name := range senders {
		for _, c := range []*prometheus.CounterVec{m.broadcasts, m.reopened, m.underpriced, m.budget, m.signErrors,
			m.roundErrors} {
			c.WithLabelValues(name)
		}

		m.owned.WithLabelValues(name)
		m.halted.WithLabelValues(name)
	}

	return m
}

func (m *Metrics) answered(a command.Answer) { m.answers.WithLabelValues(string(a.State)).Inc() }

// observe publishes what one look at the chain showed.
func (m *Metrics) observe(name string, look Look, a *account, flights []*flight) {
	halted := 0.0
	if a.State == "halted" {
		halted = 1
	}

	m.halted.WithLabelValues(name).Set(halted)
	m.inFlight.WithLabelValues(name).Set(float64(len(flights)))
	m.balance.WithLabelValues(name).Set(ether(look.Balance))
	m.spentFees.WithLabelValues(name).Set(ether(a.SpentFees))
	age := 0.0
	for _, f := range flights {
		age = max(age, a.Now.Sub(f.AssignedAt).Seconds())
	}

	m.oldest.WithLabelValues(name).Set(age)
}

func ether(wei *big.Int) float64 {
	if wei == nil {
		return 0
	}

	v, _ := new(big.Rat).SetFrac(wei, big.NewInt(1e18)).Float64()

	return v
}
