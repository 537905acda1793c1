package chaos

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first seeds without a node that lies: how long such a node is left alone (half a minute and more) is longer than a test of every day may
// take, and without a clock that is wrong, since a binary of Build takes minutes to build. `make chaos` tries all kinds.
func TestFixedSeeds(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "escrow-relayer")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", bin, "../../cmd/escrow-relayer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	lies := []Kind{NodeDown, NodeSlow, NodeLimited, NodeFailing, NodeTruncated, NodeMalformed, NodeHTML, NodeRange, NodeResults, NodeBehind, NodeOmits, NodeForeign, NodeChain, NodeSilent, NodePruned}
	for seed, ran := uint64(100), 0; ran < 3; seed++ {
		plan := NewPlan(seed)
		if plan.Has(lies...) || plan.Clock != 0 {
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

func TestPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewPlan(7), NewPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
