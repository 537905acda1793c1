package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Audit compares what the chain has with what was published.
type Audit struct {
	Factories  int // that have announced escrows
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
	return len(a.Missing)+len(a.Unknown)+len(a.Disordered)+len(a.Malformed) == 0
}

func (a *Audit) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "factories %d, escrows %d, emitted %d, received %d, retracted %d, missing %d, duplicated %d, "+
		"unknown %d, out of order %d, malformed %d", a.Factories, a.Escrows, a.Emitted, a.Received, a.Retracted,
		len(a.Missing), len(a.Duplicated), len(a.Unknown), len(a.Disordered), len(a.Malformed))
	for _, list := range []struct {
		what string
		of   []string
	}{{"missing", a.Missing}, {"duplicated", a.Duplicated}, {"unknown", a.Unknown}, {"out of order", a.Disordered},
		{"malformed", a.Malformed}} {
		for _, x := range list.of[:min(len(list.of), 5)] {
			fmt.Fprintf(&b, "\n  %s: %s", list.what, x)
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

// Content is all that a message says of an event, but for its block: a reorganisation may move it.
func Content(m *message.Message) string {
	return content(m.EventType, m.Escrow, m.ContractAddress, fmt.Sprintf("%s:%d", m.TransactionHash, m.LogIndex), m.Args)
}

func content(name, escrow, emitter, at string, args any) string {
	text, _ := json.Marshal(args) // texts can be marshalled
	return fmt.Sprintf("%s of %s by %s in %s %s", name, escrow, emitter, at, text)
}

// entry is what the chain says of an event, and the factory of its escrow.
type entry struct {
	content, factory string
	published        bool
}

// otherThan reports whether a message says something else. Of what the chain does not have it says nothing.
func (e entry) otherThan(m *message.Message) bool {
	return e.content != "" && (m.Factory != "" && m.Factory != e.factory || !m.Truncated && Content(m) != e.content)
}

// allOf are the events by transaction and log index, and how many factories have announced escrows.
func allOf(t *testchain.Truth) (all map[string]entry, factories int) {
	all = map[string]entry{}
	seen := map[string]bool{}
	for escrow, events := range t.Events {
		factory := ""
		for _, e := range events {
			if e.Name == "EscrowDeployed" {
				factory = e.Log.Address.Hex()
				seen[factory] = true
			}
		}

		for _, e := range events {
			all[e.ID] = entry{content(e.Name, strings.ToLower(escrow.Hex()), e.Log.Address.Hex(), e.ID, e.Args), factory,
				e.Name == "EscrowDeployed" || Published(e.Name)}
		}
	}

	return all, len(seen)
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
	chain, factories := allOf(t)
	a.Factories = factories
	seen, names := map[string]int{}, map[string]string{} // how often, and by which event_id
	order := map[string][]string{}                       // first deliveries by escrow
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
		if says := chain[id]; says.otherThan(decoded) {
			a.Malformed = append(a.Malformed, fmt.Sprintf("%s, factory %s: the chain has %s, factory %s",
				Content(decoded), decoded.Factory, says.content, says.factory))
		}

		if names[id] = cmp.Or(names[id], decoded.EventID); names[id] != decoded.EventID {
			a.Malformed = append(a.Malformed, fmt.Sprintf("%s as %s and %s", id, names[id], decoded.EventID))
		}

		if seen[id]++; seen[id] == 1 {
			order[escrow] = append(order[escrow], id)
		} else if seen[id] == 2 {
			a.Duplicated = append(a.Duplicated, id)
		}
	}

	for _, escrow := range t.Escrows {
		a.compare(escrow, order[strings.ToLower(escrow.Hex())], Expected(t, escrow), seen)
	}

	for id := range seen {
		if !chain[id].published {
			a.Unknown = append(a.Unknown, id)
		}
	}

	return a
}

// compare holds the first deliveries of an escrow against what is expected.
func (a *Audit) compare(escrow common.Address, got, want []string, seen map[string]int) {
	a.Emitted += len(want)
	var present []string
	for _, id := range want {
		if seen[id] == 0 {
			a.Missing = append(a.Missing, id)
		} else {
			present = append(present, id)
		}
	}

	got = slices.DeleteFunc(got, func(id string) bool { return !slices.Contains(want, id) })
	if !slices.Equal(got, present) {
		a.Disordered = append(a.Disordered, fmt.Sprintf("%s: received %v, want %v", escrow, got, present))
	}
}

// Differences holds what a table says, by name, against what it has to equal.
func Differences(table string, got map[string]string, source string, want map[string]string) (wrong []string) {
	for name, has := range got {
		if says, there := want[name]; !there {
			wrong = append(wrong, fmt.Sprintf("%s, but not %s: %s %s", table, source, name, has))
		} else if says != has {
			wrong = append(wrong, fmt.Sprintf("%s otherwise than %s: %s %s, not %s", table, source, name, has, says))
		}
	}

	for name, says := range want {
		if _, there := got[name]; !there {
			wrong = append(wrong, fmt.Sprintf("%s, but not %s: %s %s", source, table, name, says))
		}
	}

	slices.Sort(wrong)

	return wrong
}

// Rows are the rows of a query of two columns, by the first of them; no name comes twice.
func Rows(ctx context.Context, db *pgxpool.Pool, query string, args ...any) (map[string]string, error) {
	all := map[string]string{}
	rows, _ := db.Query(ctx, query, args...)
	var name, text string
	_, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error {
		if _, twice := all[name]; twice {
			return fmt.Errorf("%s is there twice", name)
		}

		all[name] = text

		return nil
	})

	return all, err
}

const storedEvents = `
	select split_part(event_id, ':', 1) || ':' || log_index, event_type || ' in block ' || block_hash
	  from processed_events where chain_id = $1 and state = 'canonical' and block_number <= $2`

// CompareStored holds the stored events of a chain against the truth.
func CompareStored(ctx context.Context, db *pgxpool.Pool, t *testchain.Truth, chainID int64) ([]string, error) {
	stored, err := Rows(ctx, db, storedEvents, chainID, int64(t.To))
	if err != nil {
		return nil, fmt.Errorf("read the stored events: %w", err)
	}

	chain := map[string]string{}
	for _, events := range t.Events {
		for _, e := range events {
			chain[e.ID] = fmt.Sprintf("%s in block %s", e.Name, e.Log.BlockHash)
		}
	}

	return Differences("stored", stored, "on the chain", chain), nil
}

// Truth reads what the followed factories and their escrows did, up to what the relayers may process.
func (l *Lab) Truth(ctx context.Context, to uint64) (*testchain.Truth, error) {
	return testchain.ReadTruth(ctx, l.Chain.Client(), l.Contracts.Block, to, l.Factories...)
}

// Audit waits until every event that is deep enough has been received and everything else was retracted, or ctx ends,
// and compares. The chain should stand still; a geth that makes one more block, of what its pool kept, does no harm.
func (l *Lab) Audit(ctx context.Context) (a *Audit, err error) {
	var truth *testchain.Truth
	_ = Until(ctx, 100*time.Millisecond, "the messages", func() bool {
		var head uint64
		head, err = l.Head(ctx)
		if to := head - uint64(l.Confirmations); err == nil && (truth == nil || truth.To != to) {
			truth, err = l.Truth(ctx, to)
		}

		if err == nil {
			a = Compare(truth, l.Received.Messages(), l.Retracted.Messages())
		}

		return err != nil || len(a.Missing)+len(a.Unknown)+len(a.Malformed) == 0
	})
	if ctx.Err() != nil && a != nil {
		err = nil // what has not come is in the audit
	}

	return a, err
}
