package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// senderView is an account that commands act through.
type senderView struct {
	Name, Address, Short, Link string
	State, Mark, Reason        string
	Served                     string // by whom
	Unserved                   bool
	Nonce, InFlight, Waiting   string
	Balance                    string
	Low                        bool
	Fees, Value                string // spent today, of the limit
}

// commandView is one of the last commands.
type commandView struct {
	ID, Short, Kind, Reference        string
	State, Tone, Code, Detail         string
	Sender, Escrow, EscrowShort       string
	Nonce, Age, Way, Tx, TxShort, URL string
}

// senders shows the accounts; none where commands were never used.
func (p *page) senders(f *fleet.Fleet) (all []senderView) {
	for i := range f.Senders {
		s := &f.Senders[i]
		v := senderView{
			Name: s.Label(), Address: s.Address, Short: short(s.Address), Link: p.explorer.address(s.Address),
			State: s.State, Mark: "●", Reason: p.mask(s.Reason), Served: s.Instance, Unserved: !s.Served,
			Nonce: "–", InFlight: fmt.Sprintf("%d/%d", s.InFlight, s.MaxInFlight), Waiting: count(s.Waiting),
			Balance: "–", Low: s.Low(), Fees: coarse(s.SpentFees) + " of " + coarse(s.DayFees),
			Value: coarse(s.SpentValue) + " of " + coarse(s.DayValue),
		}
		if s.Name == "" || s.Name == s.Address {
			v.Name = v.Short
		}

		switch s.State {
		case "halted":
			v.Mark = "✕"
		case "paused":
			v.Mark = "◐"
		}

		if s.NextNonce != nil {
			v.Nonce = count(*s.NextNonce)
		}

		if s.Balance != "" {
			v.Balance = coarse(s.Balance)
		}

		all = append(all, v)
	}

	return all
}

// commands shows the last commands and how far each has come.
func (p *page) commands(f *fleet.Fleet) (all []commandView) {
	names := map[string]string{}
	for i := range f.Senders {
		names[f.Senders[i].Address] = f.Senders[i].Label()
	}

	for i := range f.Commands {
		c := &f.Commands[i]
		v := commandView{
			ID: c.ID, Short: short(c.ID), Kind: c.Kind, Reference: c.Reference, State: strings.ReplaceAll(c.State, "_", " "),
			Tone: tone(c.State), Code: c.Code, Detail: p.mask(c.Detail), Sender: short(c.Sender), Escrow: c.Escrow,
			EscrowShort: short(c.Escrow), Nonce: "–", Age: span(f.At.Sub(c.Received)), Way: way(c),
			Tx: c.Transaction, TxShort: short(c.Transaction), URL: p.explorer.tx(c.Transaction),
		}
		if name := names[c.Sender]; name != "" && name != c.Sender {
			v.Sender = name
		}

		if c.Nonce != nil {
			v.Nonce = count(*c.Nonce)
		}

		all = append(all, v)
	}

	return all
}

// tone is a class of page.css for how a command ended; none while it has not.
func tone(state string) string {
	switch state {
	case "done", "already":
		return "up"
	case "done_late", "voided", "cancelled", "expired":
		return "stopping"
	case "reverted", "superseded", "refused":
		return "dead"
	}

	return ""
}

// way says when a command passed its steps, counted from when it came in.
func way(c *fleet.Command) string {
	var steps []string
	add := func(name string, at *time.Time) {
		if at != nil {
			steps = append(steps, name+" "+brief(at.Sub(c.Received)))
		}
	}
	add("nonce", c.Assigned)
	add("signed", c.Sent)
	if c.Attempts > 1 {
		steps = append(steps, fmt.Sprintf("%d transactions", c.Attempts))
	}

	add("answered", c.Answered)
	if len(steps) == 0 {
		return "waits"
	}

	return strings.Join(steps, " · ")
}

// brief is span with milliseconds below ten seconds.
func brief(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2fs", max(d, 0).Seconds())
	}

	return span(d)
}

// coarse is an amount of wei in ether with at most six decimals: an operator compares, and the exact
// amount is in the API. What is less than the last of them, and not nothing, says so.
func coarse(wei string) string {
	exact := ether(wei)
	whole, fraction, _ := strings.Cut(exact, ".")
	const decimals = 6
	if len(fraction) <= decimals {
		return exact
	}

	fraction = strings.TrimRight(fraction[:decimals], "0")
	switch {
	case fraction != "":
		return whole + "." + fraction
	case whole == "0":
		return "< 0.000001"
	}

	return whole
}
