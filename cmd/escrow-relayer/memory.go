package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory tunes the garbage collector, unless GOGC and GOMEMLIMIT do. Garbage may grow to seven
// tenths of the live heap: with four tenths a backfill publishes a sixth less, with Go's default, as
// much as the live heap, it takes up to 157 MiB (internal/bench/MEASURED.md). In a
// container the collector also works harder as the process approaches nine tenths of the
// container's memory; the last tenth is for memory outside the Go heap. The bound on the answers of
// nodes is computed from the same limit.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(70)
	}

	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}

	if limit := containerMemory("/sys/fs/cgroup"); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit - limit/10)
	}
}

// containerMemory is the memory limit of a container's control group, in bytes, from version 2 or
// version 1 of control groups; math.MaxInt64 without a limit.
func containerMemory(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue
		}

		// "max", and in version 1 a number beyond all memory, mean no limit
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < 1<<50 {
			return limit
		}
	}

	return math.MaxInt64
}
