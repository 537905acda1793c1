package main

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// refused starts an instance, and requires that it ends as one that was refused, with words in its log.
func (w *world) refused(id string, number, total int, env map[string]string, words string) {
	w.t.Helper()
	p := w.run(id, number, total, env)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(w.t, err)
	log, err := os.ReadFile(p.LogFile)
	require.NoError(w.t, err)
	require.Equal(w.t, exitRefused, code, "%s", log)
	require.Contains(w.t, string(log), words)
}

// A START_BLOCK that would leave escrows out is refused before anything is written down. Allowed
// once, it is remembered, and moved back without losing or doubling an event.
func TestStartBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	deployed := w.Contracts.Block
	w.blocks(6)
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	late := strconv.FormatUint(head, 10)
	w.refused("r0", 0, 1, map[string]string{"START_BLOCK": "99999998"}, "newest block of the chain")
	w.refused("r0", 0, 1, map[string]string{"START_BLOCK": late}, "set START_BLOCK="+strconv.FormatUint(deployed, 10))
	w.refused("r0", 0, 1, map[string]string{"FACTORY_ADDRESS": "0x00000000000000000000000000000000000000aa",
		"MIGRATE_ON_START": "true"}, "FACTORY_ADDRESS")

	w.run("r0", 0, 1, map[string]string{"START_BLOCK": late, "ALLOW_LATE_START": "true"})
	w.ready("r0")
	w.blocks(4)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.until("it has processed them", func(f *fleet.Fleet) bool { return f.Chain.LowestCursor > int64(head)+4 })

	rewind := exec.CommandContext(t.Context(), bin, "rewind", "--to", strconv.FormatUint(deployed, 10))
	rewind.Env = w.Environ("operator", 0, 1, nil)
	out, err := rewind.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "it was "+late)
	w.blocks(4)
	w.audit(false)
}

// What would split the stream is refused, unless a rolling change says that it does so.
func TestSettingsThatDiffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 2, nil)
	w.ready("r0")
	w.refused("r1", 1, 2, map[string]string{"ORDERING_KEY": "slot"}, `ORDERING_KEY is "escrow" on r0 and "slot" on r1`)
	w.run("r1", 1, 2, map[string]string{"ORDERING_KEY": "slot", "ALLOW_MIXED_SETTINGS": "true"})
	w.ready("r1")
	w.until("the page says so", func(f *fleet.Fleet) bool {
		for _, p := range f.Problems {
			if p.Kind == fleet.MixedSettings {
				return true
			}
		}

		return false
	})
}

// A session in another database than the pool's is found before the instance says that it joined.
func TestSessionInAnotherDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.refused("r0", 0, 1, map[string]string{"SESSION_DATABASE_URL": w.another("elsewhere")}, "must name the same database")
}
