package fleet

import "time"

// Limit bounds how long a state may last that the fleet normally ends without help. From Settling
// on it is a notice: an election, a takeover or a rolling restart is in progress. From Behind on it
// is a warning (yellow). From Critical on a person is paged (red). Zero: never.
type Limit struct {
	Settling, Behind, Critical time.Duration
}

// Of is the severity of a state that has lasted for age; empty: below every limit.
func (l Limit) Of(age Age) Severity {
	switch a := time.Duration(age); {
	case l.Critical > 0 && a >= l.Critical:
		return Critical
	case l.Behind > 0 && a >= l.Behind:
		return Warning
	case l.Settling > 0 && a >= l.Settling:
		return Notice
	}

	return ""
}

// The one table of limits. The page, `status`, `plan wait` and the metric relayer_problem share it, which the alerts
// read, so they agree at any moment. `plan wait` waits until all settling has ended. /readyz reports only what a
// platform can act on, and that blocks are stored: session, database, node and storing.
var (
	// LimitNoLeader is for a chain without a leader. An election takes seconds.
	LimitNoLeader = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitHungLeader is for a leader that holds its lock but has stopped writing its heartbeat in
	// the table leadership. Contenders end it after LEADER_STALE_AFTER (60 s).
	LimitHungLeader = Limit{Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitUnserved is for a slot without a live owner. An adoption takes ADOPT_AFTER (5 s) and some more.
	LimitUnserved = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitAdopted is for a slot served by an instance that does not prefer it: covered, but without redundancy.
	LimitAdopted = Limit{Behind: 15 * time.Minute}
	// LimitRedundancy is for a partition with an instance that was stopped and is still away. One that
	// died is shown at once.
	LimitRedundancy = Limit{Settling: 1, Behind: 2 * time.Minute}
	// LimitOutbox is for the age of the oldest message that waits for Pub/Sub's acknowledgement; while Pub/Sub answers
	// none is 3 s old.
	LimitOutbox = Limit{Settling: 3 * time.Second, Behind: 30 * time.Second, Critical: 5 * time.Minute}
	// LimitDatabase is for an instance that cannot reach the database. It is below DB_OUTAGE_LIMIT (5
	// min), after which the instance exits.
	LimitDatabase = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitNode is for an instance without a usable endpoint.
	LimitNode = Limit{Settling: 1, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitHeartbeat is for an instance that reaches the database but has stopped writing its
	// heartbeat; HEARTBEAT_INTERVAL is at most 2 min. It opens a ticket only, since other limits
	// watch the slots of such an instance.
	LimitHeartbeat = Limit{Behind: 5 * time.Minute}
	// LimitStanding is for a watch that stores no block while there are blocks to store.
	LimitStanding = Limit{Behind: time.Minute, Critical: 2 * time.Minute}
	// LimitSilent is for an instance whose reports are not committed any more; it makes one every two seconds.
	LimitSilent = Limit{Settling: 4 * time.Second, Behind: 30 * time.Second, Critical: 2 * time.Minute}
	// LimitHead is for the age of the newest block of the nodes, by the chain's timestamps and the database's clock.
	LimitHead = Limit{Behind: 30 * time.Minute, Critical: time.Hour}
	// LimitLate is for the oldest escrow that waits to be caught up.
	LimitLate = Limit{Behind: 10 * time.Minute}
	// LimitMixedTotals is for instances that disagree about the number of partitions; a repartition takes minutes.
	LimitMixedTotals = Limit{Behind: time.Hour}
	// LimitUnsigned is for the oldest command that lacks nothing but a signature.
	LimitUnsigned = Limit{Critical: 5 * time.Minute}
	// LimitReplies is for the age of the oldest answer that waits for Pub/Sub's acknowledgement.
	LimitReplies = Limit{Critical: 5 * time.Minute}
)

// LimitTarget is for the age of the newest block that may be processed, by FINALITY_LIMIT: Ethereum's finalized
// block is 13 to 19 minutes old, that of some rollups hours.
func LimitTarget(finality time.Duration) Limit {
	return Limit{Behind: finality, Critical: 2 * finality}
}

// LimitCommand is for the oldest command that has a nonce but no answer, or that waits for its first look, by
// FINALITY_LIMIT: an answer waits for finality.
func LimitCommand(finality time.Duration) Limit { return Limit{Behind: finality} }

// LimitBehind is how far an instance or the factory watch may be behind, in the chain's time between the last processed
// block and the last processable one: a hundred blocks of Ethereum, 4,800 of a chain with four per second.
const LimitBehind = 20 * time.Minute

// LimitUnverified is the same for the verifier: a thousand blocks of Ethereum.
const LimitUnverified = 200 * time.Minute
