package rpc

import "bytes"

// trim passes JSON on as it arrives, short of what would make a decoder hold a long token: a string ends
// after longest bytes with cutMark, a number or word after longestWord, and a run of blanks after one. The
// result is JSON wherever the original is. The zero value but for longest is ready for use.
type trim struct {
	longest int
	length  int  // of the token so far, in bytes
	quoted  bool // inside a string
	slash   bool // behind a backslash
	escape  int  // hexadecimal digits of \u that are due
	cut     bool // the rest of the string is left out
	blank   bool // the last byte was one
}

const (
	// cutMark stands for the rest of a string. It is no digit: what was cut is never taken for a whole.
	cutMark = '~'
	// longestWord is more than any number of a node has: 78 digits are 256 bits.
	longestWord = 100
)

// pass shortens b in place.
func (t *trim) pass(b []byte) []byte {
	kept := b[:0]
	for _, c := range b {
		if t.quoted {
			if t.keepsOfString(c) {
				if t.cut {
					c = cutMark
				}

				kept = append(kept, c)
			}

			continue
		}

		blank := c == ' ' || c == '\n' || c == '\t' || c == '\r'
		t.length++
		switch {
		case blank && t.blank:
			continue
		case blank, bytes.IndexByte([]byte("{}[],:"), c) >= 0:
			t.length = 0
		case c == '"':
			t.quoted, t.length = true, 0
		case t.length > longestWord:
			continue
		}

		t.blank = blank
		kept = append(kept, c)
	}

	return kept
}

// keepsOfString reports whether the next byte of a string is passed on, where t.cut says: as cutMark.
func (t *trim) keepsOfString(c byte) bool {
	whole := !t.slash && t.escape == 0 // no escape is broken off
	switch {
	case t.slash:
		if t.slash = false; c == 'u' {
			t.escape = 4
		}
	case t.escape > 0:
		t.escape--
	case c == '\\':
		t.slash = true
	case c == '"':
		t.quoted, t.cut, t.blank = false, false, false
		t.length = 0

		return true
	}

	t.length++
	if t.cut {
		return false
	}

	t.cut = whole && t.length > t.longest

	return true
}
