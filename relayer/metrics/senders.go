package metrics

import (
	"math"
	"math/big"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// senderGauge is a metric of commands that every instance reports from the database, with or
// without keys: so it survives the instances with keys, and a former owner of a sender does not
// report outdated values. Without senders there is no series.
type senderGauge struct {
	desc *prometheus.Desc
	each func(f *fleet.Fleet, report func(value float64, labels ...string))
}

var senderGauges = []senderGauge{
	ofSender("relayer_sender_halted", "1 while the sender is halted: somebody has to look.",
		func(s *fleet.Sender) float64 { return yes(s.State == "halted") }),
	ofSender("relayer_sender_paused", "1 while an operator has paused the sender.",
		func(s *fleet.Sender) float64 { return yes(s.State == "paused") }),
	ofSender("relayer_sender_served", "1 while an instance holds the sender.",
		func(s *fleet.Sender) float64 { return yes(s.Served) }),
	ofSender("relayer_sender_in_flight", "Commands with a nonce and without an answer.",
		func(s *fleet.Sender) float64 { return float64(s.InFlight) }),
	ofSender("relayer_sender_oldest_command_seconds",
		"Age of the oldest command that has a nonce and no answer, or that nobody has looked at.",
		func(s *fleet.Sender) float64 { return s.OldestAge.Seconds() }),
	ofSender("relayer_sender_unsigned_seconds",
		"Age of the oldest command that lacks nothing but a signature.",
		func(s *fleet.Sender) float64 { return s.UnsignedAge.Seconds() }),
	ofSender("relayer_sender_balance_ether", "Balance of the account.",
		func(s *fleet.Sender) float64 { return ether(s.Balance) }),
	ofSender("relayer_sender_max_fee_ether", "What one command may cost.",
		func(s *fleet.Sender) float64 { return ether(s.MaxFee) }),
	ofSender("relayer_sender_spent_fees_ether", "Fees paid or reserved since midnight UTC.",
		func(s *fleet.Sender) float64 { return ether(s.SpentFees) }),
	ofSender("relayer_sender_day_fees_ether", "What may be spent on fees on one day.",
		func(s *fleet.Sender) float64 { return ether(s.DayFees) }),
	{describe("relayer_sender_waiting", "Commands without a nonce, or stopped at the fee cap, by what they wait for.",
		"sender", "reason"),
		func(f *fleet.Fleet, report func(float64, ...string)) {
			for i := range f.Senders {
				s := &f.Senders[i]
				report(float64(s.Budget), s.Label(), "budget")
				report(float64(s.Underpriced), s.Label(), "fees")
				report(float64(s.Unfunded), s.Label(), "balance")
				report(float64(max(0, s.Waiting-s.Budget-s.Underpriced-s.Unfunded)), s.Label(), "other")
			}
		}},
	{describe("relayer_oldest_reply_seconds", "Age of the oldest answer that Pub/Sub has not acknowledged."),
		func(f *fleet.Fleet, report func(float64, ...string)) {
			switch {
			case f.Replies != nil:
				report(f.Replies.OldestAge.Seconds())
			case f.HasCommands():
				report(0)
			}
		}},
}

func ofSender(name, help string, value func(*fleet.Sender) float64) senderGauge {
	return senderGauge{describe(name, help, "sender"), func(f *fleet.Fleet, report func(float64, ...string)) {
		for i := range f.Senders {
			report(value(&f.Senders[i]), f.Senders[i].Label())
		}
	}}
}

// ether is an amount of wei; NaN if it is unknown.
func ether(wei string) float64 {
	n, ok := new(big.Int).SetString(wei, 10)
	if !ok {
		return math.NaN()
	}

	v, _ := new(big.Rat).SetFrac(n, big.NewInt(1e18)).Float64()

	return v
}
