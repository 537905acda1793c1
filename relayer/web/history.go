package web

import (
	"slices"
	"sort"
	"sync"
	"time"
)

const (
	// historySpan is the time that the plots cover.
	historySpan = time.Hour
	sampleEvery = 2 * time.Second
	historySize = 1800 // historySpan, a sample each sampleEvery
)

// sample is the plots' data at one moment.
type sample struct {
	at                   time.Time
	head, target, cursor int64 // of this instance; 0: unknown
	lag                  int64
	outbox               int64 // of the fleet
	oldest               time.Duration
}

// history has the newest historySize samples, oldest first. It starts empty with the process, and is safe for
// concurrent use.
type history struct {
	mu      sync.Mutex
	samples []sample
}

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples = append(h.samples, s)
	if len(h.samples) > historySize {
		h.samples = h.samples[1:]
	}
}

// since returns the samples after a time, oldest first.
func (h *history) since(t time.Time) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := sort.Search(len(h.samples), func(i int) bool { return h.samples[i].at.After(t) })
	return slices.Clone(h.samples[first:])
}
