package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// SenderOf is the name of an account, or enough of its address to recognise it.
func (v *view) SenderOf(address string) string {
	for i := range v.Senders {
		if s := &v.Senders[i]; s.Address == address && s.Name != "" && s.Name != address {
			return s.Name
		}
	}

	return short(address)
}

// tone is a class of page.css for the outcome of a command; empty for an open one.
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

// way lists the steps of a command, with their times since it was received.
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

// coarse formats wei in ether with at most six decimals: an operator compares, and the exact amount
// is in the API. A smaller positive amount is shown as such.
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
