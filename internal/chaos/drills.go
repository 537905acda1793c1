package chaos

import (
	"slices"
	"time"
)

// Group is a list of faults that are made one after the other on one fleet.
type Group struct {
	Name   string
	Faults []Fault
	// More are the faults that only the full drill makes: those that last long, and variants of Faults.
	More []Fault
}

// Plan of the group: three instances under traffic. Only the full drill has all of its faults.
func (g Group) Plan(full bool) Plan {
	p := Plan{
		Seed: 5, Instances: 3, Strategy: "modulo", OrderingKey: "escrow", Filter: "auto", Confirmations: 2,
		BlockTime: 300 * time.Millisecond, PerBlock: 2, Faults: g.Faults,
		Probe: time.Second, // on a busy machine too, only the sessions that a fault hits are lost
	}
	if full {
		p.Faults = append(slices.Clip(p.Faults), g.More...)
	}

	p.Safe = p.Has(NodeStands)
	if p.Deep() {
		p.Strategy, p.Auto, p.Second, p.Shared = "consistent", true, true, true
	}

	return p
}

// How long a fault lasts.
const (
	brief  = 400 * time.Millisecond
	sec    = time.Second
	over   = 4 * time.Second  // longer than a session lives without a probe that is answered
	long   = 10 * time.Second // or until the others have gone on without the instance: see endure
	longer = 30 * time.Second // so long that an instance that lives but does nothing counts as dead
)

// Groups are all drills, those that last longest first. Every kind of fault is in one of them but
// NodeOmits, which lasts until the end.
func Groups() []Group {
	return slices.Concat(longDrills, nodeDrills, databaseDrills, deepDrills, otherDrills)
}

// longDrills are of one instance that is frozen or cut off for long, while the others go on.
var longDrills = []Group{
	{Name: "frozen in a commit", Faults: []Fault{
		{Kind: FreezeInCommit, Who: 1, N: 1, For: long},
		{Kind: SlowDeletes, N: 20, For: 5 * sec},
	}, More: []Fault{
		{Kind: FreezeInCommit, Who: 0, N: 0, For: long}, {Kind: FreezeInCommit, Who: 2, N: 2, For: long},
		{Kind: SlowDeletes, N: 20, For: 10 * sec},
	}},
	{Name: "idle", Faults: []Fault{{Kind: HangingClaimer, Who: 1, Keep: true, For: longer}},
		More: []Fault{{Kind: HangingClaimer, Who: 1, For: longer}}},
	{Name: "without nodes", Faults: []Fault{{Kind: NodeLoss, Who: 2, For: long}}},
	{Name: "swallowed by the database's network", Faults: []Fault{
		{Kind: DBSwallow, Who: 2, Keep: true, For: long}, {Kind: DBSwallow, Who: 1, For: brief},
		{Kind: CommitHold, Who: 1, For: over}, {Kind: DBHold, Who: 1, Keep: true, For: over},
	}, More: []Fault{
		{Kind: DBSwallow, Both: true, For: brief},
	}},
	{Name: "swallowed by other networks", Faults: []Fault{
		{Kind: PubSubSwallow, Who: 1, For: brief}, {Kind: NodeSwallow, Who: 0, Both: true, For: brief},
		{Kind: NodeSwallow, Who: 1, Both: true, Keep: true, For: sec}, {Kind: PubSubHold, Who: 2, Keep: true, For: over},
	}, More: []Fault{
		{Kind: PubSubSwallow, Both: true, Keep: true, For: sec},
		{Kind: NodeSwallow, Who: 1, Both: true, For: brief}, {Kind: NodeSwallow, Who: 2, Both: true, For: brief},
	}},
}

// nodeDrills are of nodes and what they answer.
var nodeDrills = []Group{
	{Name: "nodes", Faults: []Fault{ // one of two; both at once where they are asked again soon
		{Kind: NodeDown, For: sec}, {Kind: NodeSlow, For: sec}, {Kind: NodeLimited, For: sec},
		{Kind: NodeFailing, For: sec},
		{Kind: NodeTruncated, For: sec}, {Kind: NodeMalformed, For: sec}, {Kind: NodeHTML, For: sec},
		{Kind: NodeBehind, N: 5, For: sec}, {Kind: NodePruned, For: sec}, {Kind: NodeForeign, For: sec},
		{Kind: NodeChain, Who: 1, For: sec}, {Kind: NodeForgets, N: 3, For: sec},
		{Kind: NodeUneven, N: 3, For: sec}, {Kind: NodeStayed, N: 2, For: 2 * sec},
		{Kind: LateStayed, N: 2, For: 2 * sec},
	}, More: []Fault{{Kind: NodeLimited, Keep: true, For: sec}, {Kind: NodeUneven, N: 3, Keep: true, For: sec},
		{Kind: NodeStayed, N: 2, Both: true, For: 3 * sec}}},
	{Name: "a node that lies", Faults: []Fault{{Kind: NodeLies, For: over}},
		More: []Fault{{Kind: NodeLies, N: 2, For: over}, {Kind: NodeLies, N: firstOwn + 2, For: over}}},
	{Name: "all nodes", Faults: []Fault{
		{Kind: NodeDown, Both: true, For: sec}, {Kind: NodeLimited, Both: true, For: sec},
		{Kind: NodeSilent, Both: true, For: sec},
		{Kind: NodeRange, N: 3, Both: true, For: sec}, {Kind: NodeResults, N: 3, Both: true, For: sec},
		{Kind: NodeBehind, N: 3, Both: true, For: sec},
	}, More: []Fault{{Kind: NodeSlow, Both: true, For: sec}, {Kind: NodeFailing, Both: true, For: sec}}},
	{Name: "all nodes, as providers are", Faults: []Fault{
		{Kind: NodeWords, N: 3, Both: true, For: sec}, {Kind: NodeBatch, N: 1, Both: true, For: 2 * sec},
		{Kind: NodeRate, N: 10, Both: true, For: 3 * sec}, {Kind: NodeMute, Both: true, For: 3 * sec},
		{Kind: NodeCloses, Both: true, For: 3 * sec}, {Kind: NodeDeaf, Both: true, For: sec},
	}},
}

// databaseDrills are of Postgres and the connections to it.
var databaseDrills = []Group{
	{Name: "connections to the database", Faults: []Fault{
		{Kind: Session, Who: 1}, {Kind: Backends}, {Kind: Flap, For: sec},
		{Kind: DBConnections, Who: 2, For: sec},
		{Kind: DBSlow, Who: 1, For: sec},
		{Kind: DBCut, Both: true, For: sec}, {Kind: DBFreeze, Both: true, For: over},
	}, More: []Fault{{Kind: DBCut, Who: 1, For: sec}, {Kind: DBFreeze, Who: 1, For: over}}},
	{Name: "database", Faults: []Fault{
		{Kind: Restart}, {Kind: Crash}, {Kind: BackendKill}, {Kind: Replays, For: 2 * sec}, {Kind: DBDown, For: sec},
		{Kind: DBRefuse, N: 0, For: sec},
		{Kind: DBCancel, For: sec}, {Kind: DBLocks, For: 2 * sec}, {Kind: DBDeadlock, For: sec},
	}, More: []Fault{{Kind: DBRefuse, N: 1, For: brief}, {Kind: DBRefuse, N: 3, For: brief}}},
}

// deepDrills are of reorganisations deeper than the confirmations.
var deepDrills = []Group{
	{Name: "deep reorganisations, auto numbers, two chains", Faults: []Fault{
		{Kind: DeepReorg, N: 4, Keep: true}, {Kind: DeepReorg, N: 4},
		{Kind: TakeoverReorg, N: 5, Who: 1, For: sec},
		{Kind: BackfillReorg, N: 6, For: brief}, {Kind: Kill, Who: 2, For: sec},
		{Kind: Repartition, N: 4},
	}, More: []Fault{{Kind: Repartition, N: 2}}},
	{Name: "moved log indexes, deep", Faults: []Fault{
		{Kind: ShiftReorg, N: 6}, {Kind: ShiftReorg, N: 5, Keep: true},
	}, More: []Fault{
		{Kind: ShiftReorg, N: 4}, {Kind: ShiftReorg, N: 8, Keep: true}, {Kind: ShiftReorg, N: 10},
	}},
}

// otherDrills are of processes, Pub/Sub, the fleet, and blocks and reorganisations as every chain has them.
var otherDrills = []Group{
	{Name: "processes", Faults: []Fault{
		{Kind: Kill, For: brief}, {Kind: KillAfterAck, Who: 1, For: brief}, {Kind: Freeze, Who: 2, For: over},
		{Kind: Term, For: brief}, {Kind: SlowStart, Who: 1, For: sec},
		{Kind: Twin, Who: 1, For: brief}, {Kind: KillAll, For: brief},
	}},
	{Name: "Pub/Sub", Faults: []Fault{
		{Kind: PubSubDown, For: sec}, {Kind: Denied, For: sec}, {Kind: AckLost, For: brief},
		{Kind: Slow, For: sec}, {Kind: KeyFailing, N: 2, For: sec}, {Kind: TopicGone, For: sec},
	}},
	{Name: "fleet", Faults: []Fault{
		{Kind: Repartition, N: 4}, {Kind: Repartition, N: 2},
		{Kind: Stale, N: 3, Who: 1, For: sec}, {Kind: WrongStart, N: 0, For: sec}, {Kind: WrongStart, N: 1, For: sec},
		{Kind: OtherSettings, N: 0, For: over}, {Kind: OtherSettings, N: 1, Who: 1, Keep: true, For: over},
	}, More: []Fault{{Kind: Repartition, N: 5}, {Kind: OtherSettings, N: 2, For: over}}},
	{Name: "finality stands still", Faults: []Fault{
		{Kind: NodeStands, Both: true, For: sec}, {Kind: NodeStands, For: sec},
	}},
	{Name: "ABIs grow", Faults: []Fault{
		{Kind: Kill, For: brief}, {Kind: Grow, N: 1, For: sec}, {Kind: Kill, Who: 1, For: brief},
	}},
	{Name: "begun too late", Faults: []Fault{{Kind: LateStart}}},
	{Name: "chain", Faults: []Fault{
		{Kind: Reorg, N: 1, Keep: true}, {Kind: Reorg, N: 2}, {Kind: TakeoverReorg, N: 2, Who: 1, For: sec},
		{Kind: BackfillReorg, N: 2, Keep: true, For: brief},
		{Kind: Burst, N: 300}, {Kind: Empty, N: 60},
		{Kind: ShiftReorg, N: 2}, {Kind: ShiftReorg, N: 2, Keep: true},
	}, More: []Fault{{Kind: ShiftReorg, N: 2}}},
}
