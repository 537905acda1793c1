package logging

import (
	"strings"
	"time"
	"unicode"
)

// Repeats keeps the log from saying the same at each try: what goes wrong may be tried twice per
// second, for hours. The zero value has heard nothing. It is not for concurrent use.
type Repeats struct {
	text string // without numbers: a block's, or a time's, make no new reason
	at   time.Time
}

// Lately says whether an error has come within a while. If not, it counts as heard now.
func (r *Repeats) Lately(err error, now time.Time, while time.Duration) bool {
	text := strings.Map(func(c rune) rune {
		if unicode.IsDigit(c) {
			return -1
		}

		return c
	}, err.Error())
	if text == r.text && now.Sub(r.at) < while {
		return true
	}

	r.text, r.at = text, now

	return false
}
