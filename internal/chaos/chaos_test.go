package chaos

import (
	"flag"
	"fmt"
	"maps"
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

// The first three seeds in which no node misbehaves and no clock is wrong: a node that answers wrongly
// is not asked for half a minute and more, and a binary of Build takes minutes to build. Both are too
// long for the daily tests. `make chaos` tries all kinds.
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

// clean carries out a plan and demands that nothing is wrong at the end.
func clean(t *testing.T, bin string, plan Plan) *Verdict {
	t.Helper()
	plan.Probe = time.Second // on a busy machine too, only faults may end sessions
	t.Log(plan.String())
	verdict, err := Run(t.Context(), bin, plan)
	require.NoError(t, err)
	t.Log(verdict)
	require.True(t, verdict.Clean(), verdict.String())

	return verdict
}

// built builds the relayer that most tests run, on the first call.
var built = sync.OnceValues(func() (bin string, err error) { return compile("-race", "../../cmd/escrow-relayer") })

// compile builds a program of the repository and returns where it is.
func compile(race, folder string) (bin string, err error) {
	bin = filepath.Join(work, filepath.Base(folder))
	if out, err := exec.Command("go", "build", race, "-o", bin, folder).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", folder, err, out)
	}

	return bin, nil
}

func build(t *testing.T) string {
	t.Helper()
	bin, err := built()
	require.NoError(t, err)

	return bin
}

// sideBySide is how many fleets run at once, whatever the number of cores: they mostly wait.
const sideBySide = "3"

// work is a folder for all tests, removed at the end.
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

// Every fault alone, one after the other, so that its effect is not mixed with another's; how long the
// fleet takes to recover is measured. `make drill` adds faults that last long, and variants.
//
// The command of make drill carries them out. The relayers have the race detector; the command, with its
// chains, proxies and Pub/Sub, would compute three times as much with it, and has it in the other tests.
func TestDrill(t *testing.T) {
	t.Parallel()
	bin := build(t)
	command, err := compile("-race=false", "./cmd/chaos")
	require.NoError(t, err)

	out, err := exec.CommandContext(t.Context(), command, "-drill", "-short", "-parallel", sideBySide,
		"-bin", bin).CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), fmt.Sprintf("%d drills, 0 of them wrong", len(Groups())))
}

// A kind that no drill has would be tried only when a seed happens to choose it.
func TestEveryKindHasADrill(t *testing.T) {
	drilled := map[Kind]bool{}
	for _, g := range Groups() {
		for _, f := range g.Faults {
			drilled[f.Kind] = true
		}
	}

	for _, k := range slices.Concat(firstKinds, nodeKinds, laterKinds, newKinds, newestKinds) {
		if k != NodeOmits {
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

// What is searched for by kind is found: the kinds that are named are those of the plans, no more and no fewer.
func TestKindsAreThoseOfThePlans(t *testing.T) {
	for _, commands := range []bool{false, true} {
		seen := map[Kind]bool{}
		for seed := range uint64(2000) {
			p := NewPlan(seed)
			if commands {
				p = NewCommandsPlan(seed)
			}

			for _, f := range p.Faults {
				seen[f.Kind] = true
			}
		}

		require.Equal(t, slices.Sorted(maps.Keys(seen)), Kinds(commands))
	}
}
