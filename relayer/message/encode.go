package message

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Event is the content of a message.
type Event struct {
	Name            string // of the event, an identifier
	ContractAddress string // the emitter, EIP-55
	Escrow          [20]byte
	BlockNumber     uint64
	BlockHash       [32]byte
	BlockTime       uint64 // unix seconds
	TransactionHash [32]byte
	LogIndex        uint
	Occurrence      int16  // above 0 it is part of the event id
	Args            []byte // a JSON object by ABI name; its values are strings, booleans, or arrays and objects of these
}

// Encode returns the body and the attributes of a message. published is when it is sent. The order
// of the body's fields is fixed. An error means that the arguments are not an object.
func Encode(k Kind, e *Event, chainID int64, published time.Time) (body []byte,
	attributes map[string]string, err error) {
	id := EventID(e.TransactionHash, e.LogIndex, e.Occurrence)
	chain := strconv.FormatInt(chainID, 10)
	attributes = attributesOf(k, e, id, chain)

	b := make([]byte, 0, 704+2*len(e.Args)) // a default event's envelope has some 640 bytes
	b = append(b, `{"event_id":"`...)
	b = append(b, id...)
	b = append(b, `","event_type":"`...)
	b = append(b, e.Name...)
	b = append(b, `","event_name":"`...)
	b = append(b, e.Name...)
	b = append(b, `","chain_id":"`...)
	b = append(b, chain...)
	b = append(b, `","contract_address":"`...)
	b = append(b, e.ContractAddress...)
	b = append(b, `","block_number":`...)
	b = strconv.AppendUint(b, e.BlockNumber, 10)
	b = append(b, `,"block_hash":"`...)
	b = appendHash(b, e.BlockHash[:])
	b = append(b, `","block_timestamp":"`...)
	b = time.Unix(int64(e.BlockTime), 0).UTC().AppendFormat(b, secondsLayout)
	b = append(b, `","transaction_hash":"`...)
	b = appendHash(b, e.TransactionHash[:])
	b = append(b, `","log_index":`...)
	b = strconv.AppendUint(b, uint64(e.LogIndex), 10)
	b = append(b, `,"timestamp":"`...)
	b = published.UTC().AppendFormat(b, millisLayout)
	b = append(b, '"')
	if k == Retraction {
		b = append(b, `,"retracted":true,"reason":"`+Reorganised+`","original_block_hash":"`...)
		b = appendHash(b, e.BlockHash[:])
		b = append(b, '"')
	}

	b = append(b, `,"args":`...)
	b = append(b, e.Args...)
	if b, err = appendMembers(b, e.Args); err != nil {
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
	var buf [48]byte
	attributes := make(map[string]string, 8)
	attributes[AttrEventID] = id
	attributes[AttrEventType] = e.Name
	attributes[AttrEventName] = e.Name
	attributes[AttrChainID] = chain
	attributes[AttrEscrow] = string(appendHash(buf[:0], e.Escrow[:]))
	attributes[AttrBlockNumber] = string(strconv.AppendUint(buf[:0], e.BlockNumber, 10))
	attributes[AttrSchema] = Version
	switch k {
	case Retraction:
		attributes[AttrRetracted] = "true"
	case Replay:
		attributes[AttrReplay] = "true"
	}

	return attributes
}

// ISO 8601, always UTC. Blocks have whole seconds.
const (
	secondsLayout = "2006-01-02T15:04:05Z"
	millisLayout  = "2006-01-02T15:04:05.000Z"
)

func appendHash(b, hash []byte) []byte { return hex.AppendEncode(append(b, '0', 'x'), hash) }

var errNoObject = errors.New("the arguments are not a JSON object with plain names")

// appendMembers appends the members of an object, each with a comma before it, except those whose
// names are reserved. It only finds where names and values end and copies the values as they are,
// which is ten times as fast as decoding them.
func appendMembers(out, object []byte) ([]byte, error) {
	s := scanner{in: object}
	if !s.take('{') {
		return nil, errNoObject
	}

	for first := true; !s.take('}'); first = false {
		if !first && !s.take(',') {
			return nil, errNoObject
		}

		name := s.text()
		if len(name) < 3 || !s.take(':') {
			return nil, errNoObject
		}

		value := s.value()
		if value == nil {
			return nil, errNoObject
		}

		if reserved(string(name[1 : len(name)-1])) {
			continue
		}

		out = append(append(out, ','), name...)
		out = append(append(out, ':'), value...)
	}

	if s.blank(); s.at != len(object) {
		return nil, errNoObject
	}

	return out, nil
}

// scanner walks over valid JSON. On anything else it ends too, but where is not defined.
type scanner struct {
	in []byte
	at int
}

func (s *scanner) blank() {
	for s.at < len(s.in) && (s.in[s.at] == ' ' || s.in[s.at] == '\n' || s.in[s.at] == '\t' || s.in[s.at] == '\r') {
		s.at++
	}
}

func (s *scanner) take(c byte) bool {
	if s.blank(); s.at < len(s.in) && s.in[s.at] == c {
		s.at++
		return true
	}

	return false
}

// text takes a string, with its quotes; nil if there is none, or if it has an escape: names of
// arguments are identifiers.
func (s *scanner) text() []byte {
	start := s.at
	if s.blank(); start < s.at {
		start = s.at
	}

	if !s.take('"') {
		return nil
	}

	for ; s.at < len(s.in) && s.in[s.at] != '\\'; s.at++ {
		if s.in[s.at] == '"' {
			s.at++
			return s.in[start:s.at]
		}
	}

	return nil
}

// value takes a value of any kind; nil if there is none.
func (s *scanner) value() []byte {
	s.blank()
	start, depth := s.at, 0
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case '"':
			for s.at++; s.at < len(s.in) && s.in[s.at] != '"'; s.at++ {
				if s.in[s.at] == '\\' {
					s.at++
				}
			}

			if s.at >= len(s.in) {
				return nil
			}

			s.at++
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			if depth == 0 {
				return nil
			}

			depth--
			s.at++
		case 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			for s.at < len(s.in) && !strings.ContainsRune(" \n\t\r,:{}[]\"", rune(s.in[s.at])) {
				s.at++
			}

		default: // a comma, a colon or a blank between the values of an array or object
			if depth == 0 {
				return nil
			}

			s.at++
		}

		if depth == 0 {
			return s.in[start:s.at]
		}
	}

	return nil
}
