package chaos

import (
	"fmt"
	"strconv"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// messages checks that a consumer that keeps a set of the two topics, by event_id, ends with exactly
// what the chain has, and that each message may come when it does. It adds on an event and removes on its
// retraction. How the two topics are interleaved makes no difference: an id has one content, and is not published
// again after its retraction.
func (r *run) messages(chain int64, truth *testchain.Truth, order bool, v *Verdict) {
	c := &consumer{v: v, deep: r.plan.Deep(), doubtful: r.doubtful(), known: map[string]*received{}}
	var events, retractions []testpubsub.Message // without replays
	for _, m := range r.tap.Messages() {         // what answers commands has no event_id
		if m.Attributes[message.AttrChainID] != strconv.FormatInt(chain, 10) || m.Attributes[message.AttrEventID] == "" {
			continue
		}

		retracts := m.Topic == testpubsub.TopicName(lab.Project, lab.Retractions)
		switch c.take(m, retracts); {
		case m.Attributes[message.AttrReplay] == "true":
		case retracts:
			retractions = append(retractions, m)
		default:
			events = append(events, m)
		}
	}

	audit := lab.Compare(truth, events, retractions)
	v.Events, v.Messages = v.Events+audit.Emitted, v.Messages+len(events)
	if !order {
		audit.Disordered = nil
	}

	const told = 20 // of as many as there are events, where an instance hangs
	for says, list := range map[string][]string{"a consumer lacks ": audit.Missing,
		"a consumer has, and the chain does not: ": audit.Unknown, "a consumer has out of order: ": audit.Disordered,
		"a consumer has ": audit.Malformed} {
		for _, what := range list[:min(len(list), told)] {
			v.wrong("%s%s", says, what)
		}
	}
}

// consumer takes the messages of both topics in the order in which the server stored them.
type consumer struct {
	v              *Verdict
	deep, doubtful bool // the plan goes deeper than the confirmations; a message may come twice
	known          map[string]*received
}

// received is what is known of an event_id.
type received struct {
	content           string // all that the event says, without its block: a reorganisation may move it
	events, retracted int    // messages
}

// take is one message. A reorganisation deeper than the confirmations may repeat what it removes (G2 of
// relayer/README.md), and only such a one has anything retracted, or named otherwise than by its place.
func (c *consumer) take(m testpubsub.Message, retracts bool) {
	d, err := message.Decode(m.Data, m.Attributes)
	if err != nil {
		c.v.wrong("a message that is none: %v", err)
		return
	}

	at, content := fmt.Sprintf("%s:%d", d.TransactionHash, d.LogIndex), lab.Content(d)
	k := c.known[d.EventID]
	if k == nil {
		k = &received{content: content}
		c.known[d.EventID] = k
	}

	if m.Attributes[message.AttrReplay] == "true" {
		if k.events == 0 {
			c.v.wrong("published again, and not before: %s", d.EventID)
		}

		return
	}

	again := k.events > 0 && !c.deep
	if retracts {
		again = k.retracted > 0
		k.retracted++
	} else {
		k.events++
	}

	for says, is := range map[string]bool{
		"on the other topic":                                       d.Retracted != retracts,
		"used for two contents":                                    k.content != content,
		"published after its retraction":                           !retracts && k.retracted > 0,
		"retracted before it was published":                        retracts && k.events == 0,
		"twice on a topic, without a fault that explains it":       again && !c.doubtful,
		"retracted, without a deep reorganisation":                 retracts && !c.deep,
		"not {tx_hash}:{log_index}, without a deep reorganisation": d.EventID != at && !c.deep,
	} {
		if is {
			c.v.wrong("an event_id that is %s: %s, %s (before: %s)", says, d.EventID, content, k.content)
		}
	}
}
