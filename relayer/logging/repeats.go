package logging

import (
	"strings"
	"time"
	"unicode"
)

// Repeats suppresses repetitions in the log: a failing operation may be retried twice per second,
// for hours. The zero value is ready. It is for one goroutine.
type Repeats struct {
	text string // without digits: a new block number or time is the same reason
	at   time.Time
}

// Lately reports whether an error has occurred within a time. If not, it is recorded now.
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
