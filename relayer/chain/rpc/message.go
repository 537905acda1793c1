package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

var errSyntax = errors.New("not JSON-RPC")

const (
	// maxResponses bounds the responses of a message that need not be the answer to a certain batch.
	// Batches have far fewer requests.
	maxResponses = 1000
	// maxHeld bounds what is held of a message as it came, in bytes, all values together.
	maxHeld = 8 << 20
	// maxValue bounds one result that is held, in bytes: the code of a contract, a receipt.
	maxValue = 1 << 20
	// maxJunk bounds a member that nothing asked for, and an id or the name of a method.
	maxJunk = 64 << 10
	// A value that the decoder holds has up to one part in shortValues of what the whole message may have, but up to
	// maxValue in any case: so it takes memory in proportion.
	shortValues = 16
)

// message is what a node sends, taken apart while it arrives: the logs of a block can be made so that
// they have a hundred megabytes. What is held of it is bounded: by longest, and more narrowly by window.
type message struct {
	*jsontext.Decoder
	from    io.Reader
	limit   int64 // of bytes that are read
	read    int64
	longest int64 // bytes that the decoder may hold: of a string, or a value that is decoded as a whole
	window  int64 // how many bytes may be read for the value that is decoded: more is excess
	excess  error
	room    int64  // bytes that may yet be held as they come
	arrived func() // to be called when it begins to arrive; nil: none, or it was
	begin   []byte // its first bytes, at most maxPage
	broken  error  // why it did not come to its end; nil: it did, or has not yet
}

func newMessage(from io.Reader, limit int64) *message {
	m := &message{from: from, limit: limit, window: math.MaxInt64, room: maxHeld,
		longest: max(limit/shortValues, maxValue)}
	// A name that comes twice is the node's matter; nodes put what a contract says into their errors.
	m.Decoder = jsontext.NewDecoder((*arriving)(m), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

	return m
}

// arriving is a message as its decoder reads it.
type arriving message

func (m *arriving) Read(b []byte) (n int, err error) {
	switch {
	case m.broken != nil:
	case m.read-m.InputOffset() > m.longest:
		m.broken = fmt.Errorf("%w: one value with more than %d bytes", ErrTooLarge, m.longest)
	case m.read >= m.window: // what the decoder has is not enough for it
		m.broken = m.excess
	}

	if m.broken != nil {
		return 0, m.broken
	}

	b = b[:min(int64(len(b)), m.window-m.read)] // what follows the value may be as long
	if m.read >= m.limit {                      // one byte more tells an answer that is too large from one that is not
		b = b[:min(len(b), 1)]
	}

	n, err = m.from.Read(b)
	m.read += int64(n)
	if n > 0 && m.arrived != nil {
		m.arrived()
		m.arrived = nil
	}

	m.begin = append(m.begin, b[:min(n, maxPage-len(m.begin))]...)
	if m.read > m.limit {
		n, err = 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, m.limit)
	}

	if err != nil && !errors.Is(err, io.EOF) {
		m.broken = err
	}

	return n, err
}

// within has do read no more than so many bytes; more is the error excess.
func (m *message) within(most int64, excess error, do func() error) error {
	window, before := m.window, m.excess
	if end := m.InputOffset() + most; end < window {
		m.window, m.excess = end, excess
	}

	err := do()
	m.window, m.excess = window, before

	return err
}

// skip passes over a value that nothing asked for.
func (m *message) skip() error {
	return m.within(maxJunk, fmt.Errorf("%w: what was not asked for", ErrOversized), m.SkipValue)
}

// response is one of JSON-RPC: an answer or a notification.
type response struct {
	id            uint64
	hasID         bool
	method        string
	fault, params []byte
	answered      bool // it has a result
	answer        Answer
}

// responses takes a message apart. asked is the request that has an id: its method says what its
// result is. It is nil for one that has stopped waiting; or the only one that there can be where the id
// has not come yet, nil where there are several. single says that the message was not a batch. More
// than most responses are an error: one can be as short as two bytes, and a list of millions takes far
// more memory than the message itself.
func (m *message) responses(most int, asked func(id uint64, known bool) *Call) (list []response, single bool,
	err error) {
	single = !m.begins(jsontext.KindBeginArray)
	for single && len(list) == 0 || !single && more(m.Decoder) {
		if len(list) == most {
			return nil, single, fmt.Errorf("%w: more than %d responses", ErrInvalid, most)
		}

		r, err := m.response(asked)
		if err != nil {
			return nil, single, m.unreadable()
		}

		list = append(list, r)
	}

	if !single && !m.ends() {
		return nil, single, m.unreadable()
	}

	if _, err := m.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, single, m.unreadable()
	}

	return list, single, nil
}

// unreadable is the error of a message that broke off, or is no JSON-RPC. It reads a proxy's page to its
// end, for its words and so that the connection can be used again.
func (m *message) unreadable() error {
	if m.broken == nil {
		m.longest = m.limit // it is passed over
		_, _ = io.CopyN(io.Discard, (*arriving)(m), maxFault)
	}

	if m.broken != nil {
		return m.broken
	}

	return garbled(m.begin, errSyntax)
}

// begins takes the bracket that opens an array or object, if it is next.
func (m *message) begins(kind jsontext.Kind) bool {
	if m.PeekKind() != kind {
		return false
	}

	_, err := m.ReadToken()

	return err == nil
}

// ends takes the bracket that closes an array or object, and reports whether it was there.
func (m *message) ends() bool {
	_, err := m.ReadToken()
	return err == nil
}

// more reports whether an array or object goes on: what is next neither closes it nor is wrong.
func more(d *jsontext.Decoder) bool {
	switch d.PeekKind() {
	case jsontext.KindEndArray, jsontext.KindEndObject, jsontext.KindInvalid:
		return false
	}

	return true
}

func (m *message) response(asked func(id uint64, known bool) *Call) (r response, err error) {
	if !m.begins(jsontext.KindBeginObject) {
		return r, errSyntax
	}

	for err == nil && more(m.Decoder) {
		var name jsontext.Token
		if name, err = m.ReadToken(); err == nil {
			err = m.member(&r, name.String(), asked)
		}
	}

	if err == nil && !m.ends() {
		err = errSyntax
	}

	return r, err
}

// member reads one of a response's.
func (m *message) member(r *response, name string, asked func(id uint64, known bool) *Call) (err error) {
	var v []byte
	switch name {
	case "id":
		v, err = m.held(maxJunk)
		id := bytes.TrimSuffix(bytes.Trim(v, `"`), []byte(".0")) // some proxies quote it, or have it as a float
		r.hasID = err == nil && v[0] != 'n' && json.Unmarshal(id, &r.id) == nil
	case "result":
		r.answered = true
		return m.result(r, asked(r.id, r.hasID))
	case "error":
		if v, err = m.held(maxHeld); err == nil && v[0] != 'n' {
			r.fault = v
		}
	case "method":
		v, err = m.held(maxJunk)
		r.method = string(bytes.Trim(v, `"`))
	case "params":
		r.params, err = m.notified()
	default:
		err = m.skip()
	}

	return err
}

// result reads what was asked for. Of nodes that give the id behind it, and of those that answer
// several at once, it is not known yet what that is.
func (m *message) result(r *response, q *Call) (err error) {
	switch {
	case q == nil && r.hasID:
		return m.SkipValue()
	case q == nil:
		r.answer.Result, err = m.held(maxHeld)
	case q.IsHeader():
		r.answer.Result, err = m.header(&r.answer, q)
	case q.Streams():
		return r.answer.stream(m, q)
	default:
		r.answer.Result, err = m.held(maxValue)
	}

	return err
}

// held reads a value, of so many bytes at most, and keeps it as it is.
func (m *message) held(most int64) ([]byte, error) {
	excess := fmt.Errorf("%w: one value with more than %d bytes", ErrOversized, most)
	if most > m.room {
		most, excess = m.room, fmt.Errorf("%w: values with more than %d bytes", ErrTooLarge, maxHeld)
	}

	var v []byte
	err := m.within(most, excess, func() (err error) {
		v, err = m.ReadValue()
		return err
	})
	m.room -= int64(len(v))

	return bytes.Clone(v), err
}

// header reads a block as eth_getBlockByNumber gives it and keeps what a header has: members that are
// strings or numbers. A list or object is passed over; of transactions their number is kept, and they
// themselves in the answer to a request that has them encoded. q is nil where none was made.
func (m *message) header(a *Answer, q *Call) ([]byte, error) {
	if m.PeekKind() != jsontext.KindBeginObject {
		return m.held(maxJunk)
	}

	if _, err := m.ReadToken(); err != nil {
		return nil, err
	}

	kept := []byte{'{'}
	for more(m.Decoder) {
		name, err := m.held(maxJunk)
		if err != nil {
			return nil, err
		}

		counts := string(name) == `"transactions"`
		if counts && q != nil && q.Encode && m.PeekKind() == jsontext.KindBeginArray {
			if err := a.transactions(m); err != nil {
				return nil, err
			}

			value := strconv.Itoa(len(a.Hashes))
			kept = appendMember(kept, name, []byte(value))

			continue
		}

		value, err := m.headerMember(counts)
		switch {
		case err != nil:
			return nil, err
		case value != nil:
			kept = appendMember(kept, name, value)
		}
	}

	_, err := m.ReadToken()

	return append(kept, '}'), err
}

// appendMember appends a member to an object that is not closed yet.
func appendMember(object, name, value []byte) []byte {
	if len(object) > 1 {
		object = append(object, ',')
	}

	return append(append(append(object, name...), ':'), value...)
}

// headerMember reads the value of one member of a block; nil: a list or object that is not counted.
func (m *message) headerMember(counts bool) ([]byte, error) {
	switch kind := m.PeekKind(); {
	case kind == jsontext.KindBeginArray && counts:
		n, err := countList(m.Decoder)
		return strconv.AppendInt(nil, int64(n), 10), err
	case kind == jsontext.KindBeginArray || kind == jsontext.KindBeginObject:
		return nil, m.SkipValue()
	}

	return m.held(maxJunk)
}

// countList counts what a list has.
func countList(d *jsontext.Decoder) (n int, err error) {
	if _, err := d.ReadToken(); err != nil {
		return 0, err
	}

	for ; more(d); n++ {
		if err := d.SkipValue(); err != nil {
			return n, err
		}
	}

	_, err = d.ReadToken()

	return n, err
}

// notified reads the parameters of a notification, and keeps the header that is their member result.
func (m *message) notified() (header []byte, err error) {
	if m.PeekKind() != jsontext.KindBeginObject {
		return nil, m.skip()
	}

	_, err = m.ReadToken()
	for err == nil && more(m.Decoder) {
		var name jsontext.Token
		if name, err = m.ReadToken(); err != nil {
			break
		}

		if name.String() == "result" {
			header, err = m.header(nil, nil)
		} else {
			err = m.skip()
		}
	}

	if err == nil {
		_, err = m.ReadToken()
	}

	return header, err
}
