package chaos

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first three seeds without a node that lies: how long such a node is left alone (half a minute
// and more) is longer than a test of every day may take, and without a clock that is wrong, since a
// binary of Build takes minutes to build. `make chaos` tries all kinds.
func TestFixedSeeds(t *testing.T) {
	bin, ran := build(t), 0
	for seed := uint64(106); ran < 3; seed++ {
		plan := NewPlan(seed)
		if plan.Has(nodeKinds...) || plan.Clock != 0 {
			continue
		}

		ran++
		t.Log(plan.String())
		verdict, err := Run(t.Context(), bin, plan)
		require.NoError(t, err)
		t.Log(verdict)
		require.True(t, verdict.Clean(), verdict.String())
	}
}

func build(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "escrow-relayer")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", bin,
		"../../cmd/escrow-relayer").CombinedOutput()
	require.NoError(t, err, "%s", out)

	return bin
}

// sideBySide is how many drills run at once, whatever the number of cores. They mostly wait; with four
// of them beside other packages, sessions that are probed every second were lost on two busy cores.
const sideBySide = "2"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", sideBySide); err != nil {
		panic(err)
	}

	os.Exit(m.Run())
}

// Every fault alone, one after the other: what it does is seen by itself, and how long the fleet
// takes to recover is measured. `make drill` adds those that last long.
func TestDrill(t *testing.T) {
	bin := build(t)
	for _, g := range Groups() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			done, verdict, err := Drill(t.Context(), bin, g.Plan(false))
			for _, r := range done {
				t.Log(r)
			}

			require.NoError(t, err)
			t.Log(verdict)
			require.True(t, verdict.Clean(), verdict.String())
		})
	}
}

// What no drill carries out is judged only where a seed happens to have it.
func TestEveryKindHasADrill(t *testing.T) {
	drilled := map[Kind]bool{}
	for _, g := range Groups() {
		for _, f := range g.Faults {
			drilled[f.Kind] = true
		}
	}

	for _, k := range slices.Concat(firstKinds, nodeKinds, laterKinds, newKinds, newestKinds) {
		if !slices.Contains(undrilled, k) {
			require.True(t, drilled[k], k)
		}
	}
}

func TestPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewPlan(7), NewPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
