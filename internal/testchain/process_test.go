package testchain_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// With -short no independent node is started: geth is built from source the first time, which takes
// minutes and the network.

func startGeth(t testing.TB, o testchain.Options) *testchain.Geth {
	t.Helper()
	n, err := testchain.StartGeth(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Stop()) })

	return n
}

// startAnvil returns nil where there is no npm to install anvil with.
func startAnvil(t testing.TB, o testchain.Options) *testchain.Anvil {
	t.Helper()
	n, err := testchain.StartAnvil(t.Context(), o)
	if _, missing := exec.LookPath("npm"); missing != nil && err != nil {
		t.Log("no anvil without npm:", err)
		return nil
	}

	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Stop()) })

	return n
}

func TestGethIsANode(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		return
	}

	testNode(t, startGeth(t, testchain.Options{}))
}

func TestAnvilIsANode(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		return
	}

	if n := startAnvil(t, testchain.Options{ChainID: 31337}); n != nil {
		testNode(t, n)
	}
}

func TestTrafficOnIndependentNodes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		return
	}

	nodes := map[string]testchain.Node{"geth": startGeth(t, testchain.Options{Seed: 5})}
	if n := startAnvil(t, testchain.Options{Seed: 5}); n != nil {
		nodes["anvil"] = n
	}

	for name, n := range nodes {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			traffic, d := startTraffic(t, n, 5)
			for range 5 {
				require.NoError(t, traffic.Step(ctx, 10))
				require.Eventually(t, func() bool {
					return traffic.Settle(ctx) == nil && traffic.Stats().Waiting == 0
				}, patience, 20*time.Millisecond)
			}

			require.Equal(t, 50, succeeded(t, n, d))
			require.Positive(t, readTruth(t, n, d).Count("Approved"))
		})
	}
}

func TestGethHasOneChainID(t *testing.T) {
	t.Parallel()
	_, err := testchain.StartGeth(t.Context(), testchain.Options{ChainID: 5})
	require.ErrorContains(t, err, "1337")
}

func TestNodeEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		return
	}

	startGeth(t, testchain.Options{}) // builds it, if need be
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "TESTCHAIN_CHILD=1")
	_, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var url, problem string
	_, err = fmt.Fscan(stdout, &url, &problem)
	require.NoError(t, err)
	require.Equal(t, "<nil>", problem)
	c := dial(t, url)
	headOf(t, c)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Eventually(t, func() bool { _, err := c.BlockNumber(t.Context()); return err != nil }, patience,
		10*time.Millisecond)
}
