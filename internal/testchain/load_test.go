package testchain_test

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func openLoad(t testing.TB, n testchain.Node) (*testchain.Load, testchain.Deployment) {
	t.Helper()
	d, err := testchain.Deploy(within(t), n)
	require.NoError(t, err)
	l, err := testchain.OpenLoad(within(t), n, d)
	require.NoError(t, err)

	return l, d
}

func TestLoad(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	l, d := openLoad(t, n)
	c := dial(t, n.HTTP())
	read := func(factory common.Address) *testchain.Truth {
		truth, err := testchain.ReadTruth(ctx, n.Client(), d.Block, headOf(t, c).Number.Uint64(), factory)
		require.NoError(t, err)
		return truth
	}

	escrows, err := l.Create(ctx, 40)
	require.NoError(t, err)
	require.NoError(t, l.Approve(ctx, escrows))
	truth := read(d.Factory)
	require.Equal(t, escrows, truth.Escrows)
	for _, e := range escrows {
		require.Equal(t, []string{"EscrowCreated", "EscrowDeployed", "Approved"}, names(truth.Events[e]))
	}

	clones, err := l.Clone(ctx, 100)
	require.NoError(t, err)
	require.NoError(t, l.Emit(ctx, clones, 10))
	require.NoError(t, l.Emit(ctx, clones[:1], 1000))
	truth = read(d.Load)
	require.Equal(t, clones, truth.Escrows)
	require.Len(t, truth.Events[clones[0]], 1011)
	require.Len(t, truth.Events[clones[99]], 11)
	require.Equal(t, 100+1000+1000, truth.Count())
}
