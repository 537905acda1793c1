package election

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemClock reads CLOCK_BOOTTIME, which includes the time for which the machine was suspended
// (clock_gettime(2)). A sandbox that refuses the call gets Go's clock.
func systemClock() Clock {
	if _, err := boottime(); err != nil {
		return monotonic()
	}

	return func() time.Duration {
		now, err := boottime()
		if err != nil {
			panic("clock_gettime(CLOCK_BOOTTIME) worked a moment ago: " + err.Error())
		}

		return now
	}
}

func boottime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano()), err
}
