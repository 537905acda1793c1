package fleet

import "time"

// Limit says how long a state that the fleet normally ends by itself may last. From Settling on it is
// shown as a notice: an election, a takeover or a rolling restart is under way. From Behind on it is a
// warning (yellow). From Critical on a person is paged (red). Zero: never.
type Limit struct {
	Settling, Behind, Critical time.Duration
}

// of is Severity of a state that has lasted for age.
func (l Limit) of(age Age) Severity { return l.Severity(time.Duration(age)) }

// Severity of a state that has lasted for age; empty: it is not worth a word yet.
func (l Limit) Severity(age time.Duration) Severity {
	switch {
	case l.Critical > 0 && age >= l.Critical:
		return Critical
	case l.Behind > 0 && age >= l.Behind:
		return Warning
	case l.Settling > 0 && age >= l.Settling:
		return Notice
	}

	return ""
}

// The one table of limits. The page, `status`, `plan wait` and the alerts
// (deploy/prometheus/alerts.yaml.tmpl, which a test compares) judge by it, so that no two of them
// disagree about the same moment. `plan wait` waits until nothing is settling. /readyz tells only what a
// platform can act on: session, database and node.
var (
	// LimitNoLeader is for a chain that nobody leads. An election takes seconds; two minutes are the
	// first version's rule.
	LimitNoLeader = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitHungLeader is for a leader that holds its lock and does not write its heartbeat in the table
	// leadership. Contenders end it after LEADER_STALE_AFTER (60 s).
	LimitHungLeader = Limit{Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitUnserved is for a slot that nobody alive serves. An adoption takes ADOPT_AFTER (5 s) and some more.
	LimitUnserved = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitAdopted is for a slot served by an instance that does not prefer it: redundancy is lost, coverage is not.
	LimitAdopted = Limit{Behind: 15 * time.Minute}
	// LimitRedundancy is for a partition whose instance was stopped and has not come back. One that died is shown at once.
	LimitRedundancy = Limit{Settling: 1, Behind: 2 * time.Minute}
	// LimitOutbox is for the age of the oldest message that Pub/Sub has not acknowledged.
	LimitOutbox = Limit{Settling: settlingOutbox, Behind: 30 * time.Second, Critical: 5 * time.Minute}
	// LimitDatabase is for an instance that cannot reach the database. It is below DB_OUTAGE_LIMIT (5
	// min), after which the instance exits.
	LimitDatabase = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitNode is for an instance none of whose endpoints can be used.
	LimitNode = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitHeartbeat is for a member of the fleet that reaches the database and does not write its
	// heartbeat: HEARTBEAT_INTERVAL is at most 2 min. Five minutes are the first version's rule; it is a
	// ticket, since other limits watch the slots of such an instance.
	LimitHeartbeat = Limit{Behind: 5 * time.Minute}
	// LimitStuckCursor is for a cursor that does not move although there are blocks that it could have
	// processed; above the longest time between two blocks.
	LimitStuckCursor = Limit{Behind: 5 * time.Minute, Critical: 15 * time.Minute}
	// LimitTarget is for the age of the newest block that may be processed, by the chain's timestamps and
	// the database's clock. Ethereum's finalized block is 13 to 19 minutes old.
	LimitTarget = Limit{Behind: 30 * time.Minute, Critical: time.Hour}
	// LimitLate is for the oldest escrow that waits to be caught up.
	LimitLate = Limit{Behind: 10 * time.Minute}
	// LimitMixedTotals is for instances that disagree about the number of partitions; a repartition takes minutes.
	LimitMixedTotals = Limit{Behind: time.Hour}
	// LimitFleetDown is for a chain of which no instance answers.
	LimitFleetDown = Limit{Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitCommand is for the oldest command that has a nonce and no answer, or that nobody has looked
	// at: finality takes up to a quarter of an hour.
	LimitCommand = Limit{Behind: 30 * time.Minute}
	// LimitUnsigned is for the oldest command with a nonce that the signer has signed nothing for: the
	// commands behind it wait too.
	LimitUnsigned = Limit{Critical: 5 * time.Minute}
	// LimitReplies is for the age of the oldest answer that Pub/Sub has not acknowledged.
	LimitReplies = Limit{Critical: 5 * time.Minute}
)

// LimitBehind is how far an instance or the factory watch may be behind, in time that the chain took for
// the blocks that may be processed and are not: a hundred blocks of Ethereum, as the first version had
// it, 4,800 of a chain with four per second.
const LimitBehind = 20 * time.Minute

// LimitUnverified is the same for the verifier: a thousand blocks of Ethereum.
const LimitUnverified = 200 * time.Minute

// TicketAfter is how long something must have been behind before a warning becomes a ticket: what
// passes by itself needs nobody.
const TicketAfter = 2 * time.Minute

// settlingOutbox is an age that no message reaches while Pub/Sub answers.
const settlingOutbox = 5 * time.Second
