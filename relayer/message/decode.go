package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Message is what a consumer receives.
type Message struct {
	EventID         string // {transaction_hash}:{log_index}, sometimes :{n}; with ChainID it identifies event and content
	EventType       string // EscrowDeployed, Approved, EscrowReleased, EscrowRefunded, or another of EVENT_NAMES
	ChainID         string // decimal
	Escrow          string // lower case
	ContractAddress string // the emitter, EIP-55: the factory for EscrowDeployed, else the escrow
	Factory         string // that has deployed the escrow, EIP-55; "" in messages of versions that followed one factory
	BlockNumber     uint64
	BlockHash       string
	BlockTimestamp  time.Time
	TransactionHash string
	LogIndex        uint64
	Timestamp       time.Time // when it was published

	// Args are the event's arguments by ABI name: strings, booleans, or []any and map[string]any of these.
	Args map[string]any
	// Truncated: the arguments are left out, since the message would be larger than Pub/Sub accepts. The chain has them,
	// by TransactionHash and LogIndex, and the relayer's database, in processed_events.
	Truncated bool

	Replay            bool   // published once more on request
	Retracted         bool   // a retraction: the event was published, and a reorganisation has removed it
	Reason            string // of a retraction
	OriginalBlockHash string // of a retraction: the block that the event was published from
}

var (
	// ErrMalformed means that a message is not one of the relayer's, or is inconsistent.
	ErrMalformed = errors.New("malformed message")
	// ErrSchema means that this package is too old for the message's schema.
	ErrSchema = errors.New("unknown message schema")
)

// Text returns an argument that is a string: an address, an integer, bytes, or a text. The error
// names the argument, and its value if it has another type.
func (m *Message) Text(name string) (string, error) {
	value, ok := m.Args[name]
	switch {
	case !ok && m.Truncated:
		return "", fmt.Errorf("argument %s of %s %s is left out: the message is truncated", name, m.EventType, m.EventID)
	case !ok:
		return "", fmt.Errorf("argument %s of %s %s is missing", name, m.EventType, m.EventID)
	}

	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("argument %s of %s %s is no string: %.100v", name, m.EventType, m.EventID, value)
	}

	return text, nil
}

// Int returns an argument that is an integer. The error names the argument and its value.
func (m *Message) Int(name string) (*big.Int, error) {
	text, err := m.Text(name)
	if err != nil {
		return nil, err
	}

	n, ok := new(big.Int), integer.MatchString(text)
	if ok {
		n, ok = n.SetString(text, 10)
	}

	if !ok {
		return nil, fmt.Errorf("argument %s of %s %s is no integer: %.100q", name, m.EventType, m.EventID, text)
	}

	return n, nil
}

var (
	eventID = regexp.MustCompile(`^0x[0-9a-f]{64}:(0|[1-9][0-9]{0,19})(:[1-9][0-9]{0,4})?$`)
	hash    = regexp.MustCompile(`^0x[0-9a-f]{64}$`)
	address = regexp.MustCompile(`^0x[0-9a-fA-F]{40}$`)
	natural = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	integer = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,77})$`) // 2^256 has 78 digits
)

// Decode reads a message and verifies that it is complete and that its body is consistent with
// itself and with the attributes. It ignores unknown names. The error wraps ErrMalformed or
// ErrSchema.
func Decode(body []byte, attributes map[string]string) (*Message, error) {
	switch v := attributes[AttrSchema]; v {
	case Version:
	case "":
		return nil, fmt.Errorf("%w: attribute schema is missing, which each message of the relayer has", ErrMalformed)
	default:
		return nil, fmt.Errorf("%w: attribute schema is %q, this package knows %q; update it", ErrSchema, v, Version)
	}

	// Fields are read by exact name: encoding/json would let an argument TIMESTAMP overwrite a field timestamp.
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object: %w", ErrMalformed, err)
	}

	var m Message
	var name, escrow string
	r := reader{top: top}
	r.read("event_id", &m.EventID)
	r.read("event_type", &m.EventType)
	r.read("event_name", &name)
	r.read("chain_id", &m.ChainID)
	r.read("contract_address", &m.ContractAddress)
	r.read("escrow", &escrow)
	r.read("block_number", &m.BlockNumber)
	r.read("block_hash", &m.BlockHash)
	r.read("block_timestamp", &m.BlockTimestamp)
	r.read("transaction_hash", &m.TransactionHash)
	r.read("log_index", &m.LogIndex)
	r.read("timestamp", &m.Timestamp)
	if attributes[AttrFactory] != "" {
		r.read("factory", &m.Factory)
	}

	if _, ok := top["retracted"]; ok {
		r.read("retracted", &m.Retracted)
		r.read("reason", &m.Reason)
		r.read("original_block_hash", &m.OriginalBlockHash)
	}

	if _, ok := top["truncated"]; ok {
		r.read("truncated", &m.Truncated)
	}

	r.readArgs(&m)
	m.Escrow, m.Replay = attributes[AttrEscrow], attributes[AttrReplay] == "true"
	if r.err == nil {
		r.err = m.verify(name, escrow, attributes)
	}

	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, r.err)
	}

	return &m, nil
}

// verify checks the message against itself and against the attributes.
func (m *Message) verify(name, escrow string, attributes map[string]string) error {
	for _, f := range []struct {
		name, value string
		form        *regexp.Regexp
	}{
		{"event_id", m.EventID, eventID}, {"chain_id", m.ChainID, natural}, {"contract_address", m.ContractAddress, address},
		{"escrow", escrow, address}, {"block_hash", m.BlockHash, hash}, {"transaction_hash", m.TransactionHash, hash},
	} {
		if !f.form.MatchString(f.value) {
			return fmt.Errorf("%s is %q", f.name, f.value)
		}
	}

	if m.Factory != "" && !address.MatchString(m.Factory) {
		return fmt.Errorf("factory is %q", m.Factory)
	}

	if m.EventType == "" || m.EventType != name {
		return fmt.Errorf("event_type is %q and event_name is %q", m.EventType, name)
	}

	if want := m.TransactionHash + ":" + strconv.FormatUint(m.LogIndex, 10); m.EventID != want &&
		!strings.HasPrefix(m.EventID, want+":") {
		return fmt.Errorf("event_id is %s, but transaction_hash and log_index give %s", m.EventID, want)
	}

	if m.Retracted && (m.Reason == "" || !hash.MatchString(m.OriginalBlockHash)) {
		return fmt.Errorf("a retraction with the reason %q and original_block_hash %q", m.Reason, m.OriginalBlockHash)
	}

	if m.EventType != deployed && escrow != m.ContractAddress {
		return fmt.Errorf("escrow is %s, and contract_address %s", escrow, m.ContractAddress)
	}

	retracted := ""
	if m.Retracted {
		retracted = "true"
	}

	for _, a := range [...]struct{ name, want string }{
		{AttrEventID, m.EventID}, {AttrEventType, m.EventType}, {AttrEventName, m.EventType}, {AttrChainID, m.ChainID},
		{AttrBlockNumber, strconv.FormatUint(m.BlockNumber, 10)}, {AttrEscrow, strings.ToLower(escrow)},
		{AttrRetracted, retracted}, {AttrFactory, strings.ToLower(m.Factory)},
	} {
		if attributes[a.name] != a.want {
			return fmt.Errorf("attribute %s is %q, the body says %q", a.name, attributes[a.name], a.want)
		}
	}

	return nil
}

// reader reads fields, until the first unreadable one.
type reader struct {
	top map[string]json.RawMessage
	err error
}

func (r *reader) read(name string, into any) {
	if r.err != nil {
		return
	}

	value, ok := r.top[name]
	if !ok || string(value) == "null" {
		r.err = fmt.Errorf("%s is missing", name)
		return
	}

	if err := json.Unmarshal(value, into); err != nil {
		r.err = fmt.Errorf("read %s: %w", name, err)
	}
}

// readArgs reads the arguments, and checks that the copies at the top level are equal.
func (r *reader) readArgs(m *Message) {
	var args map[string]json.RawMessage
	r.read("args", &args)
	if r.err != nil {
		return
	}

	m.Args = make(map[string]any, len(args))
	for name, raw := range args {
		value, err := argument(raw)
		if err != nil {
			r.err = fmt.Errorf("argument %s: %w", name, err)
			return
		}

		if copied, ok := r.top[name]; !reserved(name) && (!ok || !bytes.Equal(copied, raw)) {
			r.err = fmt.Errorf("argument %s is %s under args and %s at the top level", name, raw, copied)
			return
		}

		m.Args[name] = value
	}
}

var errKind = errors.New("neither string nor boolean, nor an array or object of these")

// argument decodes a value. It refuses null, and numbers, because many languages lose their digits.
func argument(raw json.RawMessage) (any, error) {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return nil, err
	}

	return value, plain(value)
}

func plain(value any) error {
	switch value := value.(type) {
	case string, bool:
	case []any:
		for _, v := range value {
			if err := plain(v); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, v := range value {
			if err := plain(v); err != nil {
				return err
			}
		}
	default:
		return errKind
	}

	return nil
}
