package testchain_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// forgetful makes no block when it is told to for the first time, as a pool that is busy leaves transactions out.
type forgetful struct {
	*testchain.Sim
	told int
}

func (f *forgetful) Mine(ctx context.Context, n int) error {
	if f.told++; f.told == 1 {
		return nil
	}

	return f.Sim.Mine(ctx, n)
}

// A transaction that a block has left out is in the next one.
func TestTransactionsThatWereLeftOut(t *testing.T) {
	t.Parallel()
	sim, err := testchain.StartSim(testchain.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Stop()) })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	node := &forgetful{Sim: sim}
	wallet, err := testchain.OpenWallet(ctx, sim.Client(), sim.Accounts()[0])
	require.NoError(t, err)
	call := testchain.Call{To: &sim.Accounts()[1].Address, Gas: 21_000}
	_, err = wallet.Transact(ctx, sim, 0, call)
	require.NoError(t, err)
	receipts, err := wallet.Transact(ctx, node, 0, call)
	require.NoError(t, err)
	require.Equal(t, uint64(2), receipts[0].BlockNumber.Uint64())
	require.Equal(t, 2, node.told)
}
