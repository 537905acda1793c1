package testchain_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func startTraffic(t testing.TB, n testchain.Node, seed uint64) (*testchain.Traffic, testchain.Deployment) {
	t.Helper()
	d, err := testchain.Deploy(within(t), n)
	require.NoError(t, err)
	traffic, err := testchain.NewTraffic(within(t),
		testchain.TrafficConfig{URL: n.HTTP(), Deployment: d, Accounts: n.Accounts()[:9], Seed: seed})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)

	return traffic, d
}

func TestTrafficDoesEverythingAndKnowsIt(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	traffic, d := startTraffic(t, n, 1)
	for step := range 40 {
		require.NoError(t, traffic.Step(ctx, 25))
		require.NoError(t, n.Mine(ctx, 1))
		if step == 30 {
			require.NoError(t, n.AdvanceTime(ctx, 32*24*time.Hour))
		}
	}

	require.NoError(t, traffic.Settle(ctx))
	require.Equal(t, 1000, succeeded(t, n, d), "all are mined, and none reverts")

	truth := readTruth(t, n, d)
	open := len(truth.Escrows) - truth.Count("EscrowReleased", "EscrowRefunded")
	require.Equal(t, testchain.TrafficStats{Open: open}, traffic.Stats())
	for _, name := range []string{"EscrowCreated", "EscrowDeployed", "Approved", "ArbiterChanged", "EscrowReleased",
		"EscrowRefunded"} {
		require.Positive(t, truth.Count(name), name)
	}

	for _, factory := range []common.Address{d.Factory, d.Legacy} {
		require.True(t, slices.ContainsFunc(truth.Escrows, func(escrow common.Address) bool {
			return truth.Events[escrow][1].Log.Address == factory
		}), factory)
	}

	for _, escrow := range truth.Escrows {
		require.Equal(t, []string{"EscrowCreated", "EscrowDeployed"}, names(truth.Events[escrow])[:2])
	}
}

// succeeded is how many transactions there are above the deployment. One that failed ends the test.
func succeeded(t *testing.T, n testchain.Node, d testchain.Deployment) (count int) {
	t.Helper()
	c := dial(t, n.HTTP())
	for number := d.Block + 1; number <= headOf(t, c).Number.Uint64(); number++ {
		receipts, err := c.BlockReceipts(within(t), rpc.BlockNumberOrHashWithNumber(rpc.BlockNumber(number)))
		require.NoError(t, err)
		for _, r := range receipts {
			require.EqualValues(t, 1, r.Status, "%s in block %d", r.TxHash, number)
			if r.ContractAddress == (common.Address{}) { // else it deploys a factory: those may take two blocks
				count++
			}
		}
	}

	return count
}

func TestTrafficFollowsFromTheSeed(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	run := func(seed uint64) []string {
		n := startSim(t, testchain.Options{})
		d, err := testchain.Deploy(ctx, n)
		require.NoError(t, err)
		traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: n.HTTP(), Deployment: d,
			Accounts: n.Accounts()[:9], Seed: seed})
		require.NoError(t, err)
		t.Cleanup(traffic.Close)
		for range 5 {
			require.NoError(t, traffic.Step(ctx, 10))
			// What may be released depends on the time: a busy machine adds seconds, which hours hide.
			require.NoError(t, n.AdvanceTime(ctx, time.Hour))
		}

		var all []string
		truth := readTruth(t, n, d)
		for _, escrow := range truth.Escrows {
			all = append(append(all, escrow.Hex()), names(truth.Events[escrow])...)
		}

		return all
	}
	first := run(1)
	require.Equal(t, first, run(1))
	require.NotEqual(t, first, run(2))
}

func TestTrafficSurvivesReorganisations(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	traffic, d := startTraffic(t, n, 3)
	for step := range 30 {
		require.NoError(t, traffic.Step(ctx, 10))
		require.NoError(t, n.Mine(ctx, 1))
		if step%5 == 4 {
			require.NoError(t, n.Reorg(ctx, 1+step%3, testchain.Fate(step%2 == 0)))
		}
	}

	require.NoError(t, traffic.Settle(ctx))
	s := traffic.Stats()
	t.Logf("%+v", s)
	require.Positive(t, s.Resyncs)
	truth := readTruth(t, n, d)
	require.Equal(t, s.Open, len(truth.Escrows)-truth.Count("EscrowReleased", "EscrowRefunded"))
}

func TestTrafficLimitsOpenEscrows(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	d, err := testchain.Deploy(ctx, n)
	require.NoError(t, err)
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: n.HTTP(), Deployment: d,
		Accounts: n.Accounts()[:9], Open: 12})
	require.NoError(t, err)
	defer traffic.Close()
	for range 20 {
		require.NoError(t, traffic.Step(ctx, 10))
		require.NoError(t, n.Mine(ctx, 1))
		require.NoError(t, traffic.Settle(ctx))
		require.LessOrEqual(t, traffic.Stats().Open, 12)
	}

	_, err = testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: n.HTTP(), Deployment: d, Accounts: n.Accounts()[:2]})
	require.ErrorContains(t, err, "need 3")
	_, err = testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: n.HTTP(), Accounts: n.Accounts(),
		Mix: map[testchain.Action]int{testchain.MakeNoise: 1}})
	require.ErrorContains(t, err, "no action")
}
