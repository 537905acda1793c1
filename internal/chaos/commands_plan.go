package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// commandSteps are the statements that the way of a command consists of, by table; "commit" is the
// moment inside the commit of a transaction that has done this.
var commandSteps = []string{
	"commands insert", "commands update", "command_attempts insert", "senders update",
	"replies insert", "replies delete",
	"commands insert commit", "commands update commit", "command_attempts insert commit", "replies insert commit",
	"replies delete commit",
}

// sendWords are refusals of transactions: for good, for now, for a fee, and unknown ones.
var sendWords = []string{
	"intrinsic gas too low", "txpool is full", "transaction underpriced", "internal error", "nonce too low",
	"insufficient funds for gas * price + value", "exceeds block gas limit",
}

// Commands is what a seed decides of the way back; nil in a plan without.
type Commands struct {
	Senders  int
	InFlight int  // of each
	Tight    bool // the day's budget lets only some commands pass
	Keeper   bool
	Refunds  bool          // the chain's time is a month ahead: escrows of before may be refunded
	Past     int           // commands that were answered long ago, and leave meanwhile
	AskEvery time.Duration // how often a requester asks
}

// NewCommandsPlan makes the plan of a seed with commands in its traffic.
func NewCommandsPlan(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0xc033a))
	p := Plan{
		Seed: seed, Instances: 2 + r.IntN(2), Strategy: "modulo", OrderingKey: "escrow", Filter: "auto",
		Confirmations: 2 + r.IntN(2), BlockTime: time.Duration(150+r.IntN(200)) * time.Millisecond,
		PerBlock: 1 + r.IntN(2), Length: 10 * time.Second, Probe: 300 * time.Millisecond,
		Commands: &Commands{
			Senders: 1 + r.IntN(3), InFlight: []int{1, 2, 16, 16}[r.IntN(4)], Tight: r.IntN(6) == 0, Keeper: r.IntN(3) == 0,
			Refunds: r.IntN(4) == 0, AskEvery: time.Duration(80+r.IntN(150)) * time.Millisecond,
		},
	}
	if p.Latest = r.IntN(6) == 0; p.Latest {
		p.Confirmations = 0
	}

	from := drawn(true)
	if r.IntN(3) == 0 {
		from = append(from, slices.Repeat([]Kind{DeepReorg}, 8)...)
	}

	// What halts a sender is rare: nothing is sent afterwards.
	switch r.IntN(6) {
	case 0:
		from = append(from, slices.Repeat([]Kind{ForeignUse}, 12)...)
	case 1:
		p.Faults = append(p.Faults, Fault{Kind: Restore, At: time.Duration(3+r.IntN(4)) * time.Second,
			For: time.Duration(500+r.IntN(2500)) * time.Millisecond, Keep: r.IntN(2) == 0})
	}

	for range 2 + r.IntN(5) {
		p.Faults = append(p.Faults, newFault(r, p, from))
	}

	if !p.Has(Restore) { // a copy of so much would take long
		p.Commands.Past = []int{500_000, 0, 0, 0, 0, 0, 0, 0}[r.IntN(8)]
	} else { // what was retracted after the backup is not known any more
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return kinds[f.Kind].reorganises })
	}

	slices.SortFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	flooded := false // two are more than one requester may have open
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool {
		again := f.Kind == Flood && flooded
		flooded = flooded || f.Kind == Flood

		return again
	})

	return p
}

func (c *Commands) String() string { return fmt.Sprintf("%+v", *c) }
