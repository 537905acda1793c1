package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

var errSyntax = errors.New("not JSON-RPC")

const (
	// maxResponses bounds the responses of a message that need not be the answer to a certain batch.
	// Batches have far fewer requests.
	maxResponses = 1000
	// maxHeld bounds what is held of a message as it came, in bytes: a header, a node's words.
	maxHeld = 8 << 20
)

// message is what a node sends, taken apart while it arrives: the logs of a block can be made so that
// they have a hundred megabytes.
type message struct {
	*jsontext.Decoder
	from    io.Reader
	limit   int64 // of bytes
	read    int64
	arrived func() // to be called when it begins to arrive; nil: none, or it was
	begin   []byte // its first bytes, at most maxPage
	broken  error  // why it did not come to its end; nil: it did, or has not yet
}

func newMessage(from io.Reader, limit int64) *message {
	m := &message{from: from, limit: limit}
	// A name that comes twice is the node's matter; nodes put what a contract says into their errors.
	m.Decoder = jsontext.NewDecoder((*arriving)(m), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

	return m
}

// arriving is a message as its decoder reads it.
type arriving message

func (m *arriving) Read(b []byte) (int, error) {
	if m.read >= m.limit { // one byte more than the limit tells an answer that is too large from one that is not
		b = b[:min(len(b), 1)]
	}

	n, err := m.from.Read(b)
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

// response is one of JSON-RPC: an answer or a notification.
type response struct {
	id            uint64
	hasID         bool
	method        string
	fault, params []byte
	answered      bool // it has a result
	answer        Answer
}

// responses takes a message apart. asked is the request that has an id, whose method says what its
// result is, and is nil for one that nobody waits for; or the only one that there can be where the id
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
	_, _ = io.CopyN(io.Discard, (*arriving)(m), maxFault)
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

// ends takes the bracket that closes an array or object, and says whether it was there.
func (m *message) ends() bool {
	_, err := m.ReadToken()
	return err == nil
}

// more says whether an array or object goes on: what is next neither closes it nor is wrong.
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
		v, err = m.held(maxHeld)
		r.hasID = err == nil && v[0] != 'n' && json.Unmarshal(bytes.Trim(v, `"`), &r.id) == nil // some proxies quote it
	case "result":
		r.answered = true
		return m.result(r, asked(r.id, r.hasID))
	case "error":
		if v, err = m.held(maxHeld); err == nil && v[0] != 'n' {
			r.fault = v
		}
	case "method":
		v, err = m.held(maxHeld)
		r.method = string(bytes.Trim(v, `"`))
	case "params":
		r.params, err = m.held(maxHeld)
	default:
		err = m.SkipValue()
	}

	return err
}

// result reads what was asked for. Of nodes that give the id behind it, and of those that answer
// several at once, it is not known yet what that is.
func (m *message) result(r *response, q *Call) (err error) {
	switch {
	case q == nil && r.hasID:
		return m.SkipValue()
	case q == nil && m.PeekKind() == jsontext.KindBeginArray:
		r.answer.Result, err = m.held(m.limit)
	case q == nil || !q.Streams():
		r.answer.Result, err = m.held(maxHeld)
	default:
		return r.answer.stream(m.Decoder, q)
	}

	return err
}

// held reads a value, of so many bytes at most, and keeps it as it is.
func (m *message) held(most int64) ([]byte, error) {
	limit := m.limit
	m.limit = min(limit, m.InputOffset()+most)
	v, err := m.ReadValue()
	m.limit = limit

	return bytes.Clone(v), err
}
