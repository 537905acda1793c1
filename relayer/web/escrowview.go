package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// escrowView is the answer to a search.
type escrowView struct {
	Query   string
	Problem string // why the rest is empty
	Address string
	Status  string
	Facts   []fact
	Events  []event
	More    bool // events beyond those shown exist
}

func (p *page) escrow(d *escrowDetail) *escrowView {
	v := &escrowView{Query: d.Address, Address: d.Address, Status: d.Status,
		Events: d.Events, More: d.More}
	if d.Record != nil && d.Record.Status != d.Status {
		v.Status = d.Record.Status
	}

	v.owner(d.Owner)
	v.add("Slot", fmt.Sprint(d.Slot), "", "")
	p.terms(v, d)
	v.add("Discovered", "block "+count(d.DiscoveredBlock), stamp(d.DiscoveredAt), p.explorer.block(d.DiscoveredBlock))
	if !d.CaughtUp {
		v.add("Watched", "catching up, at block "+count(d.LastMonitored), "", "")
	}

	if d.EndedBlock != nil {
		v.add("Ended", "block "+count(*d.EndedBlock), "", p.explorer.block(*d.EndedBlock))
	}

	return v
}

// add adds a fact with a value.
func (v *escrowView) add(name, value, title, link string) {
	if value != "" {
		v.Facts = append(v.Facts, fact{Name: name, Value: value, Title: title, Link: link})
	}
}

// owner adds the instance that serves the escrow.
func (v *escrowView) owner(o *owner) {
	switch {
	case o == nil:
		v.add("Served by", "nobody", "", "")
	case !o.Served:
		v.add("Served by", "nobody: its owner "+o.Instance+" is dead", "", "")
	case o.Adopted:
		v.add("Served by", o.Instance+", which adopted it", "since "+stamp(o.Since), "")
	default:
		v.add("Served by", o.Instance, "since "+stamp(o.Since), "")
	}
}

// terms adds the parties, the amount and the progress.
func (p *page) terms(v *escrowView, d *escrowDetail) {
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
	party("Payer", d.Payer)
	party("Payee", d.Payee)
	r := d.Record
	if r != nil {
		party("Arbiter", r.Arbiter)
	}

	amount("Amount", d.Amount)
	if r == nil {
		return
	}

	amount("Settled", r.SettledAmount)
	if r.SettledAt != nil {
		v.add("Settled at", unix(*r.SettledAt), "", "")
	}

	approvals := fmt.Sprint(r.Approvals)
	if r.ApprovalsRequired != nil {
		approvals += fmt.Sprintf(" of %d", *r.ApprovalsRequired)
	}

	v.add("Approvals", approvals, "", "")
	if r.ReleaseTime != nil {
		v.add("Release from", unix(*r.ReleaseTime), "", "")
	}
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
		if _, is := normalize(text); is {
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
