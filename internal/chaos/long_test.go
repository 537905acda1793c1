//go:build long

package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Seeds beyond the one that TestASeed carries out.
func TestFixedSeeds(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for _, plan := range steadyPlans(3)[1:] {
		t.Run(strconv.FormatUint(plan.Seed, 10), func(t *testing.T) {
			t.Parallel()
			clean(t, bin, plan)
		})
	}
}

// Every fault alone, one after the other, so that its effect is not mixed with another's; how long the
// fleet takes to recover is measured. `make drill` adds faults that last long, and variants.
//
// The command of make drill carries them out. The relayers have the race detector; the command, with its
// chains, proxies and Pub/Sub, would compute three times as much with it, and has it in the other tests.
func TestDrill(t *testing.T) {
	t.Parallel()
	bin := build(t)
	command := filepath.Join(work, "chaos")
	built, err := exec.CommandContext(t.Context(), "go", "build", "-o", command, "./cmd/chaos").CombinedOutput()
	require.NoError(t, err, "%s", built)

	out, err := exec.CommandContext(t.Context(), command, "-drill", "-short", "-parallel", sideBySide,
		"-bin", bin).CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), fmt.Sprintf("%d drills, 0 of them wrong", len(Groups())))
}

// Seeds with commands in the traffic: one kills inside the commit of an attempt, one restores the
// database under running processes, one cuts the connection of a broadcast and reorganises.
// `make chaos ARGS=-commands` tries others.
func TestFixedCommandSeeds(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for _, seed := range []uint64{1, 3, 20} {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			verdict := clean(t, bin, NewCommandsPlan(seed))
			require.NotZero(t, verdict.Commands.Transactions, "nothing was sent: nothing was tried")
		})
	}
}

// An oracle that cannot say "wrong" proves nothing. Each relayer here makes one mistake, and the
// verdict has to name it.
func TestOracleSeesMistakes(t *testing.T) {
	t.Parallel()
	for _, b := range Breakages {
		if b.Chance {
			continue // `go run ./internal/chaos/cmd/chaos -broken NAME` tries it
		}

		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			bin := filepath.Join(dir, "escrow-relayer")
			require.NoError(t, BuildBroken(t.Context(), b, "../..", dir, bin))
			verdict, err := Run(t.Context(), bin, b.Plan())
			require.NoError(t, err)
			t.Log(verdict)
			require.True(t, b.Seen(verdict), "a relayer that %s was not found out: %s", b.What, verdict)
			require.NoError(t, os.RemoveAll(verdict.Logs))
		})
	}
}
