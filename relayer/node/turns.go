package node

import (
	"context"
	"sync"
)

// RangesInFlight hides a provider's latency; more would only meet its rate limit.
const RangesInFlight = 4

// turns is how many ranges a node is asked for at a time: one until it has answered and again after
// each refusal, one more with each answer.
type turns struct {
	mu       sync.Mutex
	width    int
	inFlight int
	leaving  chan struct{} // closed and made anew when one leaves
}

func newTurns() *turns { return &turns{width: 1, leaving: make(chan struct{})} }

// enter waits for a turn to ask. leave ends it.
func (t *turns) enter(ctx context.Context) error {
	for {
		t.mu.Lock()
		if t.inFlight < t.width {
			t.inFlight++
			t.mu.Unlock()
			return nil
		}

		leaving := t.leaving
		t.mu.Unlock()
		select {
		case <-leaving:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight--
	close(t.leaving)
	t.leaving = make(chan struct{})
}

// widen has one more request go at a time.
func (t *turns) widen() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.width = min(t.width+1, RangesInFlight)
}

// narrow has requests go one at a time again.
func (t *turns) narrow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.width = 1
}
