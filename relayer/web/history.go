package web

import (
	"slices"
	"sort"
	"time"
)

const (
	// historySpan is the time that the plots cover.
	historySpan = time.Hour
	// historySize is enough for a sample every two seconds; samples within historyStep of the last
	// are dropped.
	historySize = 1800
	historyStep = time.Second
)

// sample is the plots' data at one moment.
type sample struct {
	at                   time.Time
	head, target, cursor int64 // of this instance; 0: unknown
	lag                  int64
	outbox               int64 // of the fleet
	oldest               time.Duration
}

// history has the newest historySize samples, oldest first. It starts empty with the process.
type history struct{ samples []sample }

func (h *history) add(s sample) {
	n := len(h.samples)
	if n > 0 && s.at.Sub(h.samples[n-1].at) < historyStep {
		return
	}

	h.samples = append(h.samples, s)
	if n == historySize {
		h.samples = h.samples[1:]
	}
}

// since returns the samples after a time, oldest first.
func (h *history) since(t time.Time) []sample {
	first := sort.Search(len(h.samples), func(i int) bool { return h.samples[i].at.After(t) })
	return slices.Clone(h.samples[first:])
}
