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

// Severity says how soon somebody should look.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // events are delayed, or will be: at once
	Warning  Severity = "warning"  // nothing is delayed yet: today
)

// Problem is something that does not end by itself.
type Problem struct {
	Kind     string   `json:"kind"` // one of the constants below
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`    // what is wrong, with its numbers
	Remedy   string   `json:"remedy"`  // the first step
	Runbook  string   `json:"runbook"` // URL of the page that says more
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
	OldOutbox      = "old_outbox"
	LateEscrows    = "late_escrows"
	MixedTotals    = "mixed_totals"
	MixedSettings  = "mixed_settings"
	Redundancy     = "lost_redundancy"
	FutureStart    = "start_block_in_the_future"

	HaltedSender    = "sender_halted"
	UnsignedCommand = "signer_unreachable"
	OldCommand      = "old_command"
	LowBalanceOf    = "low_balance"
	OldReplies      = "old_replies"
)

// Runbooks is where the runbooks are; the alerts link to the same pages.
const Runbooks = "https://github.com/fusion-prime/escrow-relayer/blob/main/deploy/runbooks/"

// runbookOf is the page of each kind of problem. A test compares it with the files.
var runbookOf = map[string]string{
	UnknownChain:   "new-chain.md",
	NobodyAlive:    "leader-gap.md#relayerfleetdown",
	NoLeader:       "leader-gap.md#relayernoleader",
	HungLeader:     "leader-gap.md#relayernoleader",
	UnservedSlots:  "unserved-slots.md#relayerslotsunserved",
	AdoptedSlots:   "unserved-slots.md#relayerslotsadopted",
	Redundancy:     "unserved-slots.md#relayerslotsadopted",
	StaleHeartbeat: "stale-instance.md#relayerheartbeatstale",
	StuckCursor:    "lag.md#relayerlagblocks",
	FactoryBehind:  "lag.md#relayerfactorylag",
	FutureStart:    "new-chain.md",
	OldOutbox:      "outbox-age.md#relayeroutboxold",
	LateEscrows:    "lag.md#relayerlateescrows",
	MixedTotals:    "repartition.md",
	MixedSettings:  "schema-upgrade.md#relayerversionsdiffer",

	HaltedSender:    "commands.md#relayersenderhalted",
	UnsignedCommand: "commands.md#relayersigner",
	OldCommand:      "commands.md#relayeroldestcommand",
	LowBalanceOf:    "commands.md#relayerbalancelow",
	OldReplies:      "commands.md#relayerrepliesnotdelivered",
}

// Limits say from when on a state that the fleet passes through by itself is a problem, and how bad
// a one. Zero switches a judgement off.
type Limits struct {
	NoLeader   Limit // without a leader
	HungLeader Limit // with a leader that does not write its heartbeat
	Unserved   Limit // a slot that nobody serves
	Adopted    Limit // a slot served by an instance that does not prefer it
	// a partition without an instance since one stopped cleanly; of one that died it is a warning at
	// once
	Redundancy     Limit
	StaleHeartbeat Limit // a live instance that does not write its heartbeat
	StuckCursor    Limit // a cursor that does not move although there are blocks
	Outbox         Limit // age of the oldest message
	Late           Limit // age of the oldest escrow that is not admitted
	MixedTotals    Limit // instances that disagree about the number of partitions, since the youngest of them started
	MixedSettings  bool  // live instances whose settings differ, of those that they have to agree on
	FactoryBehind  int64 // blocks by which the factory watch is behind the fastest instance
}

// DefaultLimits are the table of limits.
var DefaultLimits = Limits{
	NoLeader:       LimitNoLeader,
	HungLeader:     LimitHungLeader,
	Unserved:       LimitUnserved,
	Adopted:        LimitAdopted,
	Redundancy:     LimitRedundancy,
	StaleHeartbeat: LimitHeartbeat,
	StuckCursor:    LimitStuckCursor,
	Outbox:         LimitOutbox,
	Late:           LimitLate,
	MixedTotals:    LimitMixedTotals,
	MixedSettings:  true,
	FactoryBehind:  1000,
}

// Settling are limits for what ends by itself within seconds: it is shown to whoever looks, and nobody
// is called.
var Settling = Limits{
	NoLeader: Limit{Behind: 1}, Unserved: Limit{Behind: 1}, Outbox: Limit{Behind: settlingOutbox},
	Redundancy: Limit{Behind: 1},
}

// settlingOutbox is an age that no message reaches while Pub/Sub answers.
const settlingOutbox = 5 * time.Second

// Judge lists what needs a person, the worst first.
func (f *Fleet) Judge(l Limits) []Problem {
	problems := f.judge(l)
	for i := range problems {
		problems[i].Runbook = Runbooks + runbookOf[problems[i].Kind]
	}

	slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Compare(b.Severity.rank(), a.Severity.rank()) })

	return problems
}

// rank orders severities.
func (s Severity) rank() int {
	if s == Critical {
		return 1
	}

	return 0
}

func (f *Fleet) judge(l Limits) []Problem {
	if !f.Known && len(f.Instances) == 0 {
		return []Problem{{Kind: UnknownChain, Severity: Critical,
			Text:   fmt.Sprintf("no instance has ever run for chain %d on this database", f.ChainID),
			Remedy: "check CHAIN_ID and DATABASE_URL, then start an instance"}}
	}

	if f.Live() == 0 {
		return []Problem{{Kind: NobodyAlive, Severity: Critical, Text: f.nobodyAlive(),
			Remedy: "start an instance; it goes on where the last one stopped"}}
	}

	problems := []Problem{}
	for _, p := range []*Problem{f.leaderProblem(l), f.unserved(l), f.futureStart(), f.outboxProblem(l), f.stuck(l),
		f.factoryBehind(l), f.stale(l), f.lateProblem(l), f.redundancy(l), f.adopted(l), f.mixed(l), f.mixedSettings(l)} {
		if p != nil {
			problems = append(problems, *p)
		}
	}

	return append(problems, f.commandProblems()...)
}

func (f *Fleet) nobodyAlive() string {
	stopped, since := 0, Age(0)
	for i := range f.Instances {
		if f.Instances[i].State == Stopped {
			stopped++
			since = max(since, f.Instances[i].DeadFor)
		}
	}

	text := "no instance is alive: nothing is watched and nothing is published"
	switch died := len(f.Instances) - stopped; {
	case stopped > 0 && died == 0:
		text += fmt.Sprintf("; %s stopped cleanly, the first %s ago", instances(stopped), since)
	case stopped > 0:
		text += fmt.Sprintf("; %s stopped cleanly, %s died", instances(stopped), instances(died))
	case died > 0:
		text += fmt.Sprintf("; %s died", instances(died))
	}

	return text
}

func instances(n int) string {
	if n == 1 {
		return "1 instance"
	}

	return fmt.Sprintf("%d instances", n)
}

func (f *Fleet) leaderProblem(l Limits) *Problem {
	age := f.Leader.HeartbeatAge
	if severity := l.NoLeader.of(age); !f.Leader.Held && severity != "" {
		return &Problem{Kind: NoLeader, Severity: severity,
			Text:   fmt.Sprintf("nobody has led for %s: new escrows are not discovered", age),
			Remedy: "look at the logs of the live instances for why they do not take the leader lock"}
	}

	if severity := l.HungLeader.of(age); f.Leader.Held && severity != "" {
		return &Problem{Kind: HungLeader, Severity: severity,
			Text:   fmt.Sprintf("the leader %s holds its lock but has not made its rounds for %s", f.Leader.Instance, age),
			Remedy: "restart it; another instance takes over within seconds"}
	}

	return nil
}

func (f *Fleet) unserved(l Limits) *Problem {
	n, longest := 0, Age(0)
	owners := map[string]bool{}
	for i := range f.Slots.Each {
		s := &f.Slots.Each[i]
		if s.Served || l.Unserved.of(s.Unserved) == "" {
			continue
		}

		n++
		longest = max(longest, s.Unserved)
		if s.Owner != "" {
			owners[s.Owner] = true
		}
	}

	if n == 0 {
		return nil
	}

	text := fmt.Sprintf("%d of %d slots are not served, for %s at most", n, f.Slots.Total, longest)
	if len(owners) > 0 {
		text += "; last owned by " + names(f, func(i *Instance) bool { return owners[i.ID] })
	}

	return &Problem{Kind: UnservedSlots, Severity: l.Unserved.of(longest), Text: text,
		Remedy: "look at the logs of the live instances for why they do not claim them"}
}

// futureStart is a START_BLOCK above the head: the fleet waits for it, and looks well.
func (f *Fleet) futureStart() *Problem {
	if f.Chain.NodeHead == 0 || f.Chain.Start <= f.Chain.NodeHead {
		return nil
	}

	return &Problem{Kind: FutureStart, Severity: Critical,
		Text: fmt.Sprintf("START_BLOCK %d is %d blocks above the head %d: nothing is read until the chain is there",
			f.Chain.Start, f.Chain.Start-f.Chain.NodeHead, f.Chain.NodeHead),
		Remedy: "set START_BLOCK to the block in which the factory was deployed, on a database of its own"}
}

func (f *Fleet) outboxProblem(l Limits) *Problem {
	severity := l.Outbox.of(f.Outbox.OldestAge)
	if severity == "" {
		return nil
	}

	return &Problem{Kind: OldOutbox, Severity: severity,
		Text:   fmt.Sprintf("the oldest of %d messages has waited for Pub/Sub for %s", f.Outbox.Messages, f.Outbox.OldestAge),
		Remedy: "look at the last error of publishing, and at the topic's permissions and quota; nothing is lost"}
}

func (f *Fleet) stuck(l Limits) *Problem {
	who, longest := f.tooLong(l.StuckCursor, func(i *Instance) (Age, bool) {
		return i.CursorAge, i.Slots > 0 && i.Cursor > 0 && i.Cursor <= f.processable(i)
	})
	if who == "" {
		return nil
	}

	return &Problem{Kind: StuckCursor, Severity: l.StuckCursor.of(longest),
		Text:   fmt.Sprintf("no block processed for %s: %s", longest, who),
		Remedy: "look at its /readyz and at its node; restart it if both are well"}
}

// processable is the newest block that an instance could have processed. Where the chain says itself what
// is safe or final, which may not move for hours, that is what the others, or the factory watch, have.
func (f *Fleet) processable(i *Instance) int64 {
	switch i.Settings.Stream["FINALITY"] {
	case "safe", "finalized":
	default:
		return f.Chain.NodeHead
	}

	next := f.Chain.FactoryCursor
	for other := range f.alive() {
		next = max(next, other.Cursor)
	}

	return next - 1
}

// tooLong names the live instances that have been in a state for longer than a limit allows, and says
// for how long at most. state returns for how long an instance has been in it, and whether it is.
func (f *Fleet) tooLong(limit Limit, state func(*Instance) (Age, bool)) (who string, longest Age) {
	who = names(f, func(i *Instance) bool {
		age, is := state(i)
		if is = is && i.Alive && limit.of(age) != ""; is {
			longest = max(longest, age)
		}

		return is
	})

	return who, longest
}

func (f *Fleet) factoryBehind(l Limits) *Problem {
	behind := int64(0)
	for i := range f.alive() {
		if i.Slots > 0 {
			behind = max(behind, i.Cursor-f.Chain.FactoryCursor)
		}
	}

	if l.FactoryBehind == 0 || behind <= l.FactoryBehind {
		return nil
	}

	return &Problem{Kind: FactoryBehind, Severity: Critical,
		Text: fmt.Sprintf("the factory watch is %d blocks behind the fastest instance: new escrows are discovered late",
			behind),
		Remedy: "look at the leader's node and logs"}
}

func (f *Fleet) stale(l Limits) *Problem {
	who, longest := f.tooLong(l.StaleHeartbeat, func(i *Instance) (Age, bool) { return i.HeartbeatAge, true })
	if who == "" {
		return nil
	}

	return &Problem{Kind: StaleHeartbeat, Severity: l.StaleHeartbeat.of(longest),
		Text: fmt.Sprintf("connected but without a heartbeat for %s: %s", longest, who), Remedy: "restart it"}
}

func (f *Fleet) lateProblem(l Limits) *Problem {
	severity := l.Late.of(f.Late.OldestAge)
	if severity == "" {
		return nil
	}

	return &Problem{Kind: LateEscrows, Severity: severity,
		Text:   fmt.Sprintf("%d escrows wait to be caught up, the oldest for %s", f.Late.Escrows, f.Late.OldestAge),
		Remedy: "look at the logs of the owners of their slots"}
}

// redundancy is a partition that has no live instance. One that died is missed at once; one that
// was stopped may be restarting.
func (f *Fleet) redundancy(l Limits) *Problem {
	missing := f.missing()
	var who []string
	for _, m := range missing {
		if m.died && l.Redundancy.Behind > 0 || l.Redundancy.of(m.since) != "" {
			who = append(who, fmt.Sprint(m.number))
		}
	}

	if len(who) == 0 {
		return nil
	}

	total := f.total()
	partitions := "partition " + who[0] + " has"
	if len(who) > 1 {
		partitions = "partitions " + enumerate(who) + " have"
	}

	return &Problem{Kind: Redundancy, Severity: Warning,
		Text: fmt.Sprintf("%s no live instance: %d of %d partitions have one, and %d slots are served by an instance that stands in",
			partitions, total-len(missing), total, f.Slots.Adopted),
		Remedy: "start the instances that are missing; until then fewer can fail"}
}

// enumerate lists some words, at most five.
func enumerate(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}

	return strings.Join(all, ", ")
}

func (f *Fleet) adopted(l Limits) *Problem {
	n, longest := 0, Age(0)
	for i := range f.Slots.Each {
		s := &f.Slots.Each[i]
		if held := Age(max(0, f.At.Sub(s.Since))); s.Served && s.Adopted && l.Adopted.of(held) != "" {
			n++
			longest = max(longest, held)
		}
	}

	if n == 0 || f.redundancy(l) != nil { // which says why
		return nil
	}

	return &Problem{Kind: AdoptedSlots, Severity: l.Adopted.of(longest),
		Text: fmt.Sprintf("%d slots have been adopted for up to %s: the instance that prefers them does not take them", n,
			longest),
		Remedy: "look at its log, or start an instance for the missing partition"}
}

func (f *Fleet) mixed(l Limits) *Problem {
	severity := l.MixedTotals.Severity(f.youngest())
	if severity == "" || f.total() != 0 {
		return nil
	}

	return &Problem{Kind: MixedTotals, Severity: severity,
		Text:   "live instances disagree about TOTAL_PARTITIONS or PARTITION_STRATEGY, and no repartition is under way",
		Remedy: "give all instances the same values"}
}

// mixedSettings names the settings that would split the stream. A rolling change has them for a while,
// and is shown.
func (f *Fleet) mixedSettings(l Limits) *Problem {
	if !l.MixedSettings {
		return nil
	}

	differences := f.Differences()
	if len(differences) == 0 {
		return nil
	}

	texts := make([]string, len(differences))
	for i, d := range differences {
		texts[i] = d.String()
	}

	return &Problem{Kind: MixedSettings, Severity: Warning, Text: "live instances have different settings: " +
		strings.Join(texts, "; "),
		Remedy: "give all instances the same values, and take ALLOW_MIXED_SETTINGS back"}
}

// Differences are the settings that live instances have different values of, and that would split the stream.
func (f *Fleet) Differences() []partition.Difference {
	of := map[string]partition.Settings{}
	for i := range f.alive() {
		of[i.ID] = i.Settings
	}

	return slices.DeleteFunc(partition.Differences(of), func(d partition.Difference) bool { return !d.Stream })
}

// youngest is how long ago the live instance that started last did so.
func (f *Fleet) youngest() time.Duration {
	age := time.Duration(math.MaxInt64)
	for i := range f.alive() {
		age = min(age, f.At.Sub(i.Started))
	}

	return age
}

// total is the number of partitions that the live instances agree on; 0: they do not, or none is alive.
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
	died   bool // the last one that had it died; else it stopped, or there never was one
	since  Age  // of the death or the stop; of what never was, since the youngest instance started
}

// missing lists the partitions without a live instance; none while the live instances disagree about
// how many partitions there are.
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
			gaps = append(gaps, gap{number, false, Age(f.youngest())})
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
