package chaos

import (
	"encoding/json"
	"fmt"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
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

		args, err := json.Marshal(d.Args)
		if err != nil {
			return nil, err
		}

		at := fmt.Sprintf("%s:%d", d.TransactionHash, d.LogIndex)
		all = append(all, delivery{id: d.EventID, at: at, retracted: d.Retracted,
			content: asContent(d.EventType, d.Escrow, d.ContractAddress, at, args)})
	}

	return all, nil
}

func asContent(name, escrow, emitter, at string, args []byte) string {
	return fmt.Sprintf("%s of %s by %s in %s %s", name, escrow, emitter, at, args)
}

// contents are those that messages about a chain's events have to have, by transaction and log index.
func contents(truth *testchain.Truth) (map[string]string, error) {
	all := map[string]string{}
	for _, events := range truth.Events {
		for _, e := range events {
			values, err := e.Args()
			if err != nil {
				return nil, err
			}

			args, err := json.Marshal(values)
			if err != nil {
				return nil, err
			}

			all[e.ID] = asContent(e.Name, lower(e.Escrow), e.Log.Address.Hex(), e.ID, args)
		}
	}

	return all, nil
}

// compare holds what a consumer ends with against the chain: an event for an event, in order if that matters. It adds
// on an event and removes on its retraction, by event_id. How the two topics are interleaved makes no difference:
// identities sees to it that an id has one content, and is not published again after its retraction.
func compare(a *lab.Audit, order bool, events, retractions []delivery, contents map[string]string) (wrong []string) {
	if !order {
		a.Disordered = nil
	}

	const told = 20 // of as many as there are events, where an instance hangs
	for says, list := range map[string][]string{"a consumer lacks ": a.Missing,
		"a consumer has, and the chain does not: ": a.Unknown, "a consumer has out of order: ": a.Disordered} {
		for _, what := range list[:min(len(list), told)] {
			wrong = append(wrong, says+what)
		}
	}

	gone, ids := map[string]bool{}, map[string]string{}
	for _, r := range retractions {
		gone[r.id] = true
	}

	for _, e := range events {
		if gone[e.id] {
			continue
		}

		if want, known := contents[e.at]; known && want != e.content {
			wrong = append(wrong, fmt.Sprintf("a consumer has %s, the chain %s", e.content, want))
		}

		if id, before := ids[e.at]; before && id != e.id {
			wrong = append(wrong, fmt.Sprintf("a consumer has %s twice, as %s and %s", e.content, id, e.id))
		}

		ids[e.at] = e.id
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
