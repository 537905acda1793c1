// Package contract knows the contracts: their ABIs, the topics of their events, and how a log becomes an Event.
//
// What go-ethereum's decoder reads is read. `Approved(address)` is a generic signature, so logs of other shapes under
// our topics are normal, and Decode returns ErrForeign for them. Of a followed contract they are a finding.
package contract

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/message/members"
)

// Names of the events that the relayer interprets. Other events of an ABI are only passed on.
const (
	Deployed       = "EscrowDeployed" // the factory's: it announces the escrow in its argument "escrow"
	Created        = "EscrowCreated"
	Approved       = "Approved"
	ArbiterChanged = "ArbiterChanged"
	Released       = "EscrowReleased"
	Refunded       = "EscrowRefunded"
)

// DefaultEvents are always published, to the topic of their own; EVENT_NAMES adds others, for another topic.
var DefaultEvents = []string{Deployed, Approved, Released, Refunded}

// ErrForeign means that a log under one of our topics has another shape than our event: another
// contract emitted it, or a version that the ABI lacks.
var ErrForeign = errors.New("not the shape of our event")

var (
	//go:embed factory.json
	builtInFactory string
	//go:embed escrow.json
	builtInEscrow string
)

// Event is a decoded log.
type Event struct {
	Name        string         // by the ABI, or what an alias makes of it
	Escrow      common.Address // that it concerns: the argument "escrow" of EscrowDeployed, else the emitter
	Emitter     common.Address
	Factory     common.Address // of the escrow: the emitter of EscrowDeployed; Decode leaves that of others zero
	BlockNumber uint64
	BlockHash   common.Hash
	BlockTime   uint64 // unix seconds
	TxHash      common.Hash
	LogIndex    uint
	// Occurrence counts the other events that had this {tx_hash}:{log_index} before, since a
	// reorganisation can move the logs of a transaction. The ledger sets it when it stores the
	// event; 0 is the first.
	Occurrence int16
	// Args is an object without blanks, by ABI name in ABI order: addresses EIP-55, every integer a
	// decimal string, bytes 0x…, booleans and strings as such, arrays of these, tuples objects.
	// null is impossible: an argument missing from the ABI is left out. An indexed argument of a
	// dynamic type is its hash, 0x…, because the log holds only that.
	Args json.RawMessage
}

// ID identifies the event on its chain to consumers: {tx_hash}:{log_index}, or for each further
// content with the same two {tx_hash}:{log_index}:{occurrence}. It stands for one content only.
// Inside the relayer, block hash and log index identify an event.
func (e *Event) ID() string {
	return message.EventID(e.TxHash, e.LogIndex, e.Occurrence)
}

// Place is the position of an event on the chain: with the hash of the block it identifies the
// event inside the relayer.
type Place struct {
	Block uint64
	Index uint
}

// Place returns the event's position.
func (e *Event) Place() Place { return Place{e.BlockNumber, e.LogIndex} }

// Compare orders places as on the chain.
func (p Place) Compare(other Place) int {
	return cmp.Or(cmp.Compare(p.Block, other.Block), cmp.Compare(p.Index, other.Index))
}

// ParseID parses the result of ID.
func ParseID(id string) (tx common.Hash, index uint, occurrence int16, err error) {
	m := idForm.FindStringSubmatch(id)
	if m == nil {
		return tx, 0, 0, fmt.Errorf("event id %q is not {tx_hash}:{log_index} or {tx_hash}:{log_index}:{n}", id)
	}

	n, err := strconv.ParseUint(m[2], 10, 31)
	if err == nil && m[3] != "" {
		var o int64
		o, err = strconv.ParseInt(m[3], 10, 16)
		occurrence = int16(o)
	}

	if err != nil {
		return tx, 0, 0, fmt.Errorf("event id %q: %w", id, err)
	}

	return common.HexToHash(m[1]), uint(n), occurrence, nil
}

var idForm = regexp.MustCompile(`^(0x[0-9a-fA-F]{64}):(0|[1-9][0-9]*)(?::([1-9][0-9]*))?$`)

// Ends reports whether the event ends its escrow: a release or a refund is its last event of
// interest. The database repeats the rule with the numbers of these events (event_types), in the
// index events_ended and in what retention removes.
func (e *Event) Ends() bool { return e.Name == Released || e.Name == Refunded }

// Same reports whether two events are the same log of the same transaction, in any block: equal
// transaction, log index, emitter, name, escrow and arguments.
func (e *Event) Same(other *Event) bool {
	return e.TxHash == other.TxHash && e.LogIndex == other.LogIndex && e.Emitter == other.Emitter &&
		e.Name == other.Name && e.Escrow == other.Escrow && string(e.Args) == string(other.Args)
}

// ABI is the relayer's knowledge of the contracts. It is safe for concurrent use.
type ABI struct {
	events          map[common.Hash][]*layout // by topic 0; several where only the indexing differs
	factory, escrow []common.Hash
	names           []string
	definitions     []string
	aliases         map[string]*alias // by the name in the ABI
	anonymous       []string          // events that are not used
}

// New parses the ABIs. Each is "" for the built-in one, an ABI as JSON, an artefact of a compiler
// (an object with a field "abi"), or paths to such files with commas between them. A given ABI
// replaces the built-in one. Several versions of a contract, each with its own EscrowDeployed, are
// several files, or one ABI with the events of all, as the built-in one has the older version
// without arbiter. Two layouts of one event that look alike in a log are refused.
//
// Of the factory's events only EscrowDeployed is used, in all its versions: the others concern the
// factory alone. Of an escrow's events all but anonymous ones are used.
//
// The contracts of others have other names. An alias, THEIRS=OURS, makes an event of theirs a version of
// one that the relayer interprets: Opened(deal)=EscrowDeployed, where the argument deal is what was
// deployed, or Settled=EscrowReleased. Its arguments keep their names.
func New(factoryABI, escrowABI string, aliases ...string) (a *ABI, err error) {
	a = &ABI{events: map[common.Hash][]*layout{}}
	if a.aliases, err = parseAliases(aliases); err != nil {
		return nil, err
	}

	err = errors.Join(
		a.add("FACTORY_ABI", factoryABI, builtInFactory, &a.factory, func(name string) bool { return name == Deployed }),
		a.add("ESCROW_ABI", escrowABI, builtInEscrow, &a.escrow, func(name string) bool { return name != Deployed }),
	)
	for _, theirs := range slices.Sorted(maps.Keys(a.aliases)) {
		if !a.aliases[theirs].used {
			err = errors.Join(err, fmt.Errorf("EVENT_ALIASES: the ABI has no event %s that logs can be known by: an "+
				"EscrowDeployed is looked for in FACTORY_ABI, the others in ESCROW_ABI%s", theirs, a.withAnonymous()))
		}
	}

	if err != nil {
		return nil, err
	}

	return a, nil
}

// withAnonymous ends a message with the names of anonymous events, if there are any.
func (a *ABI) withAnonymous() string {
	if len(a.anonymous) == 0 {
		return ""
	}

	return "; anonymous events are in no log by name: " + strings.Join(a.anonymous, ", ")
}

// add takes the used events of an ABI. Errors name the variable that it came from.
func (a *ABI) add(variable, given, builtIn string, topics *[]common.Hash, counts func(name string) bool) error {
	if strings.TrimSpace(given) == "" {
		given = builtIn
	}

	versions, err := parse(given)
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}

	for _, v := range versions {
		for _, key := range slices.Sorted(maps.Keys(v.Events)) {
			e := v.Events[key]
			name, _ := a.meaning(e.RawName)
			if e.Anonymous {
				a.anonymous = append(a.anonymous, e.RawName)
			}

			if e.Anonymous || !counts(name) || slices.Contains(a.definitions, a.definition(&e)) {
				continue
			}

			if err := a.addEvent(&e); err != nil {
				return fmt.Errorf("%s: %w", variable, err)
			}

			if !slices.Contains(*topics, e.ID) {
				*topics = append(*topics, e.ID)
			}
		}
	}

	if len(*topics) == 0 {
		return fmt.Errorf("%s has no event that counts; give the contract's ABI as JSON, or a path to it: "+
			"the factory's with %s, the escrow's with its own events; names of others go into EVENT_ALIASES%s", variable,
			Deployed, a.withAnonymous())
	}

	return nil
}

func (a *ABI) addEvent(e *abi.Event) error {
	name, argument := a.meaning(e.RawName)
	l, err := newLayout(*e, name, argument)
	if err != nil {
		return err
	}

	if alias := a.aliases[e.RawName]; alias != nil {
		alias.used = true
	}

	for _, other := range a.events[e.ID] {
		if other.topics == l.topics {
			return fmt.Errorf("%q has as many indexed arguments as another layout of the event, and no log tells them apart: "+
				"give one of them", e)
		}
	}

	l.definition = a.definition(e)
	a.events[e.ID] = append(a.events[e.ID], l)
	a.definitions = append(a.definitions, l.definition)
	if !slices.Contains(a.names, name) {
		a.names = append(a.names, name)
	}

	return nil
}

// definition is an event in Solidity's form, and what it means if its name is another one.
func (a *ABI) definition(e *abi.Event) string {
	alias := a.aliases[e.RawName]
	if alias == nil {
		return e.String()
	}

	return fmt.Sprintf("%s as %s(%s)", e, alias.means, alias.argument)
}

// parse reads ABIs from what New accepts.
func parse(text string) (versions []abi.ABI, err error) {
	documents := []string{strings.TrimSpace(text)}
	if !strings.HasPrefix(documents[0], "[") && !strings.HasPrefix(documents[0], "{") {
		documents = strings.Split(documents[0], ",")
		for i, path := range documents {
			content, err := os.ReadFile(strings.TrimSpace(path))
			if err != nil {
				if cause := (*fs.PathError)(nil); errors.As(err, &cause) {
					err = cause.Err // without the path: what was given may be any text, and long
				}

				return nil, fmt.Errorf("neither JSON nor a readable file: %w", err)
			}

			documents[i] = strings.TrimSpace(string(content))
		}
	}

	for _, d := range documents {
		v, err := parseOne(d)
		if err != nil {
			return nil, err
		}

		versions = append(versions, v)
	}

	return versions, nil
}

func parseOne(text string) (abi.ABI, error) {
	if strings.HasPrefix(text, "{") {
		var artefact struct{ ABI json.RawMessage }
		if err := json.Unmarshal([]byte(text), &artefact); err != nil {
			return abi.ABI{}, fmt.Errorf("not JSON: %w", err)
		}

		if artefact.ABI == nil {
			return abi.ABI{}, errors.New(`an object without a field "abi"; give the ABI itself or a compiler's artefact`)
		}

		text = string(artefact.ABI)
	}

	parsed, err := abi.JSON(strings.NewReader(text))
	if err != nil {
		return abi.ABI{}, fmt.Errorf("not an ABI: %w", err)
	}

	return parsed, nil
}

// FactoryTopics are topic 0 of the factory's events: EscrowDeployed in its versions.
func (a *ABI) FactoryTopics() []common.Hash { return slices.Clone(a.factory) }

// EscrowTopics are topic 0 of the escrows' events.
func (a *ABI) EscrowTopics() []common.Hash { return slices.Clone(a.escrow) }

// Topics are topic 0 of the factory's and the escrows' events.
func (a *ABI) Topics() []common.Hash { return append(a.FactoryTopics(), a.escrow...) }

// EventNames are the names of all events, EscrowDeployed first.
func (a *ABI) EventNames() []string { return slices.Clone(a.names) }

// Definitions are the events in Solidity's form, with the names of their arguments and what they mean: the
// part of the ABIs that determines the content of messages.
func (a *ABI) Definitions() []string { return slices.Clone(a.definitions) }

// Layouts are what logs of the events look like: topic 0, and how many arguments are indexed. Two ABIs with the same
// layouts find the same logs, whatever they call events and arguments.
func (a *ABI) Layouts() (deployments, others []string) {
	for _, topic := range slices.SortedFunc(maps.Keys(a.events), common.Hash.Cmp) {
		for _, l := range a.events[topic] {
			if l.name == Deployed {
				deployments = append(deployments, l.key(topic))
			} else {
				others = append(others, l.key(topic))
			}
		}
	}

	return deployments, others
}

// Shapes are the definitions of the events by their layouts.
func (a *ABI) Shapes() map[string]string {
	shapes := map[string]string{}
	for topic, layouts := range a.events {
		for _, l := range layouts {
			shapes[l.key(topic)] = l.definition
		}
	}

	return shapes
}

// Knows reports whether an event of another reader could be one of the ABI's: it has such an event with these
// arguments.
func (a *ABI) Knows(e *Event) bool {
	var names []string
	_ = members.Each(e.Args, func(name, _ []byte) { names = append(names, string(name)) }) // Decode wrote an object
	for _, layouts := range a.events {
		for _, l := range layouts {
			if l.name == e.Name && slices.EqualFunc(l.fields, names, func(f field, name string) bool {
				return f.key == `"`+name+`":`
			}) {
				return true
			}
		}
	}

	return false
}

// Decode turns a log into an Event. Its only error is ErrForeign, for a log that is not ours. The
// caller must check that Event.Emitter is the factory or a known escrow: any contract can emit a
// log of this shape.
func (a *ABI) Decode(l *types.Log) (Event, error) {
	if len(l.Topics) == 0 {
		return Event{}, ErrForeign
	}

	for _, layout := range a.events[l.Topics[0]] {
		args, escrow, ok := layout.decode(l)
		if !ok {
			continue
		}

		e := Event{
			Name: layout.name, Escrow: l.Address, Emitter: l.Address, BlockNumber: l.BlockNumber, BlockHash: l.BlockHash,
			BlockTime: l.BlockTimestamp, TxHash: l.TxHash, LogIndex: l.Index, Args: args,
		}
		if layout.name == Deployed {
			e.Escrow, e.Factory = escrow, l.Address
		}

		return e, nil
	}

	return Event{}, ErrForeign
}

// Complete is an error where the log of an event of ours names no transaction.
func (e *Event) Complete() error {
	if e.TxHash == (common.Hash{}) {
		return fmt.Errorf("event %s: its log names no transaction: ask another endpoint too (RPC_URLS)", e.ID())
	}

	return nil
}

// identifier is what Solidity and Vyper allow as a name. Names go into attributes, metrics and JSON
// unchanged.
var identifier = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// newLayout prepares an event for decoding under a name. Of a deployment, argument has the escrow.
func newLayout(e abi.Event, name, argument string) (*layout, error) {
	l := &layout{name: name, size: 2}
	if !identifier.MatchString(e.RawName) {
		return nil, fmt.Errorf("event %q: the name is not an identifier", e.RawName)
	}

	seen := map[string]bool{}
	announces := false
	for _, in := range e.Inputs {
		if !identifier.MatchString(in.Name) || seen[in.Name] {
			return nil, fmt.Errorf("event %s: argument %q is not an identifier of its own; "+
				"rename it in the ABI, names are not part of the signature", e.RawName, in.Name)
		}

		seen[in.Name] = true
		if t := in.Type; (t.T == abi.UintTy || t.T == abi.IntTy) && (t.Size < 8 || t.Size > 256 || t.Size%8 != 0) ||
			t.T == abi.FixedBytesTy && (t.Size < 1 || t.Size > 32) {
			return nil, fmt.Errorf("event %s: argument %s has the type %s, which does not exist", e.RawName, in.Name, t)
		}

		f := field{key: `"` + in.Name + `":`, typ: in.Type, indexed: in.Indexed}
		f.escrow = name == Deployed && in.Name == argument && in.Type.T == abi.AddressTy
		announces = announces || f.escrow
		l.fields = append(l.fields, f)
		l.size += len(f.key) + sizeHint + 1
		if in.Indexed {
			l.topics++
		}
	}

	if name == Deployed && !announces {
		return nil, fmt.Errorf("event %s has no address argument %q, so nobody could tell what it deployed; "+
			"give the ABI of the factory", e.RawName, argument)
	}

	return l, nil
}
