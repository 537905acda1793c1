package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory sets how hard the garbage collector works, unless GOGC and GOMEMLIMIT do. Garbage may
// grow to four tenths of what is in use (Go's default: to as much as that), which costs a few percent
// of processor time, since little is in use (internal/bench/MEASURED.md says what it saves). In a
// container the collector also works harder the closer the process comes to nine tenths of the
// container's memory; the last tenth is for what is not on the Go heap. The bound on the answers of
// nodes is computed from the same limit.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
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
