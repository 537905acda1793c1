package election

import "time"

// Clock returns the time since a fixed point in the past. It is monotonic and includes the time for
// which the machine was suspended: otherwise a lease would look valid on resume, long after the
// server has freed the locks.
type Clock func() time.Duration

// monotonic is the fallback clock: Go's, which on Linux stops while the machine is suspended.
func monotonic() Clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
