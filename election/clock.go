package election

import "time"

// Clock tells the time since some moment in the past. It never goes back, and it goes on while the
// machine is suspended. By a clock that stands still meanwhile, a lease would look valid on resume,
// long after the server has freed the locks.
type Clock func() time.Duration

// monotonic is the clock for systems that have no better one: Go's own, which on Linux stands still
// while the machine is suspended.
func monotonic() Clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
