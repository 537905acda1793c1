package relayer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// outage measures for how long the database has been out of reach, and ends an attempt to join that
// would outlast the limit: a connection may swallow bytes for ever, and DB_OUTAGE_LIMIT is a
// promise to the platform.
type outage struct {
	limit time.Duration

	mu    sync.Mutex
	last  time.Time   // when the database was last of use
	timer *time.Timer // of the attempt that is under way
}

// good says that the database is of use now.
func (o *outage) good() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	if o.timer != nil && o.timer.Stop() {
		o.timer.Reset(o.limit)
	}
}

// over says whether the database has been of no use for the limit.
func (o *outage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.last) >= o.limit
}

// bound returns a context that also ends when the limit is reached. end stops it from counting.
func (o *outage) bound(ctx context.Context) (attempt context.Context, end func()) {
	attempt, cancel := context.WithCancelCause(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	timer := time.AfterFunc(time.Until(o.last.Add(o.limit)), func() {
		cancel(fmt.Errorf("no use of the database for %s", o.limit))
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
