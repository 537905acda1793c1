package main

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/chaos"
)

const asCommand = "CHAOS_AS_COMMAND"

// The test binary is the command itself when a test calls it.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}

	os.Exit(m.Run())
}

// What names nothing is refused before anything is built, with what there is.
func TestUnknownNamesAreRefused(t *testing.T) {
	for _, x := range []struct {
		args []string
		says string
	}{
		{[]string{"-with", "earthquake"}, "node-omits"},
		{[]string{"-with", "kill,earthquake"}, "earthquake"},
		{[]string{"-with", "step-kill"}, "no plan has"}, // it needs -commands
		{[]string{"-commands", "-with", "node-omits"}, "step-kill"},
		{[]string{"-broken", "earthquake"}, "fresh-nonce"},
		{[]string{"-parallel", "0"}, "use 1 or more"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], x.args...)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		out, err := cmd.CombinedOutput()
		require.Error(t, err, x.args)
		require.Equal(t, 2, cmd.ProcessState.ExitCode(), "%v: %s", x.args, out)
		require.Contains(t, string(out), x.says)
	}
}

func TestKnownFaultsAreFound(t *testing.T) {
	for _, commands := range []bool{false, true} {
		for _, kind := range chaos.Kinds(commands) {
			o := options{with: string(kind), commands: commands, count: 1, parallel: 1}
			require.NoError(t, o.check())
			plans := o.plans(t.Context())
			plan, ok := <-plans
			require.True(t, ok)
			require.True(t, plan.Has(kind), plan.String())
			_, ok = <-plans
			require.False(t, ok, "one was asked for")
		}
	}
}

// A search that finds nothing ends with its context, whether or not a number of plans is asked for.
func TestSearchIsInterrupted(t *testing.T) {
	for count := range 2 {
		ctx, stop := context.WithCancel(t.Context())
		plans := options{with: "earthquake", count: count}.plans(ctx)
		stop()
		_, ok := <-plans
		require.False(t, ok)
	}
}
