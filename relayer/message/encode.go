package message

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/message/members"
)

// Event is the content of a message.
type Event struct {
	Name            string // of the event, an identifier
	ContractAddress string // the emitter, EIP-55
	Escrow          string // EIP-55
	Factory         string // that has deployed the escrow, EIP-55; "" if unknown: it is left out
	BlockNumber     uint64
	BlockHash       [32]byte
	BlockTime       uint64 // unix seconds
	TransactionHash [32]byte
	LogIndex        uint
	Occurrence      int16  // above 0 it is part of the event id
	Args            []byte // a JSON object by ABI name; its values are strings, booleans, or arrays and objects of these
}

// Encode returns the body and the attributes of a message. published is the time of sending. The
// order of the body's fields is fixed. A message that Pub/Sub would refuse goes without its arguments.
// An error means that the arguments are not an object.
func Encode(k Kind, e *Event, chainID int64, published time.Time) (body []byte,
	attributes map[string]string, err error) {
	id := EventID(e.TransactionHash, e.LogIndex, e.Occurrence)
	chain := strconv.FormatInt(chainID, 10)
	attributes = attributesOf(k, e, id, chain)
	args, truncated := e.Args, len(e.Args) > MaxArgs
	if truncated {
		args = []byte("{}")
	}

	b := make([]byte, 0, 768+2*len(args)) // a default event's envelope has some 700 bytes
	b = appendText(append(b, '{'), "event_id", id)
	b = appendText(append(b, ','), "event_type", e.Name)
	b = appendText(append(b, ','), "event_name", e.Name)
	b = appendText(append(b, ','), "chain_id", chain)
	b = appendText(append(b, ','), "contract_address", e.ContractAddress)
	b = appendText(append(b, ','), "escrow", e.Escrow)
	if e.Factory != "" {
		b = appendText(append(b, ','), "factory", e.Factory)
	}

	b = strconv.AppendUint(append(b, `,"block_number":`...), e.BlockNumber, 10)
	b = append(appendHash(append(b, `,"block_hash":"`...), e.BlockHash[:]), '"')
	b = time.Unix(int64(e.BlockTime), 0).UTC().AppendFormat(append(b, `,"block_timestamp":`...), secondsLayout)
	b = append(appendHash(append(b, `,"transaction_hash":"`...), e.TransactionHash[:]), '"')
	b = strconv.AppendUint(append(b, `,"log_index":`...), uint64(e.LogIndex), 10)
	b = published.UTC().AppendFormat(append(b, `,"timestamp":`...), millisLayout)
	if k == Retraction {
		b = append(b, `,"retracted":true,"reason":"`+Reorganised+`","original_block_hash":"`...)
		b = append(appendHash(b, e.BlockHash[:]), '"')
	}

	if truncated {
		b = append(b, `,"truncated":true`...)
	}

	b = append(append(b, `,"args":`...), args...)
	if b, err = appendMembers(b, args); err != nil {
		return nil, nil, fmt.Errorf("encode %s %s: %w", e.Name, id, err)
	}

	return append(b, '}'), attributes, nil
}

// EventID returns the id of an event: {transaction hash}:{log index}, and :{occurrence} if that is above 0.
func EventID(transaction [32]byte, index uint, occurrence int16) string {
	var buf [96]byte
	id := strconv.AppendUint(append(appendHash(buf[:0], transaction[:]), ':'), uint64(index), 10)
	if occurrence > 0 {
		id = strconv.AppendInt(append(id, ':'), int64(occurrence), 10)
	}

	return string(id)
}

func attributesOf(k Kind, e *Event, id, chain string) map[string]string {
	attributes := map[string]string{
		AttrEventID: id, AttrEventType: e.Name, AttrEventName: e.Name, AttrChainID: chain, AttrSchema: Version,
		AttrEscrow:      strings.ToLower(e.Escrow),
		AttrBlockNumber: strconv.FormatUint(e.BlockNumber, 10),
	}
	if e.Factory != "" {
		attributes[AttrFactory] = strings.ToLower(e.Factory)
	}

	switch k {
	case Retraction:
		attributes[AttrRetracted] = "true"
	case Replay:
		attributes[AttrReplay] = "true"
	}

	return attributes
}

// ISO 8601 in quotes, always UTC. Blocks have whole seconds.
const (
	secondsLayout = `"2006-01-02T15:04:05Z"`
	millisLayout  = `"2006-01-02T15:04:05.000Z"`
)

// appendText appends a member with a value free of escapes.
func appendText(b []byte, name, value string) []byte {
	b = append(append(append(b, '"'), name...), `":"`...)
	return append(append(b, value...), '"')
}

func appendHash(b, hash []byte) []byte { return hex.AppendEncode(append(b, '0', 'x'), hash) }

// appendMembers appends the members of an object, each after a comma, except those with reserved
// names. It copies the values unchanged.
func appendMembers(out, object []byte) ([]byte, error) {
	unnamed := false
	err := members.Each(object, func(name, value []byte) {
		unnamed = unnamed || len(name) == 0
		if !reserved(string(name)) {
			out = append(append(out, `,"`...), name...)
			out = append(append(out, `":`...), value...)
		}
	})
	if err == nil && unnamed {
		err = errors.New("an argument has no name")
	}

	return out, err
}
