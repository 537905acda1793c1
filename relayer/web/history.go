package web

import (
	"time"
)

const (
	// historySpan is how much of the past the plots show.
	historySpan = time.Hour
	// historySize is enough for a sample every two seconds; those that come faster than historyStep are left out.
	historySize = 1800
	historyStep = time.Second
)

// sample is what the plots show of one moment.
type sample struct {
	at                   time.Time
	head, target, cursor int64 // of this instance; 0: unknown
	lag                  int64
	outbox               int64 // of the fleet
	oldest               time.Duration
}

// history is a ring of the samples of the last hour; it starts empty with the process.
type history struct {
	ring []sample
	next int // where the next one goes
}

func newHistory() *history { return &history{ring: make([]sample, 0, historySize)} }

func (h *history) add(s sample) {
	if n := len(h.ring); n > 0 && s.at.Sub(h.ring[(h.next+n-1)%n].at) < historyStep {
		return
	}

	if len(h.ring) < cap(h.ring) {
		h.ring = append(h.ring, s)
		return
	}

	h.ring[h.next] = s
	h.next = (h.next + 1) % len(h.ring)
}

// since returns the samples after a moment, oldest first.
func (h *history) since(t time.Time) []sample {
	out := make([]sample, 0, len(h.ring))
	for i := range h.ring {
		if s := h.ring[(h.next+i)%len(h.ring)]; s.at.After(t) {
			out = append(out, s)
		}
	}

	return out
}
