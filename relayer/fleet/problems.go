package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/partition"
)

// Severity says how soon somebody should look.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // events are delayed, or will be: now
	Warning  Severity = "warning"  // the fleet copes: today
)

// Problem is something that does not mend itself.
type Problem struct {
	Kind     string   `json:"kind"` // one of the constants below
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`   // what is wrong, with its numbers
	Remedy   string   `json:"remedy"` // the first step
}

// The kinds of problems.
const (
	UnknownChain   = "unknown_chain"
	NobodyAlive    = "nobody_alive"
	NoLeader       = "no_leader"
	HungLeader     = "hung_leader"
	UnservedSlots  = "unserved_slots"
	AdoptedSlots   = "adopted_slots"
	StaleHeartbeat = "stale_heartbeat"
	StuckCursor    = "stuck_cursor"
	FactoryBehind  = "factory_behind"
	Lagging        = "lagging"
	OldOutbox      = "old_outbox"
	LateEscrows    = "late_escrows"
	MixedTotals    = "mixed_totals"
	MixedSettings  = "mixed_settings"
)

// Limits say from when on a state that the fleet passes through by itself is a problem. Zero switches a judgement off.
type Limits struct {
	NoLeader       time.Duration // without a leader; an election takes seconds
	HungLeader     time.Duration // with a leader that does not make its rounds; contenders end it after LEADER_STALE_AFTER
	Unserved       time.Duration // a slot that nobody serves; a takeover takes seconds, an adoption ADOPT_AFTER
	Adopted        time.Duration // a slot served by an instance that does not prefer it
	StaleHeartbeat time.Duration // a live instance that does not beat
	StuckCursor    time.Duration // a cursor that does not move although there are blocks; above the time between two finalised blocks
	FactoryBehind  int64         // blocks by which the factory watch is behind the fastest instance
	Lag            int64         // blocks by which an instance is behind the head. Depends on CONFIRMATIONS, hence off by default
	Outbox         time.Duration // age of the oldest message
	Late           time.Duration // age of the oldest escrow that is not admitted
	MixedSettings  bool          // live instances whose settings differ, of those that they have to agree on
	MixedTotals    time.Duration // instances that disagree about the number of partitions; a repartition takes minutes
}

// DefaultLimits leave every automatic remedy the time it needs, and a little more.
var DefaultLimits = Limits{
	NoLeader:       LimitNoLeader.Behind,
	HungLeader:     LimitHungLeader.Critical,
	Unserved:       LimitUnserved.Critical,
	Adopted:        LimitAdopted.Behind,
	StaleHeartbeat: LimitHeartbeat.Behind,
	StuckCursor:    LimitStuckCursor.Critical,
	FactoryBehind:  1000,
	Outbox:         LimitOutbox.Critical,
	Late:           LimitLate.Behind,
	MixedSettings:  true,
	MixedTotals:    LimitMixedTotals.Behind,
}

// Judge lists what needs a person, the worst first.
func (f *Fleet) Judge(l Limits) []Problem {
	if !f.Known && len(f.Instances) == 0 {
		return []Problem{{UnknownChain, Critical, fmt.Sprintf("no instance has ever run for chain %d on this database", f.ChainID),
			"check CHAIN_ID and DATABASE_URL, then start an instance"}}
	}
	if f.Live() == 0 {
		return []Problem{{NobodyAlive, Critical, fmt.Sprintf("none of %d instances is alive: nothing is watched and nothing is published", len(f.Instances)),
			"start an instance; it goes on where the last one stopped"}}
	}
	critical, warnings := []Problem{}, []Problem{}
	for _, p := range []*Problem{f.leaderProblem(l), f.unserved(l), f.outboxProblem(l), f.stuck(l), f.factoryBehind(l), f.stale(l),
		f.lagging(l), f.lateProblem(l), f.adopted(l), f.mixed(l), f.mixedSettings(l)} {
		switch {
		case p == nil:
		case p.Severity == Critical:
			critical = append(critical, *p)
		default:
			warnings = append(warnings, *p)
		}
	}
	return append(critical, warnings...)
}

func (f *Fleet) leaderProblem(l Limits) *Problem {
	age := f.Leader.HeartbeatAge
	switch {
	case !f.Leader.Held && over(age, l.NoLeader):
		return &Problem{NoLeader, Critical, fmt.Sprintf("nobody has led for %s: new escrows are not discovered", age),
			"look at the logs of the live instances for why they do not take the leader lock"}
	case f.Leader.Held && over(age, l.HungLeader):
		return &Problem{HungLeader, Critical, fmt.Sprintf("the leader %s holds its lock but has not made its rounds for %s", f.Leader.Instance, age),
			"restart it; another instance takes over within seconds"}
	}
	return nil
}

func (f *Fleet) unserved(l Limits) *Problem {
	n, longest := 0, Age(0)
	owners := map[string]bool{}
	for i := range f.Slots.Each {
		if s := &f.Slots.Each[i]; !s.Served && over(s.Unserved, l.Unserved) {
			n++
			longest = max(longest, s.Unserved)
			if s.Owner != "" {
				owners[s.Owner] = true
			}
		}
	}
	if n == 0 {
		return nil
	}
	text := fmt.Sprintf("%d of %d slots have not been served for up to %s", n, f.Slots.Total, longest)
	if len(owners) > 0 {
		text += "; last owned by " + names(f, func(i *Instance) bool { return owners[i.ID] })
	}
	return &Problem{UnservedSlots, Critical, text, "look at the logs of the live instances for why they do not claim them"}
}

func (f *Fleet) outboxProblem(l Limits) *Problem {
	if !over(f.Outbox.OldestAge, l.Outbox) {
		return nil
	}
	return &Problem{OldOutbox, Critical, fmt.Sprintf("the oldest of %d messages has waited for Pub/Sub for %s", f.Outbox.Messages, f.Outbox.OldestAge),
		"look at relayer_publish_errors_total and at the topic's permissions and quota; nothing is lost"}
}

func (f *Fleet) stuck(l Limits) *Problem {
	is := func(i *Instance) bool {
		return i.Alive && i.Slots > 0 && i.Cursor > 0 && i.Cursor <= f.Chain.Head && over(i.CursorAge, l.StuckCursor)
	}
	who := names(f, is)
	if who == "" {
		return nil
	}
	return &Problem{StuckCursor, Critical, fmt.Sprintf("no block processed for over %s: %s", Age(l.StuckCursor), who),
		"look at its /readyz and at its node; restart it if both are well"}
}

func (f *Fleet) factoryBehind(l Limits) *Problem {
	behind := int64(0)
	for i := range f.Instances {
		if f.Instances[i].Alive && f.Instances[i].Slots > 0 {
			behind = max(behind, f.Instances[i].Cursor-f.Chain.FactoryCursor)
		}
	}
	if l.FactoryBehind == 0 || behind <= l.FactoryBehind {
		return nil
	}
	return &Problem{FactoryBehind, Critical, fmt.Sprintf("the factory watch is %d blocks behind the fastest instance: new escrows are discovered late", behind),
		"look at the leader's node and logs"}
}

func (f *Fleet) stale(l Limits) *Problem {
	who := names(f, func(i *Instance) bool { return i.Alive && over(i.HeartbeatAge, l.StaleHeartbeat) })
	if who == "" {
		return nil
	}
	return &Problem{StaleHeartbeat, Critical, fmt.Sprintf("connected but without a heartbeat for over %s: %s", Age(l.StaleHeartbeat), who), "restart it"}
}

func (f *Fleet) lagging(l Limits) *Problem {
	if l.Lag == 0 {
		return nil
	}
	who := names(f, func(i *Instance) bool { return i.Alive && i.Slots > 0 && f.Chain.Head-i.Cursor+1 > l.Lag })
	if who == "" {
		return nil
	}
	return &Problem{Lagging, Warning, fmt.Sprintf("more than %d blocks behind the head: %s", l.Lag, who), "look at the latency and the errors of its RPC endpoints"}
}

func (f *Fleet) lateProblem(l Limits) *Problem {
	if !over(f.Late.OldestAge, l.Late) {
		return nil
	}
	return &Problem{LateEscrows, Warning, fmt.Sprintf("%d escrows wait to be caught up, the oldest for %s", f.Late.Escrows, f.Late.OldestAge),
		"look at the logs of the owners of their slots"}
}

func (f *Fleet) adopted(l Limits) *Problem {
	n, longest := 0, Age(0)
	for i := range f.Slots.Each {
		s := &f.Slots.Each[i]
		if held := Age(max(0, f.At.Sub(s.Since))); s.Served && s.Adopted && over(held, l.Adopted) {
			n++
			longest = max(longest, held)
		}
	}
	if n == 0 {
		return nil
	}
	return &Problem{AdoptedSlots, Warning, fmt.Sprintf("%d slots have been adopted for up to %s: no live instance prefers them", n, longest),
		"start an instance for the missing partition"}
}

func (f *Fleet) mixed(l Limits) *Problem {
	if l.MixedTotals == 0 {
		return nil
	}
	kinds := map[string]bool{}
	var youngest time.Time
	for i := range f.Instances {
		if in := &f.Instances[i]; in.Alive {
			kinds[fmt.Sprintf("%d %s", in.Total, in.Strategy)] = true
			if in.Started.After(youngest) {
				youngest = in.Started
			}
		}
	}
	if len(kinds) < 2 || f.At.Sub(youngest) <= l.MixedTotals {
		return nil
	}
	return &Problem{MixedTotals, Warning, "live instances disagree about TOTAL_PARTITIONS or PARTITION_STRATEGY, and no repartition is under way",
		"give all instances the same values"}
}

// mixedSettings names what would split the stream. A rolling change passes through it, and is to be seen while it does.
func (f *Fleet) mixedSettings(l Limits) *Problem {
	if !l.MixedSettings {
		return nil
	}
	of := map[string]partition.Settings{}
	for i := range f.Instances {
		if in := &f.Instances[i]; in.Alive {
			of[in.ID] = in.Settings
		}
	}
	var texts []string
	for _, d := range partition.Differences(of) {
		if d.Stream {
			texts = append(texts, d.String())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return &Problem{MixedSettings, Warning, "live instances have different settings: " + strings.Join(texts, "; "),
		"give all instances the same values, and take ALLOW_MIXED_SETTINGS back"}
}

func over(age Age, limit time.Duration) bool { return limit > 0 && time.Duration(age) > limit }

// names lists instances, at most five.
func names(f *Fleet, is func(*Instance) bool) string {
	const most = 5
	var ids []string
	more := 0
	for i := range f.Instances {
		switch in := &f.Instances[i]; {
		case !is(in):
		case len(ids) < most:
			ids = append(ids, in.ID)
		default:
			more++
		}
	}
	text := strings.Join(ids, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
