package rpc

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// ParseLogs decodes the result of eth_getLogs. Logs in the form that nodes give them are read by a
// scanner that knows nothing else; whatever it does not understand goes to encoding/json, whose
// judgement counts.
func ParseLogs(b []byte) ([]types.Log, error) {
	if logs, ok := scanLogs(b); ok {
		return logs, nil
	}

	var logs []types.Log
	if err := json.Unmarshal(b, &logs); err != nil {
		return nil, fmt.Errorf("%w: logs: %w", ErrInvalid, err)
	}

	if logs == nil {
		return nil, fmt.Errorf("%w: null instead of logs", ErrInvalid)
	}

	return logs, nil
}

// scanner reads the JSON of logs. It accepts less than JSON, and what it accepts encoding/json
// accepts with the same result.
type scanner struct {
	b      []byte
	i      int
	bytes  []byte        // what is left of a block of memory for Data
	hashes []common.Hash // and for Topics
}

// seen has a bit for every member of a log.
type seen uint16

const (
	sawAddress seen = 1 << iota
	sawTopics
	sawData
	sawBlockNumber
	sawTxHash
	sawTxIndex
	sawBlockHash
	sawLogIndex
	sawTime
	sawRemoved
)

const required = sawAddress | sawTopics | sawData | sawBlockNumber | sawTxHash | sawTxIndex | sawBlockHash | sawLogIndex

// members of a log, for what encoding/json would take for one: it ignores case.
var members = []string{
	"address", "topics", "data", "blockNumber", "transactionHash", "transactionIndex", "blockHash", "logIndex",
	"blockTimestamp", "removed",
}

func scanLogs(b []byte) ([]types.Log, bool) {
	s := &scanner{b: b}
	if !s.token('[') {
		return nil, false
	}

	logs := []types.Log{}
	if !s.token(']') {
		logs = make([]types.Log, 0, len(b)/600+1) // a log of one argument has some 600 bytes
		for {
			logs = append(logs, types.Log{})
			if !s.log(&logs[len(logs)-1]) {
				return nil, false
			}

			if s.token(',') {
				continue
			}

			if s.token(']') {
				break
			}

			return nil, false
		}
	}

	s.space()

	return logs, s.i == len(b)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) token(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}

	return false
}

func (s *scanner) word(w string) bool {
	s.space()
	if bytes.HasPrefix(s.b[s.i:], []byte(w)) {
		s.i += len(w)
		return true
	}

	return false
}

// text reads a string of printable ASCII without escapes.
func (s *scanner) text() ([]byte, bool) {
	if !s.token('"') {
		return nil, false
	}

	start := s.i
	n := bytes.IndexByte(s.b[start:], '"')
	if n < 0 {
		return nil, false
	}

	s.i = start + n + 1

	return s.b[start : start+n], true
}

func plain(t []byte) bool {
	for _, c := range t {
		if c < 0x20 || c > 0x7e || c == '\\' {
			return false
		}
	}

	return true
}

func (s *scanner) log(l *types.Log) bool {
	if !s.token('{') {
		return false
	}

	var have seen
	for {
		key, ok := s.text()
		if !ok || !s.token(':') {
			return false
		}

		var bit seen
		switch string(key) {
		case "address":
			bit, ok = sawAddress, s.fixed(l.Address[:])
		case "topics":
			bit, ok = sawTopics, s.topics(l)
		case "data":
			bit, ok = sawData, s.data(l)
		case "blockNumber":
			bit, ok = sawBlockNumber, s.quantity(&l.BlockNumber)
		case "transactionHash":
			bit, ok = sawTxHash, s.fixed(l.TxHash[:])
		case "transactionIndex":
			bit, ok = sawTxIndex, s.index(&l.TxIndex)
		case "blockHash":
			bit, ok = sawBlockHash, s.fixed(l.BlockHash[:])
		case "logIndex":
			bit, ok = sawLogIndex, s.index(&l.Index)
		case "blockTimestamp":
			bit, ok = sawTime, s.word("null") || s.quantity(&l.BlockTimestamp)
		case "removed":
			bit = sawRemoved
			if l.Removed = s.word("true"); !l.Removed {
				ok = s.word("false")
			}
		default:
			ok = s.skip(key)
		}

		if !ok || have&bit != 0 {
			return false
		}

		have |= bit
		if s.token(',') {
			continue
		}

		return s.token('}') && have&required == required
	}
}

// skip passes over a member that a log need not have.
func (s *scanner) skip(key []byte) bool {
	if !plain(key) {
		return false
	}

	for _, m := range members {
		if strings.EqualFold(m, string(key)) {
			return false
		}
	}

	if s.word("null") || s.word("true") || s.word("false") {
		return true
	}

	t, ok := s.text()

	return ok && plain(t)
}

// hex reads a string of the form 0x….
func (s *scanner) hex() ([]byte, bool) {
	t, ok := s.text()
	if !ok || len(t) < 2 || t[0] != '0' || t[1] != 'x' {
		return nil, false
	}

	return t[2:], true
}

func (s *scanner) fixed(to []byte) bool {
	t, ok := s.hex()
	if !ok || len(t) != 2*len(to) {
		return false
	}

	_, err := hex.Decode(to, t)

	return err == nil
}

func (s *scanner) topics(l *types.Log) bool {
	if !s.token('[') {
		return false
	}

	if s.token(']') {
		l.Topics = []common.Hash{}
		return true
	}

	const most = 4 // LOG4
	if len(s.hashes) < most {
		s.hashes = make([]common.Hash, 256)
	}

	for n := range most {
		if !s.fixed(s.hashes[n][:]) {
			return false
		}

		if s.token(',') {
			continue
		}

		if !s.token(']') {
			return false
		}

		l.Topics, s.hashes = s.hashes[:n+1:n+1], s.hashes[n+1:]

		return true
	}

	return false
}

func (s *scanner) data(l *types.Log) bool {
	t, ok := s.hex()
	if !ok || len(t)%2 != 0 {
		return false
	}

	n := len(t) / 2
	if len(s.bytes) < n {
		s.bytes = make([]byte, max(n, 16<<10))
	}

	l.Data, s.bytes = s.bytes[:n:n], s.bytes[n:]
	if l.Data == nil {
		l.Data = []byte{}
	}

	_, err := hex.Decode(l.Data, t)

	return err == nil
}

func (s *scanner) quantity(to *uint64) bool {
	t, ok := s.hex()
	if !ok || len(t) == 0 || len(t) > 16 || len(t) > 1 && t[0] == '0' {
		return false
	}

	var n uint64
	for _, c := range t {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return false
		}

		n = n<<4 | uint64(c)
	}

	*to = n

	return true
}

func (s *scanner) index(to *uint) bool {
	var n uint64
	if !s.quantity(&n) || uint64(uint(n)) != n {
		return false
	}

	*to = uint(n)

	return true
}

var errSyntax = errors.New("not JSON-RPC")

// response is one of JSON-RPC: an answer or a notification. Its parts alias what was read.
type response struct {
	id                    uint64
	hasID                 bool
	result, fault, params []byte
	method                []byte
}

// splitResponses takes apart what a node sent, without decoding the results. single says that it was not a batch.
func splitResponses(b []byte) (list []response, single bool, err error) {
	s := &scanner{b: b}
	if !s.token('[') {
		r, ok := s.response()
		if s.space(); !ok || s.i != len(b) {
			return nil, true, errSyntax
		}

		return []response{r}, true, nil
	}

	if !s.token(']') {
		for {
			r, ok := s.response()
			if !ok {
				return nil, false, errSyntax
			}

			list = append(list, r)
			if s.token(',') {
				continue
			}

			if s.token(']') {
				break
			}

			return nil, false, errSyntax
		}
	}

	if s.space(); s.i != len(b) {
		return nil, false, errSyntax
	}

	return list, false, nil
}

func (s *scanner) response() (r response, ok bool) {
	if !s.token('{') {
		return r, false
	}

	if s.token('}') {
		return r, true
	}

	for {
		key, ok := s.text()
		if !ok || !s.token(':') {
			return r, false
		}

		value, ok := s.value()
		if !ok {
			return r, false
		}

		switch string(key) {
		case "id":
			if json.Unmarshal(value, &r.id) == nil && string(value) != "null" {
				r.hasID = true
			}
		case "result":
			r.result = value
		case "error":
			if string(value) != "null" {
				r.fault = value
			}
		case "method":
			r.method = bytes.Trim(value, `"`)
		case "params":
			r.params = value
		}

		if s.token(',') {
			continue
		}

		return r, s.token('}')
	}
}

// value passes over any value and returns it. Brackets and strings are matched; whoever decodes the
// value judges the rest.
func (s *scanner) value() ([]byte, bool) {
	s.space()
	start, depth := s.i, 0
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case '"':
			if !s.anyText() {
				return nil, false
			}
		case '{', '[':
			depth++
			s.i++
			continue
		case '}', ']':
			if depth == 0 {
				return s.b[start:s.i], s.i > start // the end of a number or word
			}

			depth--
			s.i++
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return s.b[start:s.i], s.i > start
			}

			s.i++

			continue
		default:
			s.i++
			continue
		}

		if depth == 0 {
			return s.b[start:s.i], true
		}
	}

	return s.b[start:s.i], depth == 0 && s.i > start
}

// anyText passes over a string with escapes.
func (s *scanner) anyText() bool {
	for s.i++; s.i < len(s.b); {
		n := bytes.IndexByte(s.b[s.i:], '"')
		if n < 0 {
			return false
		}

		s.i += n
		slashes := 0
		for s.b[s.i-1-slashes] == '\\' {
			slashes++
		}

		s.i++
		if slashes%2 == 0 {
			return true
		}
	}

	return false
}
