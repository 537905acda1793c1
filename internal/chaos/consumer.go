package chaos

import (
	"fmt"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// delivery is what a consumer reads of a message.
type delivery struct {
	id, at    string // event_id; {tx_hash}:{log_index}
	content   string // all that the event says, without its block: a reorganisation may move it
	retracted bool
}

// deliveries reads the messages of a topic.
func deliveries(messages []testpubsub.Message) (all []delivery, err error) {
	for _, m := range messages {
		d, err := message.Decode(m.Data, m.Attributes)
		if err != nil {
			return nil, err
		}

		all = append(all, delivery{id: d.EventID, at: fmt.Sprintf("%s:%d", d.TransactionHash, d.LogIndex),
			retracted: d.Retracted, content: lab.Content(d)})
	}

	return all, nil
}

// lacks is what a consumer ends with that is not what the chain has, an event for an event, in order if that matters.
// It adds on an event and removes on its retraction, by event_id. How the two topics are interleaved makes no
// difference: identities sees to it that an id has one content, and is not published again after its retraction.
func lacks(a *lab.Audit, order bool) (wrong []string) {
	if !order {
		a.Disordered = nil
	}

	const told = 20 // of as many as there are events, where an instance hangs
	for says, list := range map[string][]string{"a consumer lacks ": a.Missing,
		"a consumer has, and the chain does not: ": a.Unknown, "a consumer has out of order: ": a.Disordered,
		"a consumer has ": a.Malformed} {
		for _, what := range list[:min(len(list), told)] {
			wrong = append(wrong, says+what)
		}
	}

	return wrong
}

// identities checks that an event_id has one content for ever, and is not published again after its
// retraction. The messages are those of both topics, in the order in which the server stored them.
func identities(stored []delivery) (wrong []string) {
	contents, published, retracted := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, m := range stored {
		if before, ok := contents[m.id]; ok && before != m.content {
			wrong = append(wrong, fmt.Sprintf("event_id %s was used for two contents: %s, and %s", m.id, before, m.content))
		}

		contents[m.id] = m.content
		switch {
		case !m.retracted && retracted[m.id]:
			wrong = append(wrong, fmt.Sprintf("published after its retraction: %s, %s", m.id, m.content))
		case m.retracted && !published[m.id]:
			wrong = append(wrong, fmt.Sprintf("retracted before it was published: %s, %s", m.id, m.content))
		case m.retracted:
			retracted[m.id] = true
		default:
			published[m.id] = true
		}
	}

	return wrong
}
