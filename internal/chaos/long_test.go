//go:build long

package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A seed each of events, of commands, and of two chains in the same processes.
func TestSeedOfEach(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for name, plan := range map[string]Plan{
		"events": NewPlan(102), "commands": NewCommandsPlan(7), "two chains": NewPlan(127),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, [2]bool{name == "commands", name == "two chains"}, [2]bool{plan.Commands != nil, plan.Second})
			clean(t, bin, plan)
		})
	}
}

// Further seeds of events in which no node misbehaves and no clock is wrong: a node that answers
// wrongly is not asked for half a minute and more, and a binary of Build takes minutes to build.
// `make chaos` tries all kinds.
func TestFixedSeeds(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for _, seed := range []uint64{177, 185} {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			clean(t, bin, NewPlan(seed))
		})
	}
}

// A node lies for six of eight seconds: it invents events in the chain's blocks, and in a longer chain of its own.
func TestFixedLies(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for way, seen := range map[int]string{0: `bits receipts`, firstOwn + 2: `own`} {
		t.Run(seen, func(t *testing.T) {
			t.Parallel()
			verdict := clean(t, bin, lyingPlan(way))
			require.Regexp(t, `^node-lies \[`+seen+`\]: [1-9]`, verdict.Seen[0])
		})
	}
}

// One instance is frozen or cut off for longer than any seed does it: the others go on without it.
func TestFixedCutOffs(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for name, f := range map[string]Fault{
		"frozen in a commit":  {Kind: FreezeInCommit, Who: 1, N: 1, For: long},
		"without nodes":       {Kind: NodeLoss, Who: 2, For: long},
		"database swallowed":  {Kind: DBSwallow, Who: 2, Keep: true, For: long},
		"cannot say it lives": {Kind: HangingClaimer, Who: 1, Keep: true, For: longer},
		"cannot claim":        {Kind: HangingClaimer, Who: 1, For: longer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.At = 2 * sec
			verdict := clean(t, bin, planOf(4*sec, f))
			require.Regexp(t, `the fleet did without r\d`, verdict.Seen[0])
		})
	}
}

// A further seed with commands, which restores the database under running processes. `make chaos
// ARGS=-commands` tries others.
func TestFixedCommandSeeds(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for _, seed := range []uint64{3} {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			verdict := clean(t, bin, NewCommandsPlan(seed))
			require.NotZero(t, verdict.Transactions, "nothing was sent: nothing was tried")
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
