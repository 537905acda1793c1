package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/partition"
)

// Severity is how soon a person should act.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // now: events are delayed, or will be
	Warning  Severity = "warning"  // today
	Notice   Severity = "notice"   // no action: it normally ends within seconds, or was chosen
)

// rank orders the severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Critical, Warning, Notice}, s) }

// Problem is a state that needs a person, or is about to.
type Problem struct {
	Kind     string   `json:"kind"` // one of the constants below
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`    // what is wrong, with its numbers
	Remedy   string   `json:"remedy"`  // the first step
	Runbook  string   `json:"runbook"` // URL of the page with the details
}

// The kinds of problems.
const (
	UnknownChain    = "unknown_chain"
	NobodyAlive     = "nobody_alive"
	NoLeader        = "no_leader"
	HungLeader      = "hung_leader"
	UnservedSlots   = "unserved_slots"
	AdoptedSlots    = "adopted_slots"
	StaleHeartbeat  = "stale_heartbeat"
	Standing        = "stands_still"
	FactoryBehind   = "factory_behind"
	OldOutbox       = "old_outbox"
	LateEscrows     = "late_escrows"
	MixedTotals     = "mixed_totals"
	MixedSettings   = "mixed_settings"
	Redundancy      = "lost_redundancy"
	FutureStart     = "start_block_in_the_future"
	StillFinality   = "finality_stands_still"
	StillChain      = "chain_stands_still"
	StrangerHolds   = "stranger_holds_lock"
	SetAside        = "endpoint_set_aside"
	Believed        = "one_endpoints_word"
	EndpointOut     = "endpoint_out"
	NoNode          = "no_node"
	DatabaseGone    = "database_down"
	DatabaseRefuses = "database_refuses"
	InstanceFault   = "instance_fault"
	SessionGone     = "session_lost"
	OwnNode         = "own_node_down"
	ReadOnly        = "database_read_only"
	UnknownEvents   = "unknown_events"
	MixedVersions   = "mixed_versions"
	Unverified      = "verifier_behind"
	MissedEvents    = "missing_event"
	ExtraEvents     = "extra_event"
	DeepReorg       = "deep_reorg"
	NotPublished    = "announced_again"

	HaltedSender    = "sender_halted"
	UnsignedCommand = "signer_unreachable"
	OldCommand      = "old_command"
	LowBalanceOf    = "low_balance"
	LowFees         = "waits_for_fees"
	SpentBudget     = "waits_for_budget"
	OldReplies      = "old_replies"
)

// Runbooks is the address of the runbooks.
const Runbooks = "https://github.com/fusion-prime/escrow-relayer/blob/main/deploy/runbooks/"

// NeedPerson reports whether any of them is more than a notice.
func NeedPerson(all []Problem) bool {
	return slices.ContainsFunc(all, func(p Problem) bool { return p.Severity != Notice })
}

// effect is what a problem does to the events.
type effect int

// The effects, the worst last.
const (
	copes   effect = iota // lost redundancy, or a matter of settings
	delayed               // of some escrows, or of all
	wrong                 // published wrongly, or not
	nothingStored
	noAnswer // of the database
)

// Kinds has of each kind of problem its page below Runbooks, which a test compares with the files, and its effect.
var Kinds = map[string]struct {
	Page   string
	effect effect
}{
	UnknownChain:    {"new-chain.md", nothingStored},
	NobodyAlive:     {"leader-gap.md#relayerfleetdown", nothingStored},
	NoLeader:        {"leader-gap.md#relayernoleader", delayed},
	HungLeader:      {"leader-gap.md#relayernoleader", delayed},
	UnservedSlots:   {"unserved-slots.md#unserved_slots", delayed},
	AdoptedSlots:    {"unserved-slots.md#adopted_slots", copes},
	Redundancy:      {"unserved-slots.md#adopted_slots", copes},
	StaleHeartbeat:  {"stale-instance.md#relayerheartbeatstale", copes},
	Standing:        {"storing.md#stands_still", delayed},
	FactoryBehind:   {"lag.md#factory_behind", delayed},
	FutureStart:     {"new-chain.md", nothingStored},
	StillFinality:   {"lag.md#finality_stands_still", nothingStored},
	StillChain:      {"lag.md#chain_stands_still", nothingStored},
	StrangerHolds:   {"leader-gap.md#strangers", copes},
	SetAside:        {"node-disagreement.md#endpoint_set_aside", copes},
	Believed:        {"node-disagreement.md#one_endpoints_word", copes},
	EndpointOut:     {"provider-change.md#relayerendpointdown", copes},
	ReadOnly:        {"database-connections.md#relayerdatabasedown", nothingStored},
	DatabaseRefuses: {"database-connections.md#relayerdatabasedown", nothingStored},
	InstanceFault:   {"storing.md#stands_still", delayed},
	DatabaseGone:    {"database-connections.md#relayerdatabasedown", noAnswer},
	SessionGone:     {"database-connections.md#relayersessionlosses", copes},
	NoNode:          {"provider-change.md#own_node_down", nothingStored},
	OwnNode:         {"provider-change.md#own_node_down", copes},
	OldOutbox:       {"outbox-age.md#old_outbox", delayed},
	UnknownEvents:   {"storing.md#unknown_events", delayed},
	NotPublished:    {"storing.md#announced_again", wrong},
	MissedEvents:    {"verifier-missing.md#missing_event", wrong},
	ExtraEvents:     {"verifier-missing.md#extra_event", wrong},
	Unverified:      {"verifier-missing.md#verifier_behind", copes},
	DeepReorg:       {"deep-reorg.md#deep_reorg", wrong},
	LateEscrows:     {"lag.md#late_escrows", delayed},
	MixedTotals:     {"repartition.md", copes},
	MixedVersions:   {"schema-upgrade.md#mixed_versions", copes},
	MixedSettings:   {"schema-upgrade.md#mixed_versions", copes},

	HaltedSender:    {"commands.md#sender_halted", copes},
	UnsignedCommand: {"commands.md#signer_unreachable", copes},
	OldCommand:      {"commands.md#old_command", copes},
	LowBalanceOf:    {"commands.md#low_balance", copes},
	LowFees:         {"commands.md#waits_for_fees", copes},
	SpentBudget:     {"commands.md#waits_for_budget", copes},
	OldReplies:      {"commands.md#old_replies", copes},
}

// problems are those found so far.
type problems []Problem

// add adds one, unless its severity is empty.
func (p *problems) add(kind string, s Severity, remedy, text string, args ...any) {
	if s != "" {
		*p = append(*p, Problem{kind, s, fmt.Sprintf(text, args...), remedy, Runbooks + Kinds[kind].Page})
	}
}

// Judge lists what needs a person, the worst first.
func (f *Fleet) Judge() []Problem {
	p := problems{}
	switch {
	case len(f.Instances) == 0 && len(f.trying) > 0:
		t := f.trying[0]
		p.add(UnknownChain, Critical, "mend what it names: it is tried again",
			"%s tries to start, and has not yet, as it said %s ago: %s", t.ID, Age(f.At.Sub(t.At)), t.Fault)
	case !f.Known && len(f.Instances) == 0:
		p.add(UnknownChain, Critical, "check CHAIN_ID and DATABASE_URL, then start an instance",
			"no instance has ever run for chain %d on this database", f.ChainID)
	case f.ReadOnly:
		p.add(ReadOnly, Critical, "end the failover, or make room and lift default_transaction_read_only; DATABASE_URL must "+
			"lead to the primary", "the database is read-only: nothing is stored or published")
	case len(f.waits) > 0:
		what, remedy := f.waits[0].Advice()
		p.add(DatabaseRefuses, Critical, remedy, "%s: nothing is stored or published", what)
	case f.Live() == 0 && f.connected() > 0:
		p.add(DatabaseRefuses, Critical, askThem, "%s connected, and none writes: the database refuses their writes, or "+
			"they hang; nothing is stored or published%s", instances(f.connected()), f.faults())
	case f.Live() == 0:
		p.add(NobodyAlive, Critical, "see whether one runs, and what its log says; start one if none does: it continues where "+
			"the last one stopped", "%s", f.nobodyAlive())
	default:
		f.judgeNodes(&p)
		f.judgeLeader(&p)
		f.judgeUnserved(&p)
		f.judgeProgress(&p)
		if lost := f.judgeRedundancy(&p); !lost { // a lost partition explains its adopted slots
			f.judgeAdopted(&p)
		}

		f.judgeSettings(&p)
		f.judgeCommands(&p)
		if who := names(f, func(i *Instance) bool { return i.Alive && i.Trust == "believed" }); who != "" {
			p.add(Believed, Notice, "name another endpoint, of another provider, in RPC_URLS",
				"the word of one endpoint says which blocks are the chain's: %s", who)
		}
	}

	f.judgeStrangers(&p)
	f.judgeFaults(&p)
	f.judgeFindings(&p)
	p.sort()

	return p
}

// sort sorts by severity, the worst first, and is stable.
func (p problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
}

// judgeStrangers lists the strangers that hold a lock of ours.
func (f *Fleet) judgeStrangers(p *problems) {
	if len(f.Strangers) == 0 {
		return
	}

	var who []string
	for _, s := range f.Strangers {
		who = append(who, fmt.Sprintf("%s: pid %d, login %s, application %q", s.Lock, s.PID, s.Login, s.Application))
	}

	remedy := fmt.Sprintf("`select pg_terminate_backend(%d)` as that login, a superuser or with pg_signal_backend, and "+
		"revoke connect on the database from public", f.Strangers[0].PID)
	p.add(StrangerHolds, Warning, remedy,
		"an unprivileged login holds locks of the fleet, which got other keys: %s", enumerate(who))
}

// judgeFaults names the endpoints that are set aside.
func (f *Fleet) judgeFaults(p *problems) {
	if len(f.Faults) == 0 {
		return
	}

	var who []string
	for _, e := range f.Faults {
		who = append(who, fmt.Sprintf("%s (%s, %s UTC)", e.Endpoint, e.Kind, e.Since.Format(time.DateTime)))
	}

	p.add(SetAside, Warning, "read its evidence in the table endpoint_faults, and replace it in RPC_URLS",
		"an endpoint answered as no honest one does, and is asked only while no other works: %s", enumerate(who))
}

// findings are what is said of each kind of them.
var findings = map[string]struct{ kind, what, remedy string }{
	"undecodable_event": {UnknownEvents, "logs of followed contracts that the ABI does not decode", completeABI},
	"unannounced_contract": {UnknownEvents, "blocks in which a factory created a contract that no event of the ABI announces",
		completeABI},
	MissedEvents: {MissedEvents, "events that the first reading missed were published late", "see who hid them"},
	ExtraEvents:  {ExtraEvents, "stored events are not on the chain", "compare them with an explorer"},
	DeepReorg:    {DeepReorg, "stored events were retracted: a reorganisation below FINALITY", "tell consumers"},
	NotPublished: {NotPublished, "events are stored and were not published", "look at the factory's two events"},
}

const completeABI = "complete FACTORY_ABI or ESCROW_ABI: what was missed is read again then"

// judgeFindings names what was found, while it is open or new. Who chose FINALITY=latest expects reorganisations.
func (f *Fleet) judgeFindings(p *problems) {
	final := names(f, func(i *Instance) bool {
		return i.Alive && !slices.Contains([]string{"latest", "confirmations 0"}, i.Settings.Stream["FINALITY"])
	})
	for _, o := range f.Findings {
		of := findings[o.Kind]
		if o.Kind == DeepReorg && final == "" {
			continue
		}

		p.add(of.kind, Critical, of.remedy, "%d %s, since %s UTC; the last: %s", o.Events, of.what,
			o.Since.Format(time.DateTime), cmp.Or(o.Detail, "in the table findings"))
	}
}

// nobodyAlive says what is known: how many stopped cleanly, and when the others were last heard of. A session that is
// gone does not tell whether its instance died or cannot connect.
func (f *Fleet) nobodyAlive() string {
	stopped, since, heard := 0, Age(0), Age(math.MaxInt64)
	for i := range f.Instances {
		if in := &f.Instances[i]; in.State == Stopped {
			stopped++
			since = max(since, in.DeadFor)
		} else {
			heard = min(heard, in.HeartbeatAge)
		}
	}

	text := "no instance is connected: nothing is watched or published"
	if stopped > 0 {
		text += fmt.Sprintf("; %s stopped cleanly, the first %s ago", instances(stopped), since)
	}

	if others := len(f.Instances) - stopped; others > 0 {
		text += fmt.Sprintf("; %s did not stop, last heard of %s ago", instances(others), heard)
	}

	return text
}

// askThem is the first step where instances are there and the database takes nothing from them.
const askThem = "open /readyz or the log of one of them, which names the cause; look at the database's disk, log and " +
	"locks first"

// connected is how many instances have a connection, writing or not, without those that stopped.
func (f *Fleet) connected() (n int) {
	for i := range f.Instances {
		if f.Instances[i].State == Hung {
			n++
		}
	}

	return n
}

// faults is what the instances that are there said last is wrong with them.
func (f *Fleet) faults() string {
	var all []string
	for i := range f.Instances {
		if in := &f.Instances[i]; (in.Alive || in.connected) && in.Fault != "" {
			all = append(all, in.ID+" says: "+in.Fault)
		}
	}

	if len(all) == 0 {
		return ""
	}

	return "; " + enumerate(all)
}

func instances(n int) string {
	if n == 1 {
		return "1 instance"
	}

	return fmt.Sprintf("%d instances", n)
}

// judgeNodes judges a fleet without an instance that can read blocks. Each of them has found that
// by its clock; since when is by the database's.
func (f *Fleet) judgeNodes(p *problems) {
	n, since := 0, Age(math.MaxInt64)
	for i := range f.alive() {
		if i.StuckFor == 0 {
			return
		}

		n++
		since = min(since, i.StuckFor)
	}

	p.add(NoNode, LimitNode.Of(since), "look at the endpoints of RPC_URLS; /readyz of an instance names what they say",
		"the nodes have blocked all of %s for %s: new blocks are not read", instances(n), since)
}

func (f *Fleet) judgeLeader(p *problems) {
	age := f.Leader.HeartbeatAge
	if f.Leader.Held {
		p.add(HungLeader, LimitHungLeader.Of(age), "restart it; another instance takes over within seconds",
			"the leader %s holds its lock but its heartbeat stopped %s ago", f.Leader.Instance, age)
	} else {
		p.add(NoLeader, LimitNoLeader.Of(max(age, 1)),
			"look at the logs of the live instances for why they do not take the leader lock",
			"no leader for %s: new escrows are not discovered", age)
	}
}

func (f *Fleet) judgeUnserved(p *problems) {
	n, longest, last := 0, Age(0), ""
	owners := map[string]bool{}
	for i := range f.Slots.Each {
		s := &f.Slots.Each[i]
		if s.Served || LimitUnserved.Of(max(s.Unserved, 1)) == "" {
			continue
		}

		n++
		longest = max(longest, s.Unserved)
		if s.Owner != "" {
			owners[s.Owner] = true
		}
	}

	if len(owners) > 0 {
		last = "; last owned by " + names(f, func(i *Instance) bool { return owners[i.ID] })
	}

	if n == 0 {
		return
	}

	p.add(UnservedSlots, LimitUnserved.Of(max(longest, 1)),
		"look at the logs of the live instances for why they do not claim them",
		"%d of %d slots are not served, for %s at most%s", n, f.Slots.Total, longest, last)
}

// judgeProgress judges the progress of the fleet, and what waits. While START_BLOCK is above the
// head the fleet waits for it, which looks healthy otherwise.
func (f *Fleet) judgeProgress(p *problems) {
	if head := f.Chain.NodeHead; head > 0 && f.Chain.Start > head {
		p.add(FutureStart, Critical,
			"set START_BLOCK to the block in which the factory was deployed, on a separate database",
			"START_BLOCK %d is %d blocks above the head %d: nothing is read until the chain is there",
			f.Chain.Start, f.Chain.Start-head, head)
	}

	f.judgeTarget(p)
	p.add(OldOutbox, LimitOutbox.Of(f.Outbox.OldestAge),
		"look at the last error of publishing, and at the topic's permissions and quota; nothing is lost",
		"the oldest of %d messages has waited for Pub/Sub for %s", f.Outbox.Messages, f.Outbox.OldestAge)

	who, longest := f.tooLong(LimitSilent,
		func(i *Instance) (Age, bool) { return i.ReportAge, i.Alive || i.State == Hung })
	heard := false
	for i := range f.alive() {
		heard = heard || LimitSilent.Of(i.ReportAge) == ""
	}

	if heard {
		p.add(StaleHeartbeat, Limit{Settling: LimitSilent.Settling, Behind: LimitSilent.Behind}.Of(longest),
			"restart it; another instance takes over within seconds",
			"nothing has been heard of %s for %s: frozen, starved of CPU, or cut off from the database", who, longest)
	} else {
		p.add(DatabaseRefuses, LimitSilent.Of(longest), askThem,
			"the database has taken nothing for %s from %s: commits fail or hang", longest, who)
	}

	who, longest = f.tooLong(LimitStanding, func(i *Instance) (Age, bool) { return i.StandingFor, i.Alive })
	p.add(Standing, LimitStanding.Of(longest),
		"look at its /readyz: it names the database or the node; restart it if both are well",
		"no block is stored for %s, though there are blocks to store: %s%s", longest, who, f.faults())
	if who == "" {
		_, longest = f.tooLong(LimitDatabase, func(i *Instance) (Age, bool) { return i.FaultFor, i.Alive })
		p.add(InstanceFault, LimitDatabase.Of(longest), "look there; its /readyz names the first step",
			"something is wrong for %s%s", longest, f.faults())
	}

	behind := f.factoryBehind()
	p.add(FactoryBehind, Limit{Behind: LimitBehind}.Of(behind), "look at the leader's node and logs",
		"the factory watch is %s of the chain behind the fastest instance: new escrows are discovered late", behind)

	who, longest = f.tooLong(LimitHeartbeat, func(i *Instance) (Age, bool) { return i.HeartbeatAge, i.Alive })
	p.add(StaleHeartbeat, LimitHeartbeat.Of(longest), "restart it",
		"connected but without a heartbeat for %s: %s", longest, who)

	p.add(LateEscrows, LimitLate.Of(f.Late.OldestAge), "look at the logs of the owners of their slots",
		"%d escrows wait to be caught up, the oldest for %s", f.Late.Escrows, f.Late.OldestAge)
}

// judgeTarget compares the blocks of the nodes with the clock: lag limits see nothing while the target stands still.
func (f *Fleet) judgeTarget(p *problems) {
	age, head := f.Chain.TargetAge, f.Chain.HeadAge
	switch still := LimitHead.Of(head); {
	case still != "":
		p.add(StillChain, still, "compare the head of the endpoints with a block explorer",
			"the newest block of the nodes is %s old: the chain stands still, or every endpoint does", head)
	default:
		p.add(StillFinality, LimitTarget(f.finalityLimit()).Of(age), "compare the finalized and safe blocks of the "+
			"endpoints with a block explorer; if the chain always takes so long, raise FINALITY_LIMIT",
			"the newest block that FINALITY allows is %s old, the head %s: nothing newer is published", age, head)
	}
}

// finalityLimit is the highest FINALITY_LIMIT of the live instances.
func (f *Fleet) finalityLimit() time.Duration {
	longest := LimitHead.Behind
	for i := range f.alive() {
		if d, err := time.ParseDuration(i.Settings.Other["FINALITY_LIMIT"]); err == nil {
			longest = max(longest, d)
		}
	}

	return longest
}

// tooLong lists the instances that have been in a state beyond a limit, and returns the longest time. state returns
// how long an instance has been in it, and whether it is.
func (f *Fleet) tooLong(limit Limit, state func(*Instance) (Age, bool)) (who string, longest Age) {
	who = names(f, func(i *Instance) bool {
		age, is := state(i)
		if is = is && limit.Of(age) != ""; is {
			longest = max(longest, age)
		}

		return is
	})

	return who, longest
}

// factoryBehind is the chain's time between the last block of the fastest instance and that of the factory watch.
func (f *Fleet) factoryBehind() (behind Age) {
	for i := range f.alive() {
		if i.Slots > 0 && i.Cursor > f.Chain.FactoryCursor && !f.Chain.FactoryTime.IsZero() {
			behind = max(behind, Age(i.CursorTime.Sub(f.Chain.FactoryTime)))
		}
	}

	return behind
}

// judgeRedundancy lists the partitions without a live instance, and reports whether there are any.
// One that died is missed at once; one that was stopped may be restarting.
func (f *Fleet) judgeRedundancy(p *problems) (lost bool) {
	missing := f.missing()
	var who []string
	severity := Notice
	for _, m := range missing {
		of := LimitRedundancy.Of(m.since)
		if m.died {
			of = Warning
		}

		if of != "" {
			who = append(who, fmt.Sprint(m.number))
		}

		if of == Warning {
			severity = Warning
		}
	}

	if len(who) == 0 {
		return false
	}

	total := f.total()
	partitions := "partition " + who[0] + " has"
	if len(who) > 1 {
		partitions = "partitions " + enumerate(who) + " have"
	}

	p.add(Redundancy, severity, "start the instances that are missing; until then fewer can fail",
		"%s no live instance: %d of %d partitions have one, and %d slots are served by an instance that stands in",
		partitions, total-len(missing), total, f.Slots.Adopted)

	return severity != Notice
}

// enumerate joins some words, at most five.
func enumerate(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}

	return strings.Join(all, ", ")
}

func (f *Fleet) judgeAdopted(p *problems) {
	n, longest := 0, Age(0)
	for i := range f.Slots.Each {
		s := &f.Slots.Each[i]
		if held := Age(max(0, f.At.Sub(s.Since))); s.Served && s.Adopted && LimitAdopted.Of(held) != "" {
			n++
			longest = max(longest, held)
		}
	}

	p.add(AdoptedSlots, LimitAdopted.Of(longest), "look at its log, or start an instance for the missing partition",
		"%d slots have been adopted for up to %s: the instance that prefers them does not take them", n, longest)
}

// judgeSettings lists the settings that differ between live instances and would split the stream. A
// rolling change has such differences for a while, and they are shown.
func (f *Fleet) judgeSettings(p *problems) {
	if f.total() == 0 {
		p.add(MixedTotals, LimitMixedTotals.Of(f.youngest()), "give all instances the same values",
			"live instances disagree about TOTAL_PARTITIONS or PARTITION_STRATEGY, and no repartition is under way")
	}

	var texts []string
	for _, d := range f.Differences() {
		texts = append(texts, d.String())
	}

	versions := map[string]bool{}
	for i := range f.alive() {
		versions[i.Version] = true
	}

	if len(versions) > 1 {
		p.add(MixedVersions, LimitMixedTotals.Of(f.youngest()), "finish the rollout, or take it back",
			"live instances run %d versions: a rollout stopped half way", len(versions))
	}

	if len(texts) > 0 {
		p.add(MixedSettings, Warning, "give all instances the same values, and unset ALLOW_MIXED_SETTINGS",
			"live instances have different settings: %s", strings.Join(texts, "; "))
	}
}

// Differences are the settings that differ between live instances and would split the stream.
func (f *Fleet) Differences() []partition.Difference {
	of := map[string]partition.Settings{}
	for i := range f.alive() {
		of[i.ID] = i.Settings
	}

	return slices.DeleteFunc(partition.Differences(of), func(d partition.Difference) bool { return !d.Stream })
}

// youngest is the age of the live instance that started last.
func (f *Fleet) youngest() Age {
	age := Age(math.MaxInt64)
	for i := range f.alive() {
		age = min(age, Age(f.At.Sub(i.Started)))
	}

	return age
}

// total is the number of partitions that the live instances agree on; 0 without agreement, or without live instances.
func (f *Fleet) total() (total int) {
	strategy := ""
	for i := range f.alive() {
		if total == 0 {
			total, strategy = i.Total, i.Strategy
		}

		if total != i.Total || strategy != i.Strategy {
			return 0
		}
	}

	return total
}

// gap is a partition without a live instance.
type gap struct {
	number int
	died   bool // its last instance died; else it stopped, or the partition is new
	since  Age  // of the death or the stop; for a new partition, of the start of the youngest instance
}

// missing lists the partitions without a live instance; none while the live instances disagree
// about the number of partitions.
func (f *Fleet) missing() (gaps []gap) {
	total := f.total()
	if total == 0 {
		return nil
	}

	lives, last := make([]bool, total), make([]*Instance, total)
	for i := range f.Instances {
		in := &f.Instances[i]
		switch {
		case in.Number >= total:
		case in.Alive:
			lives[in.Number] = true
		case in.Total == total && (last[in.Number] == nil || in.DeadFor < last[in.Number].DeadFor):
			last[in.Number] = in
		}
	}

	for number, alive := range lives {
		switch in := last[number]; {
		case alive:
		case in != nil:
			gaps = append(gaps, gap{number, in.State != Stopped, in.DeadFor})
		default:
			gaps = append(gaps, gap{number, false, f.youngest()})
		}
	}

	return gaps
}

// names lists instances, at most five.
func names(f *Fleet, is func(*Instance) bool) string {
	var ids []string
	for i := range f.Instances {
		if in := &f.Instances[i]; is(in) {
			ids = append(ids, in.ID)
		}
	}

	return enumerate(ids)
}
