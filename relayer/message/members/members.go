// Package members iterates over the members of a JSON object without decoding them. It only locates
// names and values, some ten times as fast as encoding/json: the arguments of each event are read
// twice, when it is folded into its record and when it is published.
package members

import (
	"bytes"
	"errors"
	"strings"
)

var errNoObject = errors.New("not a JSON object with plain names")

// Each calls each for every member of an object, in order: the name without its quotes, and the raw
// value. It copies no bytes. Names are identifiers, hence free of escapes. Valid JSON is read to
// its end; invalid JSON may go undetected.
func Each(object []byte, each func(name, value []byte)) error {
	s := scanner{in: object}
	if !s.take('{') {
		return errNoObject
	}

	for first := true; !s.take('}'); first = false {
		if !first && !s.take(',') {
			return errNoObject
		}

		s.blank()
		name := s.text()
		if name == nil || bytes.IndexByte(name, '\\') >= 0 || !s.take(':') {
			return errNoObject
		}

		value := s.value()
		if value == nil {
			return errNoObject
		}

		each(name[1:len(name)-1], value)
	}

	if s.blank(); s.at != len(object) {
		return errNoObject
	}

	return nil
}

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

// text reads a string, with its quotes; nil if there is none.
func (s *scanner) text() []byte {
	if s.at >= len(s.in) || s.in[s.at] != '"' {
		return nil
	}

	start := s.at
	for s.at++; s.at < len(s.in); s.at++ {
		n := bytes.IndexAny(s.in[s.at:], `"\`)
		if n < 0 {
			break
		}

		if s.at += n; s.in[s.at] == '"' {
			s.at++
			return s.in[start:s.at]
		}

		s.at++ // past the escaped character
	}

	return nil
}

// value reads a value of any kind; nil if there is none.
func (s *scanner) value() []byte {
	s.blank()
	start, depth := s.at, 0
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case '"':
			if s.text() == nil {
				return nil
			}
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			if depth--; depth < 0 {
				return nil
			}

			s.at++
		case 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			for s.at < len(s.in) && strings.IndexByte(" \n\t\r,:{}[]\"", s.in[s.at]) < 0 {
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
