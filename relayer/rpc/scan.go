package rpc

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/go-json-experiment/json/jsontext"
)

// ParseLogs decodes the result of eth_getLogs. Logs in the form that most nodes give them are read
// token by token, without reflection; whatever else there is goes to encoding/json, whose judgement counts.
func ParseLogs(b []byte) ([]types.Log, error) {
	logs, ok := scanLogs(b)
	if !ok {
		var loose []looseLog
		if err := json.Unmarshal(b, &loose); err != nil {
			return nil, fmt.Errorf("%w: logs: %w", ErrInvalid, err)
		}

		if loose == nil {
			return nil, fmt.Errorf("%w: null instead of logs", ErrInvalid)
		}

		logs = make([]types.Log, len(loose))
		for i := range loose {
			logs[i] = types.Log(loose[i])
		}
	}

	for i := range logs {
		if err := checkTime(logs[i].BlockTimestamp); err != nil {
			return nil, fmt.Errorf("%w: log %d of block %d: %w", ErrInvalid, logs[i].Index, logs[i].BlockNumber, err)
		}
	}

	return logs, nil
}

// looseLog is a log with numbers as any node gives them. Of the rest it takes what types.Log takes.
type looseLog types.Log

// UnmarshalJSON decodes one log. A time that cannot be read is none: the block's header has it.
func (l *looseLog) UnmarshalJSON(b []byte) error {
	var j struct {
		Address        *common.Address `json:"address"`
		Topics         []common.Hash   `json:"topics"`
		Data           *hexutil.Bytes  `json:"data"`
		BlockNumber    number          `json:"blockNumber"`
		TxHash         *common.Hash    `json:"transactionHash"`
		TxIndex        number          `json:"transactionIndex"`
		BlockHash      *common.Hash    `json:"blockHash"`
		Index          number          `json:"logIndex"`
		BlockTimestamp json.RawMessage `json:"blockTimestamp"`
		Removed        bool            `json:"removed"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}

	if j.Address == nil || j.Topics == nil || j.Data == nil || j.TxHash == nil {
		return errors.New("log lacks address, topics, data or transactionHash")
	}

	*l = looseLog{Address: *j.Address, Topics: j.Topics, Data: *j.Data, BlockNumber: uint64(j.BlockNumber),
		TxHash: *j.TxHash, TxIndex: uint(j.TxIndex), Index: uint(j.Index), Removed: j.Removed}
	if j.BlockHash != nil {
		l.BlockHash = *j.BlockHash
	}

	var stamp number
	if json.Unmarshal(j.BlockTimestamp, &stamp) == nil {
		l.BlockTimestamp = uint64(stamp)
	}

	return nil
}

// number is one as any node gives it: hexadecimal, with leading zeros too, or a number of JSON. A
// string without 0x is none: it can be meant as either.
type number uint64

// UnmarshalJSON decodes a number; null leaves it as it was, as everywhere in encoding/json.
func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}

	text, base := string(b), 10
	if t, ok := digits(bytes.Replace(b, []byte(`"0X`), []byte(`"0x`), 1)); ok {
		text, base = string(t), 16
	}

	v, err := strconv.ParseUint(text, base, 64)
	if err != nil {
		return fmt.Errorf("%.40q is no number", b)
	}

	*n = number(v)

	return nil
}

// lastTime is the end of the year 9999, in unix seconds: no later time can be stored.
const lastTime = 253_402_300_799

// checkTime refuses a block's time that cannot be one in seconds.
func checkTime(t uint64) error {
	if t <= lastTime {
		return nil
	}

	const from, to = 946_684_800, 4_102_444_800 // the years 2000 to 2100
	for unit, perSecond := range map[string]uint64{"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9} {
		if s := t / perSecond; from <= s && s < to {
			return fmt.Errorf("the block's time %d seems to be in %s instead of seconds", t, unit)
		}
	}

	return fmt.Errorf("the block's time %d is beyond the year 9999", t)
}

// scanner reads JSON. Of logs it accepts less than encoding/json does, with the same result.
type scanner struct {
	*jsontext.Decoder
	b      []byte
	bytes  []byte        // what is left of a block of memory for Data
	hashes []common.Hash // and for Topics
}

func newScanner(b []byte) *scanner {
	// Names that come twice are noticed where it matters; nodes put what a contract says into their errors.
	lenient := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	return &scanner{Decoder: jsontext.NewDecoder(bytes.NewBuffer(b), lenient...), b: b}
}

// begins takes the bracket that opens an array or object, if it is next.
func (s *scanner) begins(kind jsontext.Kind) bool {
	if s.PeekKind() != kind {
		return false
	}

	_, err := s.ReadToken()

	return err == nil
}

// ends takes the bracket that closes an array or object, and says whether it was there.
func (s *scanner) ends() bool {
	_, err := s.ReadToken()
	return err == nil
}

// more says whether an array or object goes on: what is next neither closes it nor is wrong.
func (s *scanner) more() bool {
	switch s.PeekKind() {
	case jsontext.KindEndArray, jsontext.KindEndObject, jsontext.KindInvalid:
		return false
	}

	return true
}

// done says whether nothing follows.
func (s *scanner) done() bool {
	_, err := s.ReadToken()
	return errors.Is(err, io.EOF)
}

// value reads any value, and returns the part of the input that it is.
func (s *scanner) value() ([]byte, bool) {
	v, err := s.ReadValue()
	end := s.InputOffset()

	return s.b[end-int64(len(v)) : end], err == nil
}

// members of a log. The first of them are required.
var members = []string{
	"address", "topics", "data", "blockNumber", "transactionHash", "transactionIndex", "blockHash", "logIndex",
	"blockTimestamp", "removed",
}

const required = 1<<8 - 1 // a bit for each of the first eight

func scanLogs(b []byte) ([]types.Log, bool) {
	s := newScanner(b)
	if !s.begins(jsontext.KindBeginArray) {
		return nil, false
	}

	logs := make([]types.Log, 0, len(b)/600+1) // a log of one argument has some 600 bytes
	for s.more() {
		logs = append(logs, types.Log{})
		if !s.log(&logs[len(logs)-1]) {
			return nil, false
		}
	}

	return logs, s.ends() && s.done()
}

func (s *scanner) log(l *types.Log) bool {
	if !s.begins(jsontext.KindBeginObject) {
		return false
	}

	have := 0
	for s.more() {
		name, ok := s.value()
		if !ok {
			return false
		}

		bit, ok := s.member(l, name[1:len(name)-1])
		if !ok || have&bit != 0 {
			return false
		}

		have |= bit
	}

	return s.ends() && have&required == required
}

// member reads the value of one member of a log. It returns the member's bit, none for one that a
// log need not have.
func (s *scanner) member(l *types.Log, name []byte) (bit int, ok bool) {
	if string(name) == "topics" {
		return 1 << 1, s.topics(l)
	}

	v, ok := s.value()
	if !ok {
		return 0, false
	}

	switch string(name) {
	case "address":
		return 1 << 0, fixed(l.Address[:], v)
	case "data":
		return 1 << 2, s.data(l, v)
	case "blockNumber":
		return 1 << 3, quantity(&l.BlockNumber, v)
	case "transactionHash":
		return 1 << 4, fixed(l.TxHash[:], v)
	case "transactionIndex":
		return 1 << 5, quantity(&l.TxIndex, v)
	case "blockHash":
		return 1 << 6, fixed(l.BlockHash[:], v)
	case "logIndex":
		return 1 << 7, quantity(&l.Index, v)
	case "blockTimestamp":
		return 1 << 8, v[0] == 'n' || quantity(&l.BlockTimestamp, v)
	case "removed":
		l.Removed = v[0] == 't'
		return 1 << 9, v[0] == 't' || v[0] == 'f'
	}

	for _, m := range members { // encoding/json ignores case, and would take it for the member
		if strings.EqualFold(m, string(name)) {
			return 0, false
		}
	}

	return 0, !bytes.ContainsRune(name, '\\')
}

// digits are those of a string of the form 0x….
func digits(v []byte) ([]byte, bool) {
	if len(v) < 4 || string(v[:3]) != `"0x` {
		return nil, false
	}

	return v[3 : len(v)-1], true
}

func fixed(to, v []byte) bool {
	t, ok := digits(v)
	if !ok || len(t) != 2*len(to) {
		return false
	}

	_, err := hex.Decode(to, t)

	return err == nil
}

func (s *scanner) topics(l *types.Log) bool {
	if !s.begins(jsontext.KindBeginArray) {
		return false
	}

	const most = 4 // LOG4
	if len(s.hashes) < most {
		s.hashes = make([]common.Hash, 256)
	}

	n := 0
	for ; s.more(); n++ {
		v, ok := s.value()
		if !ok || n == most || !fixed(s.hashes[n][:], v) {
			return false
		}
	}

	l.Topics, s.hashes = s.hashes[:n:n], s.hashes[n:]

	return s.ends()
}

func (s *scanner) data(l *types.Log, v []byte) bool {
	t, ok := digits(v)
	if !ok || len(t)%2 != 0 {
		return false
	}

	n := len(t) / 2
	if len(s.bytes) < n || s.bytes == nil {
		s.bytes = make([]byte, max(n, 16<<10))
	}

	l.Data, s.bytes = s.bytes[:n:n], s.bytes[n:]
	_, err := hex.Decode(l.Data, t)

	return err == nil
}

// quantity reads a number as JSON-RPC writes it: hexadecimal, without leading zeros.
func quantity[N uint | uint64](to *N, v []byte) bool {
	t, ok := digits(v)
	if !ok || len(t) > 1 && t[0] == '0' {
		return false
	}

	n, err := strconv.ParseUint(string(t), 16, 64)
	*to = N(n)

	return err == nil && uint64(*to) == n
}

var errSyntax = errors.New("not JSON-RPC")

// response is one of JSON-RPC: an answer or a notification. Its parts alias what was read.
type response struct {
	id                    uint64
	hasID                 bool
	result, fault, params []byte
	method                []byte
}

// maxResponses bounds the responses of a message that need not be the answer to a certain batch.
// Batches have far fewer requests.
const maxResponses = 1000

// splitResponses takes apart what a node sent, without decoding the results. single says that it was
// not a batch. More than most responses are an error: a response can be as short as two bytes, and
// a list of millions takes far more memory than the answer itself.
func splitResponses(b []byte, most int) (list []response, single bool, err error) {
	s := newScanner(b)
	single = !s.begins(jsontext.KindBeginArray)
	for single && len(list) == 0 || !single && s.more() {
		if len(list) == most {
			return nil, single, fmt.Errorf("%w: more than %d responses", ErrInvalid, most)
		}

		r, ok := s.response()
		if !ok {
			return nil, single, garbled(b, errSyntax)
		}

		list = append(list, r)
	}

	if !single && !s.ends() || !s.done() {
		return nil, single, garbled(b, errSyntax)
	}

	return list, single, nil
}

func (s *scanner) response() (r response, ok bool) {
	if !s.begins(jsontext.KindBeginObject) {
		return r, false
	}

	for s.more() {
		name, ok := s.value()
		if !ok {
			return r, false
		}

		value, ok := s.value()
		if !ok {
			return r, false
		}

		switch string(name) {
		case `"id"`:
			r.hasID = json.Unmarshal(value, &r.id) == nil && value[0] != 'n'
		case `"result"`:
			r.result = value
		case `"error"`:
			if value[0] != 'n' {
				r.fault = value
			}
		case `"method"`:
			r.method = bytes.Trim(value, `"`)
		case `"params"`:
			r.params = value
		}
	}

	return r, s.ends()
}
