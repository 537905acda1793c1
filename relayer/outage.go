package relayer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// outage measures for how long the database has been out of reach, and ends an attempt to join that
// would last longer than the limit: a connection may swallow bytes for ever, and the platform relies
// on DB_OUTAGE_LIMIT.
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

// over says whether the database has not worked for the limit.
func (o *outage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.last) >= o.limit
}

// bound returns a context that also ends when the limit is reached. end frees it and stops the counting.
func (o *outage) bound(ctx context.Context) (attempt context.Context, end func()) {
	attempt, cancel := context.WithCancelCause(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	timer := time.AfterFunc(time.Until(o.last.Add(o.limit)), func() {
		cancel(fmt.Errorf("the database has not worked for %s", o.limit))
	})
	o.timer = timer

	return attempt, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		timer.Stop()
		if o.timer == timer {
			o.timer = nil
		}

		cancel(nil)
	}
}
