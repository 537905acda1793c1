package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// delivery is what a consumer reads of a message.
type delivery struct {
	id        string
	escrow    string
	content   string // all that the event says, without its block: a reorganisation may move it
	retracted bool
	plain     bool // the id is {tx_hash}:{log_index}
}

// decode reads a message.
func decode(m testpubsub.Message) (delivery, error) {
	d, err := message.Decode(m.Data, m.Attributes)
	if err != nil {
		return delivery{}, err
	}

	args, err := json.Marshal(d.Args)
	if err != nil {
		return delivery{}, err
	}

	return delivery{
		id: d.EventID, escrow: d.Escrow, retracted: d.Retracted,
		plain:   d.EventID == fmt.Sprintf("%s:%d", d.TransactionHash, d.LogIndex),
		content: asContent(d.EventType, d.Escrow, d.ContractAddress, d.TransactionHash, d.LogIndex, args),
	}, nil
}

func asContent(name, escrow, emitter, tx string, index uint64, args []byte) string {
	return fmt.Sprintf("%s of %s by %s in %s:%d %s", name, escrow, emitter, tx, index, args)
}

// contentOf is the content that a message about an event of the chain has to have.
func contentOf(e testchain.Entry) (string, error) {
	values, err := e.Args()
	if err != nil {
		return "", err
	}

	args, err := json.Marshal(values)

	return asContent(e.Name, lower(e.Escrow), e.Log.Address.Hex(), e.Log.TxHash.Hex(),
		uint64(e.Log.Index), args), err
}

// canonical are the contents that a consumer has to end with, by escrow, in order: EscrowDeployed
// first, then as on the chain.
func canonical(truth *testchain.Truth) (map[string][]string, error) {
	want := map[string][]string{}
	for _, address := range truth.Escrows {
		escrow := lower(address)
		for _, e := range truth.Events[address] {
			content, err := contentOf(e)
			switch {
			case err != nil:
				return nil, err
			case e.Name == "EscrowDeployed":
				want[escrow] = append([]string{content}, want[escrow]...)
			case lab.Published(e.Name):
				want[escrow] = append(want[escrow], content)
			}
		}
	}

	return want, nil
}

// set is a consumer that adds on an event and removes on its retraction, by event_id. With
// tombstones it does not add what was retracted before.
type set struct {
	tombstones bool
	held       map[string]delivery
	order      []string // ids, by first arrival since they were last removed
	gone       map[string]bool
}

func newSet(tombstones bool) *set {
	return &set{tombstones: tombstones, held: map[string]delivery{}, gone: map[string]bool{}}
}

func (s *set) take(t delivery) {
	_, has := s.held[t.id]
	switch {
	case t.retracted:
		s.gone[t.id] = true
		if has {
			delete(s.held, t.id)
			s.order = slices.DeleteFunc(s.order, func(id string) bool { return id == t.id })
		}
	case !has && (!s.tombstones || !s.gone[t.id]):
		s.held[t.id] = t
		s.order = append(s.order, t.id)
	}
}

// contents by escrow, in the order in which they came.
func (s *set) contents() map[string][]string {
	m := map[string][]string{}
	for _, id := range s.order {
		t := s.held[id]
		m[t.escrow] = append(m[t.escrow], t.content)
	}

	return m
}

// differences between what a consumer ends with and what it should, and in the order if that matters.
func differences(got, want map[string][]string, order bool) (wrong []string) {
	for escrow, w := range want {
		g := got[escrow]
		missing, more := minus(w, g), minus(g, w)
		for _, c := range missing {
			wrong = append(wrong, "a consumer lacks "+c)
		}

		for _, c := range more {
			wrong = append(wrong, "a consumer has, and the chain does not, or not twice: "+c)
		}

		if order && len(missing)+len(more) == 0 && !slices.Equal(g, w) {
			wrong = append(wrong, fmt.Sprintf("a consumer has out of order: %s", strings.Join(g, "\n    ")))
		}
	}

	for escrow, g := range got {
		if _, ok := want[escrow]; !ok {
			wrong = append(wrong, fmt.Sprintf("a consumer has events of an escrow that the chain does not have: %v", g))
		}
	}

	slices.Sort(wrong)

	return wrong
}

// minus is what a has and b does not; what a has more often than b is in it as often as the difference.
func minus(a, b []string) (rest []string) {
	n := map[string]int{}
	for _, x := range b {
		n[x]++
	}

	for _, x := range a {
		if n[x]--; n[x] < 0 {
			rest = append(rest, x)
		}
	}

	return rest
}

// interleavings is how many random interleavings of the two topics are tried.
const interleavings = 8

// consume lets consumers take the deliveries of the two topics, in many interleavings, and says where
// they end with something else than wanted. A consumer without tombstones gets each retraction after
// its event, as it would from one topic; one with tombstones gets both topics in any order.
func consume(events, retractions []delivery, want map[string][]string, order bool, random *rand.Rand) []string {
	left := map[string]int{} // publications that have not come yet
	for n := range interleavings {
		tombstones := n%2 == 0
		s := newSet(tombstones)
		clear(left)
		for _, e := range events {
			left[e.id]++
		}

		i, j := 0, 0
		lean := random.Float64() // one topic may be far ahead of the other
		for i < len(events) || j < len(retractions) {
			early := j < len(retractions) && !tombstones && left[retractions[j].id] > 0
			if j == len(retractions) || i < len(events) && (early || random.Float64() < lean) {
				left[events[i].id]--
				s.take(events[i])
				i++

				continue
			}

			s.take(retractions[j])
			j++
		}

		if wrong := differences(s.contents(), want, order); len(wrong) > 0 {
			const told = 20 // of as many as there are events, where an instance hangs
			return append([]string{fmt.Sprintf("a consumer's set is not the chain's (interleaving %d, tombstones %v): %d differences",
				n, tombstones, len(wrong))}, wrong[:min(len(wrong), told)]...)
		}
	}

	return nil
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
