package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Seeds with commands in the traffic: one kills inside the commit of an attempt, one restores the
// database under running processes, one cuts the connection of a broadcast and reorganises.
// `make chaos ARGS=-commands` tries others.
func TestFixedCommandSeeds(t *testing.T) {
	bin := build(t)
	for _, seed := range []uint64{1, 3, 20} {
		plan := NewCommandsPlan(seed)
		plan.Probe = time.Second // a busy machine is to lose sessions by faults only
		t.Log(plan.String())
		verdict, err := Run(t.Context(), bin, plan)
		require.NoError(t, err)
		t.Log(verdict)
		require.True(t, verdict.Clean(), verdict.String())
		require.NotZero(t, verdict.Commands.Transactions, "nothing was sent: nothing was tried")
	}
}

func TestCommandsPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewCommandsPlan(7), NewCommandsPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewCommandsPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
