package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// view is the templates' data, already formatted and judged.
type view struct {
	Title     string
	Chain     int64
	Several   bool // the process follows other chains too
	Now       time.Time
	Self      self
	Read      string // when the fleet was read; empty: never, so it is unknown
	Verdict   verdict
	Figures   []figure
	Fleet     fleetView
	Facts     []fact
	Endpoints []endpointView
	Events    []fleet.Event
	Senders   []fleet.Sender  // empty on a chain without commands
	Commands  []fleet.Command // the same
	Escrow    *escrowView     // the result of a search
	CSS, JS   any             // set by the page
}

type self struct {
	ID, Partition, Version, Up string
}

// verdict is the answer to "is all well?".
type verdict struct {
	Level    string // well, notice, warning, critical; a class of page.css
	Mark     string // the level as a shape, independent of colours
	Headline string
	Problems []problemView
}

type problemView struct{ Level, Mark, Name, Text, Remedy, Runbook string }

// marks are the shapes of the levels of verdicts and problems.
var marks = map[string]struct{ mark, name string }{
	"critical": {"✕", "Critical"},
	"warning":  {"▲", "Warning"},
	"notice":   {"◐", "Note"},
	"well":     {"●", "Well"},
}

// figure is a quantity with its past.
type figure struct {
	Name  string
	Past  string // the time shown
	Value string
	Unit  string
	Notes []fact
	Plot  plot
}

// fact is a value with its name. Key is the class of the line that shows it in a plot.
type fact struct{ Name, Value, Title, Link, Key string }

type fleetView struct {
	At      time.Time // of the snapshot
	Summary string
	Slots   string // how many are served
	Rows    []row
}

// row is an instance.
type row struct {
	*fleet.Instance
	Self           bool
	Processed, Lag string
	HeartbeatLate  bool
}

type endpointView struct {
	fleet.Endpoint
	Behind string // how many blocks, if it is slow
	Failed string // how long ago LastError was, if there is one
}

const (
	// slowEndpoint is the lag in blocks from which an endpoint is marked: endpoints learn of a
	// block at different times.
	slowEndpoint = 3
)

// show creates a view of the current state.
func (p *page) show(n *fleet.Reading, i *fleet.Self, samples []sample, now time.Time) *view {
	v := &view{
		Chain: p.chainID, Several: p.several, Now: now,
		Self: self{
			ID: cmp.Or(i.ID, "starting"), Partition: i.Partition.String(), Version: i.Build.String(),
			Up: span(now.Sub(i.Started)),
		},
		Verdict: p.judge(n, i, now), Figures: figures(n, i, newPast(samples, now)), Facts: p.facts(n, i),
		Endpoints: endpoints(i, now), Events: n.Fleet.Events,
	}
	if i.Started.IsZero() {
		v.Self.Up = "–"
	}

	if !n.At.IsZero() {
		v.Read = clock(n.At)
		v.Fleet = fleetOf(n, i)
		if n.Err != nil {
			v.Fleet.Summary = "As of " + v.Read + " UTC: " + v.Fleet.Summary
		}

		v.Senders, v.Commands = n.Fleet.Senders, n.Fleet.Commands
	}

	v.Title = v.Verdict.Mark + " " + v.Self.ID + " · escrow relayer"

	return v
}

// judge is the verdict on what this instance and the fleet's rows show.
func (p *page) judge(n *fleet.Reading, i *fleet.Self, now time.Time) verdict {
	sight := fleet.Sight{Read: n, Self: i, Now: now}
	v := verdict{Level: "well", Headline: "All well"}
	if n.At.IsZero() {
		v.Headline = "Starting"
	}

	problems := sight.Judge()
	for _, q := range problems {
		level := string(q.Severity)
		m := marks[level]
		v.Problems = append(v.Problems, problemView{level, m.mark, m.name, sentence(p.mask(q.Text)), p.mask(q.Remedy),
			q.Runbook})
	}

	if len(problems) > 0 {
		v.Level, v.Headline = string(problems[0].Severity), fleet.Headline(problems)
	}

	v.Mark = marks[v.Level].mark

	return v
}

func figures(n *fleet.Reading, i *fleet.Self, p past) []figure {
	f := &n.Fleet
	lagNotes := []fact{{Name: "Behind head", Value: "–"}}
	if i.Cursor > 0 && i.Head > 0 {
		lagNotes[0].Value = plural(max(0, i.Head-i.Cursor+1), "block", "blocks")
	}

	if t := i.LagTime(); t > 0 {
		lagNotes = append(lagNotes, fact{Name: "In time", Value: span(t)})
	}

	processed := int64(0)
	if i.Cursor > 0 {
		processed = i.Cursor - 1
	}

	if !i.TargetTime.IsZero() {
		lagNotes = append(lagNotes, fact{Name: "Age of the target", Value: span(p.now.Sub(i.TargetTime))})
	}

	messages, late := count(f.Outbox.Messages), count(f.Late.Escrows)
	switch {
	case n.At.IsZero():
		messages, late = "–", "–"
	case f.Outbox.More:
		messages = "≥ " + messages
	}

	lag := "–"
	if i.Cursor > 0 && i.Target > 0 {
		lag = count(i.Lag())
	}

	out := []figure{
		{Name: "Processed", Value: known(processed), Unit: "block", Plot: p.heights(),
			Notes: []fact{{Name: "Target", Value: known(i.Target), Key: "target"},
				{Name: "Head", Value: known(i.Head), Key: "head"}}},
		{Name: "Lag", Value: lag, Unit: "blocks to target", Plot: p.amount("Lag", blocks, lagOf), Notes: lagNotes},
		{Name: "Outbox", Value: messages, Unit: "messages in the fleet",
			Plot: p.amount("Messages in the outbox", number, outboxOf),
			Notes: []fact{{Name: "In flight here", Value: count(i.InFlight)},
				{Name: "Blocked keys", Value: count(i.BlockedKeys)}}},
		{Name: "Oldest message", Value: age(f.Outbox.OldestAge),
			Plot: p.amount("Age of the oldest message", seconds, oldestOf),
			Notes: []fact{{Name: "Late escrows", Value: late},
				{Name: "Oldest late", Value: age(f.Late.OldestAge)}}},
	}
	for n := range out {
		out[n].Past = p.name
	}

	return out
}

// age is a dash without a value.
func age(a fleet.Age) string {
	if a == 0 {
		return "–"
	}

	return a.String()
}

func blocks(v float64) string  { return plural(int64(v), "block", "blocks") }
func number(v float64) string  { return count(int64(math.Round(v))) }
func seconds(v float64) string { return span(time.Duration(v * float64(time.Second))) }

func fleetOf(n *fleet.Reading, i *fleet.Self) fleetView {
	f := &n.Fleet
	alive := " No instance is alive." // all have stopped cleanly: none is expected
	if f.Expected() > 0 {
		alive = fmt.Sprintf(" %d of %s alive.", f.Live(), plural(f.Expected(), "instance", "instances"))
	}

	v := fleetView{At: f.At, Summary: leaderLine(f) + alive}
	s := &f.Slots
	v.Slots = fmt.Sprintf("%s of %s slots served, %s of them adopted; %s of a dead owner, %s free.", count(s.Served),
		count(s.Total), count(s.Adopted), count(s.Dead), count(s.Free))
	for k := range f.Instances {
		in := &f.Instances[k]
		r := row{Instance: in, Self: in.ID == i.ID, Processed: "–", Lag: "–",
			HeartbeatLate: in.Alive && fleet.LimitHeartbeat.Of(in.HeartbeatAge) != ""}
		if in.Cursor > 0 && in.Slots > 0 {
			r.Processed = count(in.Cursor - 1)
			if i.Target > 0 {
				r.Lag = count(max(0, i.Target-in.Cursor+1))
			}
		}

		v.Rows = append(v.Rows, r)
	}

	return v
}

func leaderLine(f *fleet.Fleet) string {
	l := &f.Leader
	switch {
	case l.Valid:
		return fmt.Sprintf("%s has led for %s, heartbeat %s ago.", l.Instance, span(f.At.Sub(l.Since)),
			span(time.Duration(l.HeartbeatAge)))
	case l.Held:
		return "A new leader is taking over."
	case l.Instance == "":
		return "There has never been a leader."
	}

	return fmt.Sprintf("No leader; the last was %s, heard of %s ago.", l.Instance, span(time.Duration(l.HeartbeatAge)))
}

// mark is the shape of the state of an instance, an endpoint or a sender, independent of colours.
func mark(state any) string {
	switch fmt.Sprint(state) {
	case "serving", "up", "active":
		return "●"
	case "standby":
		return "○"
	case "stopping", "paused":
		return "◐"
	case "stopped", "replaced":
		return "□"
	}

	return "✕"
}

func (p *page) facts(n *fleet.Reading, i *fleet.Self) []fact {
	f := &n.Fleet
	behind := func(next int64) string {
		if next == 0 {
			return "–"
		}

		return count(next - 1)
	}
	facts := []fact{
		{Name: "Escrows registered", Value: count(f.Escrows.Registered()),
			Title: "deployed up to the block that the factory watch has passed; counted every 30 s"},
		{Name: "of which active", Value: count(f.Escrows.Active)},
		{Name: "of which released", Value: count(f.Escrows.Released)},
		{Name: "of which refunded", Value: count(f.Escrows.Refunded)},
		{Name: "Stored everywhere up to", Value: behind(f.Chain.LowestCursor), Title: "the lowest cursor of any slot"},
		{Name: "Factory watched up to", Value: behind(f.Chain.FactoryCursor)},
		{Name: "Verified up to", Value: known(f.Chain.Verified), Title: "everything up to it was read twice"},
		{Name: "Final", Value: known(i.Final)},
		{Name: "Elections", Value: count(f.Leader.Epoch)},
		{Name: "Start block", Value: count(f.Chain.Start)},
	}
	for address := range strings.SplitSeq(f.Chain.Factory, ",") {
		facts = append(facts, fact{Name: "Factory", Value: short(address), Title: address,
			Link: p.explorer.address(address)})
	}

	if f.Escrows.Orphaned > 0 {
		facts = slices.Insert(facts, 4, fact{Name: "Orphaned", Value: count(f.Escrows.Orphaned),
			Title: "their deployment was taken back by a reorganisation"})
	}

	for k := range facts {
		if n.At.IsZero() && facts[k].Name != "Final" { // unknown is not zero
			facts[k].Value = "–"
		}
	}

	return facts
}

func endpoints(i *fleet.Self, now time.Time) (all []endpointView) {
	for _, e := range i.Endpoints {
		v := endpointView{Endpoint: e}
		if e.Head > 0 && e.Head < i.Head-slowEndpoint {
			v.Behind = count(i.Head-e.Head) + " behind"
		}

		if e.LastError != "" {
			v.Failed = span(now.Sub(e.LastErrorAt)) + " ago"
		}

		all = append(all, v)
	}

	return all
}
