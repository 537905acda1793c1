//go:build long

package bench

import (
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

	return &Options{Bin: bin, Scale: 0.004, Runs: 1, Trials: 1, Blocks: 2, Log: logTo{t}}
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
	want := map[string]map[string]int{ // samples by name
		"backfill": {
			"backfill.stored": 2, "backfill.published.escrow": 1, "backfill.published.slot": 1,
			"backfill.drained.escrow": 1, "backfill.drained.slot": 1, "backfill.peak": 4,
		},
		"live": {"live.ws.p50": 40, "live.ws.p99": 40, "live.ws.rpc": 1, "live.http.p50": 40},
		"failover": {
			"failover.leader.kill.p99": 1, "failover.leader.stop.p99": 1, "failover.leader.freeze.p50": 1,
			"failover.slots.kill.p99": 1,
			"failover.slots.stop.p99": 1, "failover.slots.freeze.p99": 1,
		},
		"commands.intake": {"commands.intake": 1},
		"commands.broadcasts": {"commands.broadcasts": 1, "commands.answers": 1,
			"commands.latency.p50": 3, "commands.latency.p99": 3},
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
				require.Empty(t, f.Verdict(o.Scale), "%s: no verdict on a size like this", f.Name)
				byName[f.Name] = f
			}

			for name, samples := range want[b.Name] {
				require.Contains(t, byName, name)
				require.Len(t, byName[name].Samples, samples, name)
			}
		})
	}
}
