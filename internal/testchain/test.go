package testchain

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// NewSim starts a simulated chain that ends with the test.
func NewSim(t testing.TB, o Options) *Sim {
	t.Helper()
	sim, err := StartSim(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Stop()) })

	return sim
}

// NewContracts is NewSim with the contracts on it.
func NewContracts(t testing.TB, o Options) (*Sim, Deployment) {
	t.Helper()
	sim := NewSim(t, o)
	d, err := Deploy(t.Context(), sim)
	require.NoError(t, err)

	return sim, d
}
