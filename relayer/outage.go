package relayer

import (
	"context"
	"sync"
	"time"
)

// outage measures for how long the database has been out of reach, and ends an attempt to join at the
// limit: a connection may swallow bytes for ever, and then the process must end nevertheless.
type outage struct {
	limit time.Duration

	mu    sync.Mutex
	last  time.Time   // when the database last worked
	timer *time.Timer // of the attempt that is under way
}

// good notes that the database works now.
func (o *outage) good() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	if o.timer != nil && o.timer.Stop() {
		o.timer.Reset(o.limit)
	}
}

// left is how long it may go on like this: nothing or less once the database has not worked for the limit.
func (o *outage) left() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Until(o.last.Add(o.limit))
}

// bound returns a context that also ends when the limit is reached. end frees it and stops the counting.
func (o *outage) bound(ctx context.Context) (attempt context.Context, end func()) {
	attempt, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	timer := time.AfterFunc(time.Until(o.last.Add(o.limit)), cancel)
	o.timer = timer

	return attempt, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		timer.Stop()
		if o.timer == timer {
			o.timer = nil
		}

		cancel()
	}
}
