package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// escrowView is the answer to a search.
type escrowView struct {
	Query   string
	Problem string // why the rest is empty
	Address string
	Status  string
	Facts   []fact
	Events  []fleet.Event
	More    bool // events beyond those shown exist
}

func (p *page) escrow(e escrow, events []fleet.Event, slots []fleet.Slot) *escrowView {
	v := &escrowView{Query: e.Address, Address: e.Address, Status: e.Status, More: len(events) > timelineLimit}
	v.Events = events[:min(len(events), timelineLimit)]
	if int(e.Slot) < len(slots) { // else the fleet is not known yet
		v.owner(&slots[e.Slot])
	}

	v.add("Slot", fmt.Sprint(e.Slot), "", "")
	p.terms(v, &e)
	v.add("Discovered", "block "+count(e.DiscoveredBlock), stamp(e.DiscoveredAt), p.explorer.block(e.DiscoveredBlock))
	if !e.CaughtUp {
		v.add("Watched", "catching up, at block "+count(e.LastMonitored), "", "")
	}

	if e.EndedBlock != nil {
		v.add("Ended", "block "+count(*e.EndedBlock), "", p.explorer.block(*e.EndedBlock))
	}

	return v
}

// add adds a fact.
func (v *escrowView) add(name, value, title, link string) {
	v.Facts = append(v.Facts, fact{Name: name, Value: value, Title: title, Link: link})
}

// owner adds the instance that serves the escrow.
func (v *escrowView) owner(s *fleet.Slot) {
	switch {
	case s.Owner == "":
		v.add("Served by", "nobody", "", "")
	case !s.Served:
		v.add("Served by", "nobody: its owner "+s.Owner+" is dead", "", "")
	case s.Adopted:
		v.add("Served by", s.Owner+", which adopted it", "since "+stamp(s.Since), "")
	default:
		v.add("Served by", s.Owner, "since "+stamp(s.Since), "")
	}
}

// terms adds the parties, the amount and the progress.
func (p *page) terms(v *escrowView, e *escrow) {
	party := func(name string, address *string) {
		if address != nil {
			v.add(name, short(*address), *address, p.explorer.address(*address))
		}
	}
	amount := func(name string, wei *string) {
		if wei != nil {
			v.add(name, ether(*wei)+" ether", *wei+" wei", "")
		}
	}
	moment := func(name string, seconds *string) {
		if seconds != nil {
			v.add(name, unix(*seconds), "", "")
		}
	}
	party("Payer", e.Payer)
	party("Payee", e.Payee)
	party("Arbiter", e.Arbiter)
	amount("Amount", e.Amount)
	amount("Settled", e.Settled)
	moment("Settled at", e.SettledAt)
	if e.Approvals != nil {
		approvals := fmt.Sprint(*e.Approvals)
		if e.Required != nil {
			approvals += fmt.Sprintf(" of %d", *e.Required)
		}

		v.add("Approvals", approvals, "", "")
	}

	moment("Release from", e.ReleaseTime)
}

// args lists the arguments of an event in the order of the ABI.
func args(e explorer, raw json.RawMessage) []fact {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var out []fact
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}

	for dec.More() {
		name, err := dec.Token()
		var value any
		if err != nil || dec.Decode(&value) != nil {
			return out
		}

		text, ok := value.(string)
		if !ok {
			b, _ := json.Marshal(value) // it was decoded from JSON
			text = string(b)
		}

		f := fact{Name: fmt.Sprint(name), Value: readable(fmt.Sprint(name), text), Title: text}
		if isAddress(text) {
			f.Link = e.address(text)
		}

		out = append(out, f)
	}

	return out
}

// readable formats the arguments of the built-in ABI that have a known unit for people, and leaves the
// others unchanged.
func readable(name, text string) string {
	switch name {
	case "amount":
		return ether(text) + " ether"
	case "releaseTime", "timestamp":
		return unix(text)
	case "releaseDelay":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n < 1<<33 {
			return span(time.Duration(n) * time.Second)
		}
	}

	return short(text)
}
