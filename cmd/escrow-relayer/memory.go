package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory has the garbage collector work harder than Go's defaults do, where GOGC and GOMEMLIMIT
// do not say how hard. Garbage may grow to half of what is in use, not to as much: a backfill's peak
// is a sixth smaller, for a few percent of processor time. And before the container's memory is used
// up, there is less of it still: a tenth is left to what the Go heap does not count. What bounds the
// answers of nodes goes by the same limit.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}

	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}

	if limit := containerMemory("/sys/fs/cgroup"); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit - limit/10)
	}
}

// containerMemory is how much memory the control group of a container may use, in bytes, as version
// 2 or version 1 of control groups says it; math.MaxInt64 where there is no limit.
func containerMemory(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue
		}

		// "max", and in version 1 a number beyond all memory, say that there is no limit
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < 1<<50 {
			return limit
		}
	}

	return math.MaxInt64
}
