package testchain_test

import (
	"testing"
	"time"

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
	s := traffic.Stats()
	t.Logf("%+v", s)
	for action := range testchain.DefaultMix() {
		require.Positive(t, s.Sent[action], action)
	}

	require.Equal(t, 1000, s.Mined)
	require.Zero(t, s.Reverted)

	truth := readTruth(t, n, d)
	require.Len(t, truth.Escrows,
		s.Sent[testchain.Create]+s.Sent[testchain.CreateDeterministic]+s.Sent[testchain.CreateLegacy])
	open := len(truth.Escrows) - truth.Count("EscrowReleased", "EscrowRefunded")
	require.Equal(t, s.Open, open)
	total := 0
	for name, count := range s.Events {
		require.Equal(t, truth.Count(name), count, name)
		total += count
	}

	require.Equal(t, truth.Count(), total)
	require.Len(t, s.Events, 6, "every event of the system")
	for _, escrow := range truth.Escrows {
		require.Equal(t, []string{"EscrowCreated", "EscrowDeployed"}, names(truth.Events[escrow])[:2])
	}
}

func TestTrafficFollowsFromTheSeed(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	run := func(seed uint64) []string {
		n := startSim(t, testchain.Options{})
		traffic, d := startTraffic(t, n, seed)
		for range 5 {
			require.NoError(t, traffic.Step(ctx, 10))
			require.NoError(t, n.Mine(ctx, 1))
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
