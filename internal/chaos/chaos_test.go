package chaos

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A few fixed seeds, which together have most kinds of faults; `make chaos` tries new ones.
func TestFixedSeeds(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "escrow-relayer")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", bin, "../../cmd/escrow-relayer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, seed := range []uint64{103, 112, 129} {
		plan := NewPlan(seed)
		t.Log(plan.String())
		verdict, err := Run(t.Context(), bin, plan)
		require.NoError(t, err)
		t.Log(verdict)
		require.True(t, verdict.Clean(), verdict.String())
	}
}

func TestPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewPlan(7), NewPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
