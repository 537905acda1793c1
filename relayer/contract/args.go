package contract

import "bytes"

// EachText calls each for every argument of the event whose value is a string (an address, an integer,
// bytes or a text), in their order. It scans what Decode wrote and copies nothing: names have no
// escapes, nor has the value of an address, an integer or bytes; a text is passed with its escapes as
// they are. It is some twenty times as fast as encoding/json, and still most of the cost of folding
// an event.
func (e *Event) EachText(each func(name, value []byte)) {
	in := e.Args
	for at := 0; at < len(in); {
		if in[at] != '"' { // the brace that opens, a comma, a blank
			at++
			continue
		}

		name, next := text(in, at)
		for next < len(in) && (in[next] == ':' || in[next] == ' ') {
			next++
		}

		if next >= len(in) {
			return
		}

		if in[next] != '"' {
			at = skip(in, next)
			continue
		}

		var value []byte
		if value, at = text(in, next); value != nil {
			each(name, value)
		}
	}
}

// text returns the string that begins at a quote, without its quotes, and where it ends.
func text(in []byte, at int) (s []byte, next int) {
	start := at + 1
	for at = start; at < len(in); at++ {
		n := bytes.IndexAny(in[at:], `"\`)
		if n < 0 {
			break
		}

		if at += n; in[at] == '"' {
			return in[start:at], at + 1
		}

		at++ // past the escaped character
	}

	return nil, len(in)
}

// skip returns where a value that is not a string ends.
func skip(in []byte, at int) int {
	depth := 0
	for at < len(in) {
		switch in[at] {
		case '"':
			_, at = text(in, at)
			continue
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth <= 0 {
				return at + 1
			}
		case ',':
			if depth == 0 {
				return at
			}
		}

		at++
	}

	return at
}
