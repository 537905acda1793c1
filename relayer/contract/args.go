package contract

import "bytes"

// EachText calls each with the arguments of an event whose values are strings, in their order:
// addresses, integers, bytes. It reads what Decode wrote, where it stands: names have no escapes,
// and the value of an address, an integer or bytes has none. Other strings are handed over with
// their escapes as they are. It is some twenty times as fast as encoding/json, and most of what
// folding an event costs.
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

		at++ // what is escaped
	}

	return nil, len(in)
}

// skip returns where a value ends that is no string.
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
