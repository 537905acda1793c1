package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// resident is the memory of a relayer in MiB.
func resident(m lab.Metrics) float64 { return m.Sum("process_resident_memory_bytes") / (1 << 20) }

// peakMemory is the most that a process had resident at once, in MiB (VmHWM of proc(5)).
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}

	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}

	return 0, fmt.Errorf("read the memory of process %d: no VmHWM in its status", pid)
}

// usage is what relayers have used since they started.
type usage struct {
	requests float64 // at the chain's nodes; each call of a batch counts
	bytes    float64 // sent to and received from them
	refused  float64 // requests whose range was refused as too large
	cpu      float64 // seconds
}

// used reads the usage of all relayers together from their own metrics.
func used(ctx context.Context, relayers ...*lab.Process) (u usage, err error) {
	for _, p := range relayers {
		m, err := p.Metrics(ctx)
		if err != nil {
			return u, err
		}

		if m["relayer_rpc_requests_total"] == nil || m["process_cpu_seconds_total"] == nil {
			return u, fmt.Errorf("read the metrics of %s: its requests or its CPU time are not among them", p.ID)
		}

		u.requests += m.Sum("relayer_rpc_requests_total")
		u.refused += m.Sum("relayer_rpc_requests_total", "outcome", "range_too_large")
		u.bytes += m.Sum("relayer_rpc_sent_bytes_total") + m.Sum("relayer_rpc_received_bytes_total")
		u.cpu += m.Sum("process_cpu_seconds_total")
	}

	return u, nil
}

func (u usage) minus(v usage) usage {
	return usage{u.requests - v.requests, u.bytes - v.bytes, u.refused - v.refused, u.cpu - v.cpu}
}

func (u usage) times(k float64) usage {
	return usage{u.requests * k, u.bytes * k, u.refused * k, u.cpu * k}
}
