package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Faults of the way back. Those of a step are at one of commandSteps, those of a broadcast hit
// eth_sendRawTransaction.
const (
	StepKill   Kind = "step-kill"   // SIGKILL inside step N of commandSteps
	StepFreeze Kind = "step-freeze" // SIGSTOP there, for longer than a lock outlives its session
	StepCut    Kind = "step-cut"    // the connections to Postgres end there: the outcome is not known

	SendLost   Kind = "send-lost"   // carried out, and the connection is cut before the answer
	SendForget Kind = "send-forget" // accepted and forgotten
	SendRefuse Kind = "send-refuse" // refused, in words N of sendWords
	SendHang   Kind = "send-hang"   // taken by one node, which neither passes it on nor answers

	ReceiptNull Kind = "receipt-null" // a node, or both, has no receipts
	ReceiptLate Kind = "receipt-late" // it has them receiptLag after it was first asked

	SendKill   Kind = "send-kill"   // SIGKILL of the owner when the bytes arrive; Keep: and they are taken
	SendFreeze Kind = "send-freeze" // SIGSTOP of the owner when the bytes arrive
	Spike      Kind = "price-spike" // N full blocks: the base fee rises by an eighth with each
	Rise       Kind = "price-rise"  // the same for longer than any command pays, and then it falls again
	Flood      Kind = "flood"       // a requester, within its rights, asks for N approvals of what does not exist
	ForeignUse Kind = "foreign-use" // somebody else uses the key of sender N; Keep: for a nonce that is given out
	Restore    Kind = "db-restore"  // the database as it was For earlier; Keep: under running processes
	CancelAll  Kind = "cancel-all"  // every open command is cancelled
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

// commandKinds in a fixed order, since a seed chooses among them: those of their own come more often.
var commandKinds = []Kind{
	StepKill, StepKill, StepKill, StepKill, StepFreeze, StepFreeze, StepCut, StepCut, StepCut, SendLost, SendLost,
	SendForget, SendForget, SendRefuse, SendRefuse, SendHang, SendHang, SendKill, SendKill, SendKill, SendFreeze, Spike,
	CancelAll, Rise, Flood, Flood, Flood, ReceiptNull, ReceiptNull, ReceiptLate, ReceiptLate,
	Kill, Kill, KillAll, Freeze, Freeze, Term, SlowStart, Session, Backends, Flap, Restart, Crash, DBDown, DBCancel,
	DBLocks,
	DBCut, DBFreeze, DBSlow, DBSwallow, DBHold, CommitHold, CommitHold, FreezeInCommit,
	PubSubDown, Denied, AckLost, AckLost, Slow, PubSubSwallow, PubSubHold,
	Reorg, Reorg, Reorg, Reorg, ShiftReorg, TakeoverReorg, Empty,
	NodeDown, NodeSlow, NodeLimited, NodeFailing, NodeTruncated, NodeBehind, NodeUneven, NodeStayed, NodeStayed,
	NodeSilent, NodeLoss, NodeSwallow,
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

	kinds := slices.Clone(commandKinds)
	if r.IntN(3) == 0 {
		kinds = append(kinds, slices.Repeat([]Kind{DeepReorg}, 8)...)
	}

	// What halts a sender is rare: nothing is sent afterwards.
	switch r.IntN(6) {
	case 0:
		kinds = append(kinds, slices.Repeat([]Kind{ForeignUse}, 12)...)
	case 1:
		p.Faults = append(p.Faults, Fault{Kind: Restore, At: time.Duration(3+r.IntN(4)) * time.Second,
			For: time.Duration(500+r.IntN(2500)) * time.Millisecond, Keep: r.IntN(2) == 0})
	}

	for range 2 + r.IntN(5) {
		p.Faults = append(p.Faults, commandFault(r, p, kinds[r.IntN(len(kinds))]))
	}

	if !p.Has(Restore) { // a copy of so much would take long
		p.Commands.Past = []int{500_000, 0, 0, 0, 0, 0, 0, 0}[r.IntN(8)]
	} else { // what was retracted after the backup is not known any more
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.reorganises() })
	}

	slices.SortFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	floods := 0 // together they are no more than one requester may have open
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool {
		if f.Kind == Flood {
			floods++
		}

		return f.Kind == Flood && floods > 1
	})

	return p
}

// commandFault decides the particulars of a fault.
func commandFault(r *rand.Rand, p Plan, kind Kind) Fault {
	f := Fault{
		At: time.Duration(r.Int64N(int64(p.Length * 8 / 10))), Kind: kind, Who: r.IntN(p.Instances),
		For: 200*time.Millisecond + time.Duration(r.Int64N(int64(3*time.Second))), Keep: r.IntN(2) == 0,
	}
	switch kind {
	case StepKill, StepCut:
		f.N = r.IntN(len(commandSteps))
	case StepFreeze:
		f.N, f.For = r.IntN(len(commandSteps)), f.For+4*time.Second
	case Freeze, SendFreeze:
		f.For += 2 * time.Second
	case SendRefuse:
		f.N = r.IntN(len(sendWords))
	case Spike:
		f.N = 6 + r.IntN(12)
	case Rise:
		f.N = 30 + r.IntN(15)
	case Flood:
		f.N = 300 + r.IntN(600)
	case SendHang:
		f.For *= 2
	case ReceiptNull, ReceiptLate:
		f.For *= 3
	case ForeignUse:
		f.N = r.IntN(3)
	case Reorg, TakeoverReorg, NodeStayed:
		f.N = 1 + r.IntN(max(p.Confirmations, 3))
	case ShiftReorg:
		f.N = 1 + r.IntN(p.Confirmations+2)
	case DeepReorg:
		f.N = p.Confirmations + 1 + r.IntN(6)
	case FreezeInCommit:
		f.N, f.For = r.IntN(len(frozenTables)), f.For+2*time.Second
	case NodeUneven:
		f.N = 1 + r.IntN(8)
	case NodeBehind:
		f.N = 1 + r.IntN(6)
	case NodeLoss, NodeSwallow, DBSwallow, PubSubSwallow:
		f.For += 2 * time.Second
	case Empty:
		f.N = 10 + r.IntN(20)
	}

	several := nodeModes[f.Kind] != "" || f.Kind == ReceiptNull || f.Kind == ReceiptLate
	f.Both = (several || slices.Contains(networkKinds, f.Kind)) && r.IntN(3) == 0

	return f
}

func (c *Commands) String() string {
	return fmt.Sprintf("commands: %d senders, %d in flight, tight %v, keeper %v, refunds %v, past %d, asked every %s",
		c.Senders, c.InFlight, c.Tight, c.Keeper, c.Refunds, c.Past, c.AskEvery)
}
