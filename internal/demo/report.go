package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// report says what came of it all.
func (s *scene) report(a *lab.Audit, c *commandsAudit, counts map[string]int) error {
	out := s.o.Out
	s.reportMessages()
	fmt.Fprintf(out, "\naudit     %s\n", a)
	s.reportGaps()
	fmt.Fprintf(out, "fleet     %d events were read a second time, after a takeover or by the verifier, and stored once\n",
		counts[suppressed])
	fmt.Fprintf(out, "          %d messages of a killed instance may have been sent before, and were sent again\n",
		counts[republished])
	if a.Exact() && !a.Clean() {
		fmt.Fprintln(out, "          what came twice was under way when the leader was killed: Pub/Sub had it, and the leader "+
			"could not note that any more.\n          Both have the same event_id: a consumer applies it once")
	}

	if c != nil {
		s.reportCommands(c)
	}

	switch {
	case !a.Clean():
		return ErrDirty
	case c != nil && !c.clean():
		return ErrCommands
	}

	fmt.Fprintln(out, "result    every event was published once, in order")
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

// reportGaps says what the loss of an instance cost.
func (s *scene) reportGaps() {
	out := s.o.Out
	for _, gap := range s.gaps(&s.leading) {
		fmt.Fprintf(out, "leader    %s: nobody led for %s, then %s (epoch %d)\n", gap.cause,
			gap.length.Round(time.Millisecond), gap.next, gap.epoch)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, gap := range s.slots.gaps {
		fmt.Fprintf(out, "slots     %s: up to %d unserved for %s\n", gap.cause, gap.slots, gap.length.Round(coverEvery/2))
	}

	if len(s.slots.gaps) > 0 {
		fmt.Fprintln(out, "          the events of an escrow wait while its slot is unserved. Nobody stands by here, so that the "+
			"others\n          wait for ADOPT_AFTER (5 s); a second instance with the same PARTITION_NUMBER takes over at once")
	}
}
