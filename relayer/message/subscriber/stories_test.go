package subscriber_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// go test ./relayer/message/subscriber -update writes the stories that all languages are tested with.
var update = flag.Bool("update", false, "rewrite ../testdata/stories.json")

const storiesFile = "../testdata/stories.json"

// story is what the relayer publishes about some events, and the orders in which it may arrive.
type story struct {
	Name     string    `json:"name"`
	Messages []arrival `json:"messages"`
	// Keep are the events of the chain, as chain_id/event_id, in the chain's order.
	Keep []string `json:"keep"`
	// InOrder: events arrive in the order of the chain, and again only together with what follows
	// them, as Pub/Sub delivers one ordering key. Then consumers apply them in that order too.
	InOrder bool `json:"in_order"`
	// Sequences are orders of arrival: each character is the index of a message, in base 36.
	Sequences []string `json:"sequences"`
}

// arrival is a message as a subscription gets it.
type arrival struct {
	Data       string            `json:"data"`
	Attributes map[string]string `json:"attributes"`
}

const digits = "0123456789abcdefghijklmnopqrstuvwxyz"

// teller makes the messages of a story.
type teller struct {
	t testing.TB
	story
	retractions []int // indices of messages; the others are of the topic of events
}

func (l *teller) say(kind message.Kind, chain int64, tx byte, index uint, occurrence int16) {
	l.tell(kind, chain, "Approved", `{"approver":"0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"}`, tx, index, occurrence)
}

func (l *teller) tell(kind message.Kind, chain int64, name, args string, tx byte, index uint, occurrence int16) {
	const escrow, factory = "0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29", "0x1F98431c8aD98523631AE4a59f267346ea31F984"
	emitter := escrow
	if name == "EscrowDeployed" {
		emitter = factory
	}

	e := &message.Event{
		Name: name, ContractAddress: emitter, Escrow: escrow,
		BlockNumber: 100 + uint64(tx), BlockTime: 1_795_238_400 + uint64(tx), BlockHash: [32]byte{0xb1, tx},
		TransactionHash: [32]byte{tx}, LogIndex: index, Occurrence: occurrence,
		Args: []byte(args),
	}
	body, attributes, err := message.Encode(kind, e, chain, time.Unix(1_795_240_000, 0))
	require.NoError(l.t, err)
	if kind == message.Retraction {
		l.retractions = append(l.retractions, len(l.Messages))
	}

	l.Messages = append(l.Messages, arrival{string(body), attributes})
}

// keep says that an event is of the chain.
func (l *teller) keep(chain int64, tx byte, index uint, occurrence int16) {
	l.Keep = append(l.Keep, fmt.Sprintf("%d/%s", chain, message.EventID([32]byte{tx}, index, occurrence)))
}

// small are stories whose every order of arrival is tried, with each message as often as times says.
func small(t testing.TB) (all []*teller) {
	tell := func(name string, times string, say func(*teller)) {
		l := &teller{t: t, story: story{Name: name, Keep: []string{}}}
		say(l)
		l.Sequences = permutations(times)
		all = append(all, l)
	}
	tell("an event", "000", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.keep(1, 1, 0, 0)
	})
	tell("an event that is retracted", "000111", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Retraction, 1, 1, 0, 0)
	})
	tell("a transaction that is mined again, with another log index", "001122", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Retraction, 1, 1, 0, 0)
		l.say(message.Original, 1, 1, 3, 0)
		l.keep(1, 1, 3, 0)
	})
	tell("a log index that comes back with another content, twice", "01234", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Retraction, 1, 1, 0, 0)
		l.say(message.Original, 1, 1, 0, 1)
		l.say(message.Retraction, 1, 1, 0, 1)
		l.say(message.Original, 1, 1, 0, 2)
		l.keep(1, 1, 0, 2)
	})
	tell("an event that is replayed", "000111", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Replay, 1, 1, 0, 0)
		l.keep(1, 1, 0, 0)
	})
	tell("an event that is replayed, and then retracted", "001122", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Replay, 1, 1, 0, 0)
		l.say(message.Retraction, 1, 1, 0, 0)
	})
	tell("an escrow of a factory of others, with an odd message and one without its arguments", "01234", func(l *teller) {
		l.tell(message.Original, 1, "EscrowDeployed", `{"id":"7","deal":"0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29"}`, 1, 0, 0)
		l.tell(message.Original, 1, "Noted", `{"text":"\u0000\ufffd","__proto__":"x","escrow":["mine"]}`, 2, 0, 0)
		l.tell(message.Original, 1, "Noted", `{"text":"`+strings.Repeat("a", message.MaxArgs)+`"}`, 3, 0, 0)
		l.tell(message.Retraction, 1, "Noted", `{"text":"`+strings.Repeat("a", message.MaxArgs)+`"}`, 3, 0, 0)
		l.tell(message.Original, 1, "EscrowReleased", `{"id":"7"}`, 4, 0, 0)
		l.keep(1, 1, 0, 0)
		l.keep(1, 2, 0, 0)
		l.keep(1, 4, 0, 0)
	})
	tell("one event id on two chains", "001122", func(l *teller) {
		l.say(message.Original, 1, 1, 0, 0)
		l.say(message.Original, 2, 1, 0, 0)
		l.say(message.Retraction, 1, 1, 0, 0)
		l.keep(2, 1, 0, 0)
	})

	return all
}

// permutations are the different orders of the characters.
func permutations(of string) []string {
	if of == "" {
		return []string{""}
	}

	var all []string
	for i := range of {
		if strings.Contains(of[:i], of[i:i+1]) {
			continue
		}

		for _, rest := range permutations(of[:i] + of[i+1:]) {
			all = append(all, of[i:i+1]+rest)
		}
	}

	return all
}

// large is a random story: events of two chains, of which reorganisations retract some, replays, and
// orders in which both topics arrive, each with redeliveries.
func large(t testing.TB, seed uint64) *teller {
	rnd := rand.New(rand.NewPCG(seed, 33))
	l := &teller{t: t, story: story{Name: fmt.Sprintf("seed %d", seed), InOrder: true, Keep: []string{}}}
	for tx := byte(1); len(l.Messages) < 24; tx++ {
		chain := int64(1 + rnd.IntN(2))
		index, occurrence := uint(rnd.IntN(3)), int16(0)
		for l.say(message.Original, chain, tx, index, occurrence); rnd.IntN(3) == 0 && occurrence < 3; {
			if rnd.IntN(3) == 0 {
				l.say(message.Replay, chain, tx, index, occurrence)
			}

			l.say(message.Retraction, chain, tx, index, occurrence)
			occurrence++
			l.say(message.Original, chain, tx, index, occurrence)
		}

		if rnd.IntN(4) == 0 {
			l.say(message.Replay, chain, tx, index, occurrence)
		}

		if rnd.IntN(5) == 0 { // and the transaction is never mined again
			l.say(message.Retraction, chain, tx, index, occurrence)
		} else {
			l.keep(chain, tx, index, occurrence)
		}
	}

	for range 8 {
		l.Sequences = append(l.Sequences, l.arrive(rnd))
	}

	return l
}

// arrive merges the two topics. Each may be far ahead of the other, and goes back now and then: what
// follows comes once more.
func (l *teller) arrive(rnd *rand.Rand) string {
	var topics [2][]int
	for i := range l.Messages {
		topic := 0
		if slices.Contains(l.retractions, i) {
			topic = 1
		}

		topics[topic] = append(topics[topic], i)
	}

	var b strings.Builder
	var at [2]int
	lean := rnd.Float64()
	for at[0] < len(topics[0]) || at[1] < len(topics[1]) {
		topic := 0
		if at[0] == len(topics[0]) || at[1] < len(topics[1]) && rnd.Float64() < lean {
			topic = 1
		}

		b.WriteByte(digits[topics[topic][at[topic]]])
		if at[topic]++; rnd.IntN(12) == 0 {
			at[topic] = rnd.IntN(at[topic])
		}
	}

	return b.String()
}

// The stories are a golden file: the consumers in Python and TypeScript read it.
func TestStoriesAreShared(t *testing.T) {
	var all []story
	for _, l := range small(t) {
		all = append(all, l.story)
	}

	for seed := range uint64(6) {
		all = append(all, large(t, seed).story)
	}

	got, err := json.MarshalIndent(all, "", "")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.WriteFile(storiesFile, got, 0o600))
	}

	want, err := os.ReadFile(storiesFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "go test ./relayer/message/subscriber -update")
}
