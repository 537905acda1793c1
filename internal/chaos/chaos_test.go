package chaos

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// One seed with events and commands: the simulation works, whole. `make seeds` carries out one of
// each kind, `make long` more; `make chaos` tries new ones.
func TestASeed(t *testing.T) {
	t.Parallel()
	verdict := clean(t, build(t), NewCommandsPlan(9))
	require.NotZero(t, verdict.Transactions, "nothing was sent: nothing was tried")
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
var built = sync.OnceValues(func() (bin string, err error) {
	bin = filepath.Join(work, "escrow-relayer")
	return bin, lab.Build(context.Background(), "../../cmd/escrow-relayer", bin)
})

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
