package chaos

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Seeds without a node that lies: how long such a node is left alone (half a minute and more) is
// longer than a test of every day may take, and without a clock that is wrong, since a binary of
// Build takes minutes to build. `make chaos` tries all kinds.
func TestFixedSeeds(t *testing.T) {
	bin := build(t)
	for _, seed := range []uint64{106, 109, 120} {
		plan := NewPlan(seed)
		require.False(t, plan.Has(nodeKinds...) || plan.Clock != 0, plan.String())
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

// Every fault alone, one after the other: what it does is seen by itself, and how long the fleet
// takes to recover is measured.
func TestDrill(t *testing.T) {
	const a, b = 400 * time.Millisecond, time.Second // shorter and longer than a session lives without a probe
	const long = 30 * time.Second                    // the others have to go on meanwhile
	bin := build(t)
	for name, faults := range map[string][]Fault{
		"process": {
			{Kind: Kill, For: a}, {Kind: KillAfterAck, Who: 1, For: a}, {Kind: Freeze, Who: 2, For: 2 * b},
			{Kind: Term, For: a}, {Kind: SlowStart, Who: 1, For: b},
			{Kind: Twin, Who: 1, For: a}, {Kind: KillAll, For: a},
		},
		"database": {
			{Kind: Session, Who: 1}, {Kind: Backends}, {Kind: Flap, For: b}, {Kind: Restart}, {Kind: Crash},
			{Kind: DBDown, For: b}, {Kind: DBConnections, Who: 2, For: b},
			{Kind: DBRefuse, N: 0, For: b}, {Kind: DBRefuse, N: 1, For: a}, {Kind: DBRefuse, N: 3, For: a},
			{Kind: DBCancel, For: b}, {Kind: DBLocks, For: 2 * b},
			{Kind: DBDeadlock, For: b}, {Kind: DBCut, Who: 1, For: b}, {Kind: DBFreeze, Who: 1, For: b},
			{Kind: DBSlow, Who: 1, For: b},
			{Kind: DBCut, Both: true, For: b}, {Kind: DBFreeze, Both: true, For: b},
		},
		"chain": {
			{Kind: Reorg, N: 1, Keep: true}, {Kind: Reorg, N: 2}, {Kind: TakeoverReorg, N: 2, Who: 1, For: b},
			{Kind: BackfillReorg, N: 2, Keep: true, For: a},
			{Kind: Burst, N: 300}, {Kind: Empty, N: 60},
		},
		"pubsub and fleet": {
			{Kind: PubSubDown, For: b}, {Kind: Denied, For: b}, {Kind: AckLost, For: a}, {Kind: Slow, For: b},
			{Kind: KeyFailing, N: 2, For: b}, {Kind: TopicGone, For: b},
			{Kind: Repartition, N: 4}, {Kind: Repartition, N: 2}, {Kind: Repartition, N: 5}, {Kind: Stale, N: 3, Who: 1, For: b},
		},
		"nodes": { // one of two; both at once where they are asked again soon
			{Kind: NodeDown, For: b}, {Kind: NodeSlow, For: b}, {Kind: NodeLimited, For: b},
			{Kind: NodeLimited, Keep: true, For: b}, {Kind: NodeFailing, For: b},
			{Kind: NodeTruncated, For: b}, {Kind: NodeMalformed, For: b}, {Kind: NodeHTML, For: b},
			{Kind: NodeDown, Both: true, For: b},
			{Kind: NodeSlow, Both: true, For: b}, {Kind: NodeLimited, Both: true, For: b},
			{Kind: NodeFailing, Both: true, For: b}, {Kind: NodeSilent, Both: true, For: b},
			{Kind: NodeRange, N: 3, Both: true, For: b}, {Kind: NodeResults, N: 3, Both: true, For: b},
			{Kind: NodeBehind, N: 5, For: b}, {Kind: NodeBehind, N: 3, Both: true, For: b},
			{Kind: NodePruned, For: b}, {Kind: NodeForeign, For: b}, {Kind: NodeChain, Who: 1, For: b},
		},
		"frozen, or slow to delete": {
			{Kind: FreezeInCommit, Who: 0, N: 0, For: long}, {Kind: FreezeInCommit, Who: 1, N: 1, For: long},
			{Kind: FreezeInCommit, Who: 2, N: 2, For: long},
			{Kind: SlowDeletes, N: 20, For: 10 * b},
		},
		"moved log indexes": {
			{Kind: ShiftReorg, N: 2}, {Kind: ShiftReorg, N: 2}, {Kind: ShiftReorg, N: 2, Keep: true},
		},
		"deep reorganisations, auto numbers, two chains": {
			{Kind: DeepReorg, N: 4, Keep: true}, {Kind: DeepReorg, N: 4}, {Kind: TakeoverReorg, N: 5, Who: 1, For: b},
			{Kind: BackfillReorg, N: 6, For: a}, {Kind: Kill, Who: 2, For: b},
			{Kind: Repartition, N: 4}, {Kind: Repartition, N: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan{
				Seed: 5, Instances: 3, Strategy: "modulo", OrderingKey: "escrow", Filter: "auto", Confirmations: 2,
				BlockTime: 300 * time.Millisecond, PerBlock: 2, Faults: faults,
			}
			if plan.Deep() {
				plan.Strategy, plan.Auto, plan.Second = "consistent", true, true
			}

			done, verdict, err := Drill(t.Context(), bin, plan)
			for _, r := range done {
				t.Log(r)
			}

			require.NoError(t, err)
			t.Log(verdict)
			require.True(t, verdict.Clean(), verdict.String())
		})
	}
}

func TestPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewPlan(7), NewPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
