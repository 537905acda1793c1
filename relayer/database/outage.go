package database

import (
	"context"
	"sync"
	"time"
)

// Outage measures how long the database has been out of reach, and ends an attempt to join at the
// limit: a broken connection may stay silent for ever, and the process must still end.
type Outage struct {
	Limit time.Duration

	mu    sync.Mutex
	last  time.Time   // when the database last worked
	timer *time.Timer // of the current attempt
}

// Good records that the database works now.
func (o *Outage) Good() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	if o.timer != nil && o.timer.Stop() {
		o.timer.Reset(o.Limit)
	}
}

// Left is the time until the limit; zero or negative once the database has failed for that long.
func (o *Outage) Left() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Until(o.last.Add(o.Limit))
}

// Bound returns a context that also ends when the limit is reached. end frees it and stops the
// timer.
func (o *Outage) Bound(ctx context.Context) (attempt context.Context, end func()) {
	attempt, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	timer := time.AfterFunc(time.Until(o.last.Add(o.Limit)), cancel)
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
