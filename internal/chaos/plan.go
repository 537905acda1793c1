// Package chaos tries to break the guarantees: real relayer processes on a real Postgres, a real
// chain and Google's Pub/Sub server, traffic, faults, and an oracle that reads the chain itself.
// One seed decides everything; the times of the machine it cannot decide.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// refusals are what a write may fail with: disk full, serialization failure, deadlock, lock not
// available, statement timeout, out of memory.
var refusals = []string{"53100", "40001", "40P01", "55P03", "57014", "53200"}

// unknownWords are refusals that say neither that a range is too large nor that its results are too many.
var unknownWords = []string{
	"request timed out", "canceled due to enabled timeout", "response is larger than 150MB", "missing trie node",
	"Internal error", "upstream unavailable", "",
}

// Fault is one entry of a plan.
type Fault struct {
	At   time.Duration
	Kind Kind
	Who  int           // number of the instance
	For  time.Duration // until it is undone
	N    int           // by kind: depth of a reorganisation, new total of a repartition, …
	Keep bool          // by kind: a reorganisation keeps the transactions, new connections are hit too, …
	Both bool          // both nodes, or the networks of all instances
}

func (f Fault) String() string {
	return fmt.Sprintf("%5.1fs %s who=%d for=%s n=%d keep=%v both=%v", f.At.Seconds(), f.Kind, f.Who,
		f.For.Round(10*time.Millisecond), f.N, f.Keep, f.Both)
}

// Plan is what a seed decides.
type Plan struct {
	Seed          uint64
	Instances     int
	Strategy      string
	OrderingKey   string
	Filter        string
	Confirmations int
	BlockTime     time.Duration
	PerBlock      int // actions of the traffic
	Length        time.Duration
	Probe         time.Duration // SESSION_PROBE_INTERVAL
	Faults        []Fault
	Auto          bool          // PARTITION_NUMBER=auto
	Second        bool          // the processes follow another chain too, with the same addresses and topics
	Latest        bool          // FINALITY=latest: every reorganisation goes too deep
	Safe          bool          // FINALITY=safe: the nodes call the block safe that lies Confirmations below the newest
	Clock         time.Duration // by how much the clock of one instance is wrong; works with a binary of Build only
	ClockWho      int
	Commands      *Commands // nil: no commands in the traffic
}

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0xc4a05))
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	p := Plan{
		Seed: seed, Instances: 2 + r.IntN(3), Strategy: pick("modulo", "consistent"),
		OrderingKey: pick("escrow", "escrow", "slot"),
		Filter:      pick("auto", "topics", "addresses"), Confirmations: 2 + r.IntN(3),
		BlockTime: time.Duration(120+r.IntN(200)) * time.Millisecond,
		PerBlock:  2 + r.IntN(6), Length: 10 * time.Second, Probe: 300 * time.Millisecond,
	}
	from := drawn(false)
	for _, often := range []Kind{Repartition, DeepReorg} { // in few plans only, where they come often
		if r.IntN(3) == 0 {
			from = append(from, often, often, often)
		}
	}

	p.Auto, p.Second = r.IntN(5) == 0, r.IntN(6) == 0
	if r.IntN(5) == 0 {
		p.Clock, p.ClockWho = time.Duration(1+r.IntN(30))*time.Minute, r.IntN(p.Instances)
		if r.IntN(2) == 0 {
			p.Clock = -p.Clock
		}
	}

	switch r.IntN(10) {
	case 0:
		p.Latest, p.Confirmations = true, 0
		from = append(from, ShiftReorg, ShiftReorg, ShiftReorg, ShiftReorg)
	case 1:
		p.Safe, p.Second = true, false // the nodes of the second chain call every block safe
		from = append(from, slices.Repeat([]Kind{NodeStands}, len(from)/3)...)
	}

	for range 2 + r.IntN(5) {
		p.Faults = append(p.Faults, newFault(r, p, from))
	}

	p.extend()
	slices.SortFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })

	return p
}

// How long faults last that are not drawn.
const (
	sec    = time.Second
	long   = 10 * time.Second // or until the others have gone on without the instance: see endure
	longer = 30 * time.Second // so long that an instance that lives but does nothing counts as dead
)

// planOf is three instances under traffic, and these faults.
func planOf(length time.Duration, some ...Fault) Plan {
	return Plan{
		Seed: 5, Instances: 3, Strategy: "modulo", OrderingKey: "escrow", Filter: "auto", Confirmations: 2,
		BlockTime: 300 * time.Millisecond, PerBlock: 2, Faults: some, Length: length,
		Probe: time.Second, // on a busy machine too, only the sessions that a fault hits are lost
	}
}

// extend adds NodeLies to one plan of six, and Grow to another one, in which instances are killed too.
func (p *Plan) extend() {
	r := rand.New(rand.NewPCG(p.Seed, 0x11e5))
	// An endpoint that has lied is set aside, and the second reading, which has to find what NodeOmits leaves out, has
	// nobody left to ask.
	if r.IntN(6) == 0 && !p.Has(NodeOmits) {
		p.Faults = append(p.Faults, Fault{Kind: NodeLies, At: time.Duration(r.Int64N(int64(p.Length / 2))),
			N: r.IntN(len(lies)), For: 2*time.Second + time.Duration(r.Int64N(int64(4*time.Second)))})
	}

	if r.IntN(6) == 0 && !p.Second { // whose settings are in a file
		deceived := p.Has(NodeLies) || p.some(func(k kind) bool { return k.node.Mode != "" })
		for _, name := range []Kind{Grow, Kill, Kill} { // after the older factory was added: see withTraffic
			at := p.Length/4 + time.Duration(r.Int64N(int64(p.Length*6/10)))
			p.Faults = append(p.Faults, Fault{Kind: name, At: at, Who: r.IntN(p.Instances), N: r.IntN(2), Keep: r.IntN(2) == 0,
				For: time.Duration(r.Int64N(int64(2 * time.Second)))})
			if deceived { // the second reading may wait for an endpoint that has been wrong: see suspectTimeout
				p.Faults[len(p.Faults)-1].N = 0
			}
		}
	}
}

// Has reports whether the plan has a fault of one of the kinds.
func (p *Plan) Has(names ...Kind) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return slices.Contains(names, f.Kind) })
}

// some reports whether the plan has a fault of such a kind.
func (p *Plan) some(is func(kind) bool) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return is(kinds[f.Kind]) })
}

// Deep reports whether the plan has a reorganisation that goes deeper than the confirmations.
func (p *Plan) Deep() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.N > p.Confirmations && kinds[f.Kind].reorganises })
}

// lacksRefunds reports whether the fleet begins with ABIs that lack an event of escrows too. What was passed without it
// is published when the second reading has found it: later than newer events of its escrow.
func (p *Plan) lacksRefunds() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == Grow && f.N == 1 })
}

func (p *Plan) String() string {
	settings, list := *p, make([]string, len(p.Faults))
	settings.Faults = nil
	for i, f := range p.Faults {
		list[i] = "\n  " + f.String()
	}

	return fmt.Sprintf("%+v%s", settings, strings.Join(list, ""))
}
