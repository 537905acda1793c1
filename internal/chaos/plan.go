// Package chaos tries to break the guarantees: real relayer processes on a real Postgres, a real
// chain and Google's Pub/Sub server, traffic, faults, and an oracle that reads the chain itself.
// One seed decides everything; the times of the machine it cannot decide.
package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// Kind of a fault.
type Kind string

// The faults.
const (
	Kill        Kind = "kill"        // SIGKILL, and a new start later
	KillAll     Kind = "kill-all"    // all at once
	Freeze      Kind = "freeze"      // SIGSTOP for longer than the session lives, then SIGCONT
	Term        Kind = "term"        // SIGTERM, and a new start later
	Repartition Kind = "repartition" // a rolling restart with another total
	// The fleet begins with ABIs that lack events (see lesserABIs). This fault is a rolling restart with all of them.
	Grow       Kind = "abi-grows"
	Session    Kind = "session"       // pg_terminate_backend of an instance's session
	Backends   Kind = "backends"      // of every connection of every instance
	Restart    Kind = "pg-restart"    // of Postgres, fast
	Crash      Kind = "pg-crash"      // of Postgres, as if it had crashed
	PubSubDown Kind = "pubsub-down"   // Unavailable
	Denied     Kind = "pubsub-denied" // PermissionDenied, which pauses keys
	AckLost    Kind = "ack-lost"      // stored, then an error that the client does not retry by itself
	Slow       Kind = "pubsub-slow"
	Reorg      Kind = "reorg"      // not deeper than the confirmations
	DeepReorg  Kind = "deep-reorg" // deeper

	// Of one of the two endpoints, or of both (Fault.Both), as package faults describes them.
	NodeDown      Kind = "node-down"
	NodeSlow      Kind = "node-slow"
	NodeLimited   Kind = "node-429"
	NodeFailing   Kind = "node-5xx"
	NodeTruncated Kind = "node-truncated"
	NodeMalformed Kind = "node-malformed"
	NodeHTML      Kind = "node-html"
	NodeRange     Kind = "node-range"
	NodeResults   Kind = "node-results"
	NodeBehind    Kind = "node-behind"
	NodeOmits     Kind = "node-omits" // of one only, until the end of the run: with both, nobody could notice
	NodeForeign   Kind = "node-foreign"
	NodeChain     Kind = "node-chain"
	NodeSilent    Kind = "node-silent"
	NodePruned    Kind = "node-pruned"
	NodeUneven    Kind = "node-uneven"  // a gateway: some of its backends are N blocks behind
	NodeStayed    Kind = "node-stayed"  // a gateway: some of its backends keep the newest N blocks, which the chain leaves
	NodeWords     Kind = "node-words"   // ranges are refused in words that the relayer does not know
	NodeForgets   Kind = "node-forgets" // old blocks are gone, and it does not say so
	NodeStands    Kind = "node-stands"  // in plans with FINALITY=safe: its safe block stays where it is
	NodeBatch     Kind = "node-batch"   // batches of more than N items are refused
	NodeRate      Kind = "node-rate"    // N items per second
	// The first endpoint deceives in way N of lies, from the next block on; the other one may fail meanwhile.
	NodeLies Kind = "node-lies"
	// Of WebSockets: they answer pings only; their subscriptions are silent; they are closed every second.
	NodeDeaf   Kind = "node-deaf"
	NodeMute   Kind = "node-mute"
	NodeCloses Kind = "node-closes"

	// Of the network between one instance and Postgres.
	DBCut    Kind = "db-cut"
	DBFreeze Kind = "db-freeze"
	DBSlow   Kind = "db-slow"
	// Connections that are open swallow bytes; with Keep, those that are opened meanwhile too.
	DBSwallow     Kind = "db-swallow"
	PubSubSwallow Kind = "pubsub-swallow" // between an instance and Pub/Sub
	NodeSwallow   Kind = "node-swallow"   // between an instance and one of its nodes; Both: and the other one
	// What is sent arrives late, when nobody waits for it any more.
	DBHold     Kind = "db-hold"
	CommitHold Kind = "commit-hold" // of one commit only
	PubSubHold Kind = "pubsub-hold"
	NodeLoss   Kind = "node-loss" // one instance reaches no node, the others do

	// Of the database itself, as every instance sees it.
	DBDown Kind = "db-down" // shut down, and started again later
	// another client takes all connections that there are, and an instance loses its own
	DBConnections Kind = "db-connections"
	DBRefuse      Kind = "db-refuse"   // writes fail with a code of refusals
	DBCancel      Kind = "db-cancel"   // statements are cancelled in the middle, as a timeout set by somebody else does
	DBLocks       Kind = "db-locks"    // somebody locks the rows that commits need
	DBDeadlock    Kind = "db-deadlock" // somebody locks them the other way round

	// SIGSTOP while a transaction is open that has written to table N of frozenTables
	FreezeInCommit Kind = "freeze-in-commit"
	SlowDeletes    Kind = "slow-deletes"    // N milliseconds for each row that is deleted from the outbox
	HangingClaimer Kind = "hanging-claimer" // an instance's writes to slot_ownership hang; Keep: to relayer_instances

	KillAfterAck  Kind = "kill-after-ack" // SIGKILL between Pub/Sub's acknowledgement and the deletion from the outbox
	TopicGone     Kind = "topic-gone"     // deleted, and created again later
	KeyFailing    Kind = "key-failing"    // one ordering key in N
	SlowStart     Kind = "slow-start"     // killed, and frozen in the middle of the next start
	Flap          Kind = "flap"           // whoever leads loses its session, every 250 ms
	TakeoverReorg Kind = "reorg-takeover" // a reorganisation while the slots of a dead instance are taken over
	BackfillReorg Kind = "reorg-backfill" // all killed, many blocks, and a reorganisation while they catch up
	ShiftReorg    Kind = "reorg-shift"    // one that moves log indexes, by one to three, and moves them back the next time
	// a block with hundreds of new escrows, one with their approvals, one with thousands of foreign logs
	Burst Kind = "burst"
	Empty Kind = "empty-stretch" // many blocks without anything

	Replays     Kind = "replays"       // of stored events, half of them requested by transactions that stay open
	BackendKill Kind = "backend-crash" // SIGKILL of one server process: Postgres recovers without a new start
	// escrows that were found late are caught up in several ranges, behind gateways with two branches
	LateStayed Kind = "late-stayed"
)

// refusals are what a write may fail with: disk full, serialization failure, deadlock, lock not
// available, statement timeout, out of memory.
var refusals = []string{"53100", "40001", "40P01", "55P03", "57014", "53200"}

// nodeModes are the faults of nodes, as package faults calls them.
var nodeModes = map[Kind]faults.Mode{
	NodeDown: faults.Down, NodeSlow: faults.Slow, NodeLimited: faults.Limited, NodeFailing: faults.Failing,
	NodeTruncated: faults.Truncated,
	NodeMalformed: faults.Malformed, NodeHTML: faults.HTML, NodeRange: faults.Range, NodeResults: faults.Results,
	NodeBehind: faults.Behind,
	NodeOmits:  faults.Omit, NodeForeign: faults.Foreign, NodeChain: faults.Chain, NodeSilent: faults.Silent,
	NodePruned: faults.Pruned,
	NodeUneven: faults.Behind, NodeWords: faults.Range, NodeForgets: faults.Forgotten, NodeBatch: faults.Batch,
	NodeRate: faults.Rate, NodeStayed: faults.Stayed, NodeDeaf: faults.Deaf, NodeMute: faults.Mute,
	NodeCloses: faults.Closing, NodeStands: faults.Standing,
}

// unknownWords are refusals that say neither that a range is too large nor that its results are too many.
var unknownWords = []string{
	"request timed out", "canceled due to enabled timeout", "response is larger than 150MB", "missing trie node",
	"Internal error", "upstream unavailable", "",
}

// eventKinds are in a fixed order, since a seed chooses from them by index. A kind that is listed twice is chosen twice
// as often.
var eventKinds = []Kind{
	Kill, Kill, KillAll, Freeze, Freeze, Term, SlowStart, KillAfterAck, KillAfterAck, FreezeInCommit, FreezeInCommit,
	FreezeInCommit, HangingClaimer, HangingClaimer, Flap,
	Session, Session, Backends, BackendKill, BackendKill, BackendKill, BackendKill, Restart, Crash, DBDown, DBConnections,
	DBRefuse, DBRefuse, DBCancel, DBLocks, DBDeadlock,
	DBCut, DBFreeze, DBFreeze, DBSlow, DBSwallow, DBSwallow, DBHold, CommitHold, CommitHold,
	PubSubDown, Denied, AckLost, Slow, TopicGone, KeyFailing, KeyFailing, PubSubSwallow, PubSubSwallow, PubSubHold,
	SlowDeletes, SlowDeletes,
	Reorg, Reorg, Reorg, ShiftReorg, ShiftReorg, ShiftReorg, TakeoverReorg, TakeoverReorg, BackfillReorg, BackfillReorg,
	Burst, Empty, Replays, Replays, Replays, Replays, Replays, Replays, LateStayed, LateStayed, LateStayed, LateStayed,
	NodeDown, NodeDown, NodeSlow, NodeLimited, NodeFailing, NodeTruncated, NodeMalformed, NodeHTML, NodeRange,
	NodeResults, NodeBehind, NodeBehind, NodeOmits, NodeOmits, NodeForeign, NodeChain, NodeSilent, NodeSilent, NodePruned,
	NodeUneven, NodeUneven, NodeUneven, NodeWords, NodeForgets, NodeForgets, NodeBatch, NodeBatch, NodeRate, NodeRate,
	NodeDeaf, NodeDeaf, NodeMute, NodeMute, NodeCloses, NodeCloses, NodeStayed, NodeStayed, NodeStayed, NodeSwallow,
	NodeSwallow, NodeLoss, NodeLoss,
}

// inDoubt are the faults after which a message may come twice: its sender does not learn that Pub/Sub
// has stored it, or cannot delete it from the outbox.
var inDoubt = []Kind{
	Kill, KillAll, Freeze, Session, Backends, Restart, Crash, AckLost, DBCut, DBFreeze, DBSlow, DBDown, DBConnections,
	DBRefuse, DBCancel, DBLocks, DBDeadlock,
	KillAfterAck, SlowStart, Flap, TakeoverReorg, BackfillReorg, DBSwallow, DBHold, CommitHold, PubSubSwallow, PubSubHold,
	FreezeInCommit, SlowDeletes, HangingClaimer, StepKill, StepFreeze, StepCut, SendKill, SendFreeze, Restore,
	BackendKill, LateStayed, Grow,
}

// pubsubOutages are the faults whose end an orderly stop may not have the time to wait for.
var pubsubOutages = []Kind{PubSubDown, Denied, Slow, TopicGone, KeyFailing}

// stops are the faults with an orderly stop.
var stops = []Kind{Term, Repartition, Grow}

// networkKinds are faults of one instance's network, or of all (Fault.Both).
var networkKinds = []Kind{DBCut, DBFreeze, DBSlow, DBSwallow, DBHold, PubSubSwallow, PubSubHold, NodeSwallow}

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
	kinds := kindsToChooseFrom(r)
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
		kinds = append(kinds, ShiftReorg, ShiftReorg, ShiftReorg, ShiftReorg)
	case 1:
		p.Safe, p.Second = true, false // the nodes of the second chain call every block safe
		kinds = append(kinds, slices.Repeat([]Kind{NodeStands}, len(kinds)/3)...)
	}

	for range 2 + r.IntN(5) {
		p.Faults = append(p.Faults, newFault(r, p, kinds))
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
		deceived := slices.ContainsFunc(p.Faults, func(f Fault) bool { return nodeModes[f.Kind] != "" || f.Kind == NodeLies })
		for _, kind := range []Kind{Grow, Kill, Kill} { // after the older factory was added: see withTraffic
			at := p.Length/4 + time.Duration(r.Int64N(int64(p.Length*6/10)))
			p.Faults = append(p.Faults, Fault{Kind: kind, At: at, Who: r.IntN(p.Instances), N: r.IntN(2), Keep: r.IntN(2) == 0,
				For: time.Duration(r.Int64N(int64(2 * time.Second)))})
			if deceived { // the second reading may wait for an endpoint that has been wrong: see suspectTimeout
				p.Faults[len(p.Faults)-1].N = 0
			}
		}
	}
}

// kindsToChooseFrom are the kinds that the faults of a plan are chosen from. Some kinds are in few
// plans only, where they come often.
func kindsToChooseFrom(r *rand.Rand) []Kind {
	kinds := slices.Clone(eventKinds)
	for _, often := range [][]Kind{{Repartition, Repartition, Repartition}, {DeepReorg, DeepReorg, DeepReorg}} {
		if r.IntN(3) == 0 {
			kinds = append(kinds, often...)
		}
	}

	return kinds
}

// Kinds returns, in alphabetical order, every kind of fault that some plan of NewPlan has, or of NewCommandsPlan.
func Kinds(commands bool) []Kind {
	kinds := slices.Concat(eventKinds, []Kind{Repartition, DeepReorg, NodeStands, NodeLies, Grow})
	if commands {
		kinds = slices.Concat(commandKinds, []Kind{DeepReorg, ForeignUse, Restore})
	}

	slices.Sort(kinds)

	return slices.Compact(kinds)
}

// newFault draws one fault. The order of the draws is part of what a seed means.
func newFault(r *rand.Rand, p Plan, kinds []Kind) Fault {
	f := Fault{
		At: time.Duration(r.Int64N(int64(p.Length * 8 / 10))), Kind: kinds[r.IntN(len(kinds))], Who: r.IntN(p.Instances),
		For: 200*time.Millisecond + time.Duration(r.Int64N(int64(3*time.Second))), Keep: r.IntN(2) == 0,
	}
	f.particulars(r, p.Confirmations)
	f.Both = (nodeModes[f.Kind] != "" && f.Kind != NodeOmits || slices.Contains(networkKinds, f.Kind)) && r.IntN(3) == 0
	if f.Kind == NodeStands { // mostly of both: with one of two, the other one decides
		f.Both = !f.Both
	}

	return f
}

// particulars draws what the kind of the fault needs besides: N, and more time for some.
func (f *Fault) particulars(r *rand.Rand, confirmations int) {
	shallow := cmp.Or(confirmations, 3) // with FINALITY=latest nothing is
	switch f.Kind {
	case Reorg:
		f.N = 1 + r.IntN(shallow)
	case ShiftReorg:
		f.N = 1 + r.IntN(confirmations+3)
		if r.IntN(2) == 0 {
			f.N = 1 + r.IntN(shallow)
		}
	case FreezeInCommit:
		f.N, f.For = r.IntN(len(frozenTables)), f.For+2*time.Second
	case SlowDeletes:
		f.N, f.For = 2+r.IntN(30), f.For+2*time.Second
	case NodeUneven:
		f.N = 1 + r.IntN(20)
	case NodeWords:
		f.N = 1 + r.IntN(5)
	case DBSwallow, PubSubSwallow, NodeSwallow, NodeLoss, HangingClaimer:
		f.For += 2 * time.Second
	case DeepReorg:
		f.N = confirmations + 1 + r.IntN(5)
	case TakeoverReorg, BackfillReorg, NodeStayed, LateStayed:
		f.N = 1 + r.IntN(shallow)
		if r.IntN(4) == 0 {
			f.N += confirmations
		}
	case Repartition:
		f.N = 1 + r.IntN(5)
	case DBRefuse:
		f.N = r.IntN(len(refusals))
	case KeyFailing:
		f.N = 2 + r.IntN(4)
	case Burst:
		f.N = 100 + r.IntN(200)
	case Empty:
		f.N = 20 + r.IntN(60)
	case NodeBehind:
		f.N = 1 + r.IntN(8)
	case NodeBatch, NodeForgets:
		f.N = 1 + r.IntN(12)
	case NodeRate:
		f.N = 5 + r.IntN(30)
	case NodeRange, NodeResults:
		f.N = 1 + r.IntN(20)
	}
}

// Has reports whether the plan has a fault of one of the kinds.
func (p *Plan) Has(kinds ...Kind) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return slices.Contains(kinds, f.Kind) })
}

// Deep reports whether the plan has a reorganisation that goes deeper than the confirmations.
func (p *Plan) Deep() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.N > p.Confirmations && f.reorganises() })
}

// lacksRefunds reports whether the fleet begins with ABIs that lack an event of escrows too. What was passed without it
// is published when the second reading has found it: later than newer events of its escrow.
func (p *Plan) lacksRefunds() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == Grow && f.N == 1 })
}

func (f Fault) reorganises() bool {
	return slices.Contains([]Kind{Reorg, DeepReorg, ShiftReorg, TakeoverReorg, BackfillReorg, NodeStayed, LateStayed},
		f.Kind)
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d instances, %s, key %s, filter %s, %d confirmations, ", p.Seed, p.Instances, p.Strategy,
		p.OrderingKey, p.Filter, p.Confirmations)
	fmt.Fprintf(&b, "a block every %s, %d actions per block", p.BlockTime, p.PerBlock)
	if p.Auto {
		b.WriteString(", auto numbers")
	}

	switch {
	case p.Safe:
		b.WriteString(", safe")
	case p.Latest:
		b.WriteString(", latest")
	}

	if p.Second {
		b.WriteString(", a second chain")
	}

	if p.Clock != 0 {
		fmt.Fprintf(&b, ", the clock of %d wrong by %s", p.ClockWho, p.Clock)
	}

	if p.Commands != nil {
		fmt.Fprintf(&b, "; %s", p.Commands)
	}

	for _, f := range p.Faults {
		fmt.Fprintf(&b, "\n  %s", f)
	}

	return b.String()
}
