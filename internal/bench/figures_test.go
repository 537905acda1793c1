//go:build long

package bench

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// tiny are options with which every benchmark takes seconds. Its figures mean nothing.
func tiny(t *testing.T) *Options {
	bin := filepath.Join(t.TempDir(), "escrow-relayer")
	require.NoError(t, lab.Build(t.Context(), "../../cmd/escrow-relayer", bin))

	return &Options{Bin: bin, Scale: 0.004, Runs: 1, Trials: 1, Blocks: 2, Minutes: 0.1, Commit: "test",
		Plots: t.TempDir(), Log: logTo{t}}
}

// logTo is a test's log as a Writer.
type logTo struct{ t *testing.T }

func (l logTo) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// TestEveryFigure runs every benchmark on the real binary, as small as possible, and checks which
// figures there are, and how many samples each has.
func TestEveryFigure(t *testing.T) {
	o := tiny(t)
	want := map[string]struct {
		figures map[string]int // samples by name
		plots   []string
	}{
		"backfill": {figures: map[string]int{
			"backfill.floor": 1, "backfill.stored": 2, "backfill.published.escrow": 1, "backfill.published.slot": 1,
			"backfill.plain.escrow": 1, "backfill.drained.escrow": 1, "backfill.plain.slot": 1, "backfill.drained.slot": 1,
			"backfill.peak": 4, "backfill.wal": 2,
		}},
		"live": {figures: map[string]int{"live.ws.p50": 40, "live.ws.p99": 40, "live.ws.rpc": 1, "live.http.p50": 40,
			"live.ws.jitter.p50": 40, "live.http.jitter.p99": 40}},
		"start": {figures: map[string]int{"start.1of1.ready": 1, "start.1of1.rss": 1, "start.1of10.ready": 1,
			"start.1of10.rss": 1}},
		"chains": {figures: map[string]int{"chains.1.ready": 1, "chains.2.rss": 1, "chains.2.connections": 1,
			"chains.1.live.p50": 40, "chains.2.live.p99": 40}},
		"added": {figures: map[string]int{"added.before.p50": 400, "added.meanwhile.max": 400, "added.past": 1}},
		"large": {figures: map[string]int{"large.ranges": 1, "large.blocks": 1, "large.strangers": 1}},
		"flat": {figures: map[string]int{
			"flat.live.requests.10": 1, "flat.live.bytes.4000": 1, "flat.live.cpu.400": 1, "flat.live.requests.growth": 4,
			"flat.backfill.requests.10": 1, "flat.backfill.bytes.growth": 4, "flat.backfill.cpu.growth": 4,
		}, plots: []string{"flat.svg"}},
		"noise": {figures: map[string]int{
			"noise.live.100.addresses.bytes": 1, "noise.live.2000.topics.requests": 1, "noise.backfill.2000.auto.cpu": 1,
			"noise.live.100.auto": 1, "noise.backfill.100.auto": 1, "noise.cap.addresses.refused": 1,
			"noise.cap.range.requests": 1,
		}},
		"failover": {figures: map[string]int{
			"failover.leader.kill.p99": 1, "failover.leader.stop.max": 1, "failover.leader.freeze.p50": 1,
			"failover.slots.kill.p99": 1,
			"failover.slots.stop.p99": 1, "failover.slots.freeze.p99": 1, "failover.adopted.kill.p50": 1,
			"failover.adopted.freeze.max": 1,
		}},
		"scale": {figures: map[string]int{
			"scale.live.transactions.1": 1, "scale.live.rows.2": 1, "scale.live.wal.power": 2, "scale.live.connections.2": 1,
			"scale.backfill.requests.2": 1, "scale.backfill.transactions.power": 2, "scale.backfill.bytes.power": 2,
		}, plots: []string{"scale.svg"}},
		"steady": {figures: map[string]int{
			"steady.rate": 1, "steady.rss": 4, "steady.goroutines": 4, "steady.connections": 4, "steady.dead.outbox": 4,
			"steady.size.events": 4, "steady.size.records": 4,
		}},
		"partitions": {figures: map[string]int{
			"partitions.none": 1, "partitions.hash": 1, "partitions.range": 1, "partitions.hash.wal": 1,
		}},
		"commands.intake": {figures: map[string]int{
			"commands.intake": 1, "commands.conflict.both": 1, "commands.conflict.neither": 1, "commands.conflict.rate": 1,
		}},
		"commands.broadcasts": {figures: map[string]int{"commands.broadcasts": 1, "commands.answers": 1,
			"commands.latency.p50": 3, "commands.latency.p99": 3}},
		"commands.queue": {figures: map[string]int{"commands.queue.1": 1, "commands.queue.12": 1, "commands.queue.ratio": 1}},
		"commands.takeover": {figures: map[string]int{"commands.takeover.stop.p99": 1, "commands.takeover.kill.max": 1,
			"commands.takeover.freeze.p50": 1}},
		"commands.requests": {figures: map[string]int{"commands.requests.idle.items": 1,
			"commands.requests.busy.batches": 1}},
		"cost": {figures: map[string]int{
			"cost.items.http.confirmations.1.12s": 1, "cost.items.ws.finalized.2.250ms": 1,
			"cost.latency.http.jittered.1s.p50": 1, "cost.latency.ws.steady.2s.p99": 1,
		}},
	}
	require.Len(t, All, len(want), "every benchmark is tested")
	for _, b := range All {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			o := *o
			o.Log = logTo{t}
			figures, err := b.Run(t.Context(), &o)
			require.NoError(t, err)
			byName := map[string]Figure{}
			for _, f := range figures {
				require.NotContains(t, byName, f.Name, "two figures of one name")
				kind, _, _ := strings.Cut(b.Name, ".")
				require.True(t, strings.HasPrefix(f.Name, kind+"."), f.Name)
				require.Nil(t, f.Met, "%s: no verdict on a size like this", f.Name)
				require.Equal(t, "test", f.Commit)
				byName[f.Name] = f
			}

			for name, samples := range want[b.Name].figures {
				require.Contains(t, byName, name)
				require.Len(t, byName[name].Runs, samples, name)
			}

			for _, plot := range want[b.Name].plots {
				requireDrawing(t, filepath.Join(o.Plots, plot))
			}

			requireJSON(t, figures)
		})
	}
}

// requireDrawing demands well-formed XML with lines in it.
func requireDrawing(t *testing.T, path string) {
	body, err := os.ReadFile(path)
	require.NoError(t, err)
	d, lines := xml.NewDecoder(strings.NewReader(string(body))), 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}

		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}

	require.Positive(t, lines)
	require.NotContains(t, string(body), "NaN")
}

// requireJSON demands that figures can be written as JSON: no infinities.
func requireJSON(t *testing.T, figures []Figure) {
	body, err := json.Marshal(figures)
	require.NoError(t, err)
	var back []Figure
	require.NoError(t, json.Unmarshal(body, &back))
	require.Len(t, back, len(figures))
}
