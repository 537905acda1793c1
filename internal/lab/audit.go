package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Audit compares what the chain has with what was published.
type Audit struct {
	Escrows    int
	Emitted    int // events on the chain, of the names that are published
	Received   int // messages
	Retracted  int // event ids that were taken back: they count as if they had never come
	Missing    []string
	Duplicated []string // event ids received more than once
	Unknown    []string // event ids that the chain does not have
	Disordered []string // escrows whose first deliveries are not in the order of the chain
	Malformed  []string
	Factory    common.Address // zero: every one of the chain
	Each       []*Audit       // by factory: a message counts for the one that it names
}

// Clean says that nothing is missing, duplicated, unknown, out of order or malformed.
func (a *Audit) Clean() bool { return a.Exact() && len(a.Duplicated) == 0 }

// Exact is Clean, duplicates allowed: what a crash between acknowledgement and deletion may leave.
func (a *Audit) Exact() bool {
	return len(a.Missing)+len(a.Unknown)+len(a.Disordered)+len(a.Malformed) == 0 &&
		!slices.ContainsFunc(a.Each, func(of *Audit) bool { return !of.Exact() })
}

func (a *Audit) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "escrows %d, emitted %d, received %d, retracted %d, missing %d, duplicated %d, unknown %d, "+
		"out of order %d, malformed %d", a.Escrows, a.Emitted, a.Received, a.Retracted, len(a.Missing), len(a.Duplicated),
		len(a.Unknown), len(a.Disordered), len(a.Malformed))
	for _, list := range []struct {
		what string
		of   []string
	}{{"missing", a.Missing}, {"duplicated", a.Duplicated}, {"unknown", a.Unknown}, {"out of order", a.Disordered},
		{"malformed", a.Malformed}} {
		for _, x := range list.of[:min(len(list.of), 5)] {
			fmt.Fprintf(&b, "\n  %s: %s", list.what, x)
		}
	}

	for _, of := range a.Each {
		if len(a.Each) > 1 || !of.Exact() {
			fmt.Fprintf(&b, "\n  of factory %s: %s", of.Factory, of)
		}
	}

	return b.String()
}

// Published says which events the lab's relayers publish.
func Published(name string) bool { return slices.Contains(contract.DefaultEvents, name) }

// Expected is what subscribers have to receive of an escrow, in order: EscrowDeployed first, then as on the chain.
func Expected(t *testchain.Truth, escrow common.Address) (ids []string) {
	for _, e := range t.Events[escrow] {
		switch {
		case e.Name == "EscrowDeployed":
			ids = append([]string{e.ID}, ids...)
		case Published(e.Name):
			ids = append(ids, e.ID)
		}
	}

	return ids
}

// Compare audits messages against the truth. An event is known by its transaction and log index,
// which is its event_id unless a reorganisation has made that ambiguous. What was retracted never happened.
func Compare(t *testchain.Truth, received, retractions []testpubsub.Message) *Audit {
	a := &Audit{Escrows: len(t.Escrows), Received: len(received)}
	retracted := map[string]bool{}
	for _, m := range retractions {
		retracted[m.Attributes[message.AttrEventID]] = true
	}

	a.Retracted = len(retracted)
	seen := map[string]int{}
	order := map[string][]string{} // first deliveries by escrow
	for _, m := range received {
		if retracted[m.Attributes[message.AttrEventID]] {
			continue
		}

		decoded, err := message.Decode(m.Data, m.Attributes)
		if err != nil {
			a.Malformed = append(a.Malformed, err.Error())
			continue
		}

		id, escrow := fmt.Sprintf("%s:%d", decoded.TransactionHash, decoded.LogIndex), decoded.Escrow
		if seen[id]++; seen[id] == 1 {
			order[escrow] = append(order[escrow], id)
		} else if seen[id] == 2 {
			a.Duplicated = append(a.Duplicated, id)
		}
	}

	expected := map[string]bool{}
	for _, escrow := range t.Escrows {
		want := Expected(t, escrow)
		a.Emitted += len(want)
		for _, id := range want {
			expected[id] = true
			if seen[id] == 0 {
				a.Missing = append(a.Missing, id)
			}
		}

		got := slices.DeleteFunc(slices.Clone(order[strings.ToLower(escrow.Hex())]),
			func(id string) bool { return !slices.Contains(want, id) })
		present := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return seen[id] == 0 })
		if !slices.Equal(got, present) {
			a.Disordered = append(a.Disordered, fmt.Sprintf("%s: received %v, want %v", escrow, got, present))
		}
	}

	for id := range seen {
		if !expected[id] {
			a.Unknown = append(a.Unknown, id)
		}
	}

	return a
}

// eachFactory compares for each factory by itself.
func (a *Audit) eachFactory(factories []common.Address, t *testchain.Truth,
	received, retractions []testpubsub.Message) {
	for _, f := range factories {
		others := func(m testpubsub.Message) bool {
			return m.Attributes[message.AttrFactory] != strings.ToLower(f.Hex())
		}
		of := Compare(t.Of(f), slices.DeleteFunc(slices.Clone(received), others),
			slices.DeleteFunc(slices.Clone(retractions), others))
		of.Factory = f
		a.Each = append(a.Each, of)
	}
}

// Truth reads what the followed factories and their escrows did, up to what the relayers may process.
func (l *Lab) Truth(ctx context.Context, to uint64) (*testchain.Truth, error) {
	return testchain.ReadTruth(ctx, l.Chain.HTTP(), l.Contracts.Block, to, l.Factories...)
}

// Audit waits until everything up to a block has been received and everything else was retracted, or ctx ends,
// and compares. Nothing must be mined meanwhile that relayers may process.
func (l *Lab) Audit(ctx context.Context, to uint64) (*Audit, error) {
	truth, err := l.Truth(ctx, to)
	if err != nil {
		return nil, err
	}

	var a *Audit
	var received, retractions []testpubsub.Message
	_ = Until(ctx, 100*time.Millisecond, "the messages", func() bool { // what has not come is in the audit
		received, retractions = l.Received.Messages(), l.Retracted.Messages()
		a = Compare(truth, received, retractions)

		return len(a.Missing)+len(a.Unknown) == 0
	})
	a.eachFactory(l.Factories, truth, received, retractions)

	return a, nil
}
