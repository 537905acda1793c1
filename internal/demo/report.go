package demo

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// report says what came of it all. An event may come twice: a relayer is killed in every demo.
func (s *scene) report() error {
	out := s.o.Out
	s.reportMessages()
	exact, twice := s.reportAudits()
	switch {
	case !exact:
		return ErrDirty
	case twice == 0:
		fmt.Fprintln(out, "result    every event was published once, in order")
	default:
		fmt.Fprintf(out, "result    every event was published, in order; %d came twice, with the same event_id, which a "+
			"consumer\n          applies once: a relayer was killed before it could note that Pub/Sub had them\n", twice)
	}

	fmt.Fprint(out, nextSteps)

	return nil
}

const nextSteps = `
next      make dev                      one relayer, a chain and Pub/Sub that stay: write a consumer against them
          README.md                     install, guarantees, configuration, operation
`

// reportAudits says for each chain what was published of it, and how many events came twice.
func (s *scene) reportAudits() (exact bool, twice int) {
	exact = true
	fmt.Fprintln(s.o.Out)
	for _, c := range s.chains {
		exact, twice = exact && c.audit.Exact(), twice+len(c.audit.Duplicated)
		verdict := "every event once, in order"
		switch {
		case !c.audit.Exact():
			verdict = "not what the chain has"
		case !c.audit.Clean():
			verdict = "every event, in order; some came twice, with the same event_id"
		}

		fmt.Fprintf(s.o.Out, "audit     chain %d: %s\n          %s\n", c.id, verdict, c.audit)
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
	show("one event, as a subscriber receives it:", s.lab.Received.Messages())
	show("one retraction, on the topic of its own:", s.lab.Retracted.Messages())
}
