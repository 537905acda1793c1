package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// metrics of a relayer at one moment, as it serves them.
type metrics map[string]*dto.MetricFamily

// scrape reads the metrics of a relayer.
func scrape(ctx context.Context, p *lab.Process) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/metrics", nil)
	if err != nil {
		return nil, err
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.ID, err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.ID, err)
	}

	return families, nil
}

// sum of the series of a metric that have all the labels, given as name, value, name, value; zero
// if there is none.
func (m metrics) sum(name string, labels ...string) (sum float64) {
	for _, series := range m[name].GetMetric() {
		matches := true
		for i := 0; i < len(labels); i += 2 {
			has := false
			for _, l := range series.GetLabel() {
				has = has || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}

			matches = matches && has
		}

		if matches {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
		}
	}

	return sum
}

// resident memory in MiB.
func (m metrics) resident() float64 { return m.sum("process_resident_memory_bytes") / (1 << 20) }

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
		m, err := scrape(ctx, p)
		if err != nil {
			return u, err
		}

		if m["relayer_rpc_requests_total"] == nil || m["process_cpu_seconds_total"] == nil {
			return u, fmt.Errorf("read the metrics of %s: its requests or its CPU time are not among them", p.ID)
		}

		u.requests += m.sum("relayer_rpc_requests_total")
		u.refused += m.sum("relayer_rpc_requests_total", "outcome", "range_too_large")
		u.bytes += m.sum("relayer_rpc_sent_bytes_total") + m.sum("relayer_rpc_received_bytes_total")
		u.cpu += m.sum("process_cpu_seconds_total")
	}

	return u, nil
}

func (u usage) minus(v usage) usage {
	return usage{u.requests - v.requests, u.bytes - v.bytes, u.refused - v.refused, u.cpu - v.cpu}
}

func (u usage) times(k float64) usage {
	return usage{u.requests * k, u.bytes * k, u.refused * k, u.cpu * k}
}
