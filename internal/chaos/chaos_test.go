package chaos

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The first three seeds without a node that lies: how long such a node is left alone (half a minute
// and more) is longer than a test of every day may take, and without a clock that is wrong, since a
// binary of Build takes minutes to build. `make chaos` tries all kinds.
func TestFixedSeeds(t *testing.T) {
	t.Parallel()
	bin, ran := build(t), 0
	for seed := uint64(106); ran < 3; seed++ {
		plan := NewPlan(seed)
		if plan.Has(nodeKinds...) || plan.Clock != 0 {
			continue
		}

		ran++
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			clean(t, bin, plan)
		})
	}
}

// clean carries out a plan, in which nothing may be wrong at the end.
func clean(t *testing.T, bin string, plan Plan) *Verdict {
	t.Helper()
	plan.Probe = time.Second // a busy machine is to lose sessions by faults only
	t.Log(plan.String())
	verdict, err := Run(t.Context(), bin, plan)
	require.NoError(t, err)
	t.Log(verdict)
	require.True(t, verdict.Clean(), verdict.String())

	return verdict
}

// built is the relayer that most tests run, once it is asked for.
var built = sync.OnceValues(func() (bin string, err error) {
	out, err := exec.Command("go", "build", "-race", "-o", filepath.Join(work, "escrow-relayer"),
		"../../cmd/escrow-relayer").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}

	return filepath.Join(work, "escrow-relayer"), err
})

func build(t *testing.T) string {
	t.Helper()
	bin, err := built()
	require.NoError(t, err)

	return bin
}

// sideBySide is how many fleets run at once, whatever the number of cores: they mostly wait.
const sideBySide = "3"

// work is a folder of all tests together.
var work string

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", sideBySide); err != nil {
		panic(err)
	}

	var err error
	if work, err = os.MkdirTemp("", "chaos"); err != nil {
		panic(err)
	}

	code := m.Run()
	if err := os.RemoveAll(work); err != nil {
		panic(err)
	}

	os.Exit(code)
}

// Every fault alone, one after the other: what it does is seen by itself, and how long the fleet
// takes to recover is measured. `make drill` adds those that last long, and variants.
func TestDrill(t *testing.T) {
	t.Parallel()
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
