package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

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

func TestCommandsPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewCommandsPlan(7), NewCommandsPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewCommandsPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
