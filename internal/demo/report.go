package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// report says what came of it all.
func (s *scene) report(c *commandsAudit, counts map[string]int) error {
	out := s.o.Out
	s.reportMessages()
	exact, twice := s.reportAudits()
	s.reportGaps()
	fmt.Fprintf(out, "fleet     %d events were read a second time, after a takeover or by the verifier, and stored once\n",
		counts[suppressed])
	fmt.Fprintf(out, "          %d messages of a killed instance may have been sent before, and were sent again\n",
		counts[republished])
	if c != nil {
		s.reportCommands(c)
	}

	switch {
	case !exact || twice > counts[republished]:
		return ErrDirty
	case c != nil && !c.clean():
		return ErrCommands
	case twice == 0:
		fmt.Fprintln(out, "result    every event was published once, in order")
	default:
		fmt.Fprintf(out, "result    every event was published, in order; %d came twice, with the same event_id, which a "+
			"consumer\n          applies once: a relayer was killed before it could note that Pub/Sub had them\n", twice)
	}

	if c != nil {
		fmt.Fprintln(out, "          no command took effect twice, and each has its answer")
	}

	fmt.Fprint(out, nextSteps)

	return nil
}

const nextSteps = `
next      make dev                      one relayer, a chain and Pub/Sub that stay: write a consumer against them
          make demo ARGS=--commands     the way back: signed commands, sent once
          README.md                     install, guarantees, configuration, operation
`

// reportAudits says for each chain and factory what a subscriber received of it, and how many events came twice.
func (s *scene) reportAudits() (exact bool, twice int) {
	exact = true
	fmt.Fprintln(s.o.Out)
	for _, c := range s.chains {
		exact, twice = exact && c.audit.Exact(), twice+len(c.audit.Duplicated)
		for _, of := range c.audit.Each {
			verdict := "every event once, in order"
			switch {
			case !of.Exact():
				verdict = "not what the chain has"
			case !of.Clean():
				verdict = "every event, in order; some came twice, with the same event_id"
			}

			fmt.Fprintf(s.o.Out, "audit     chain %d, factory %s: %s\n          %s\n", c.id, of.Factory, verdict, of)
		}

		// The audit of the chain finds more than those of its factories: messages that belong to none of them.
		if whole := len(c.audit.Unknown) + len(c.audit.Malformed); whole > 0 {
			fmt.Fprintf(s.o.Out, "audit     chain %d: not what the chain has\n          %s\n", c.id, c.audit)
		}
	}

	return exact, twice
}

// reportMessages prints one message of each kind.
func (s *scene) reportMessages() {
	show := func(what string, all []testpubsub.Message) {
		var pretty bytes.Buffer
		if len(all) == 0 || json.Indent(&pretty, all[len(all)-1].Data, "", "  ") != nil {
			return
		}

		fmt.Fprintf(s.o.Out, "\n%s\n%s\n", what, pretty.String())
	}
	show("one event, as the subscriber received it:", s.lab.Received.Messages())
	show("one retraction, on the topic of its own:", s.lab.Retracted.Messages())
}

// reportGaps says what the loss of an instance cost, and the past of a factory.
func (s *scene) reportGaps() {
	out := s.o.Out
	if s.added != "" {
		fmt.Fprintf(out, "factory   %s\n", s.added)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	waited := false
	for _, c := range s.chains {
		for _, gap := range c.leading.gaps {
			fmt.Fprintf(out, "leader    chain %d: %s: nobody led for %s, then %s (epoch %d)\n", c.id, gap.cause,
				gap.length.Round(time.Millisecond), gap.next, gap.epoch)
		}

		for _, gap := range c.slots.gaps {
			waited = true
			fmt.Fprintf(out, "slots     chain %d: %s: up to %d unserved for %s\n", c.id, gap.cause, gap.slots,
				gap.length.Round(coverEvery/2))
		}
	}

	if waited {
		fmt.Fprintln(out, "          the events of an escrow wait while its slot is unserved. Nobody stands by here, so that the "+
			"others\n          wait for ADOPT_AFTER (5 s); a second instance with the same PARTITION_NUMBER takes over at once")
	}
}
