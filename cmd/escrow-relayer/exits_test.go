package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{
		errQuiet:                                 exitNo,
		no{errors.New("not whole")}:              exitNo,
		fmt.Errorf("so: %w", no{errors.New("")}): exitNo,
		no{start.ErrRefused}:                     exitRefused,
		errors.New("connection refused"):         exitRefused,
		interrupted{context.Canceled}:            exitInterrupted,

		refusal(fmt.Errorf("cancel: %w", send.ErrOperation)):        exitNo,
		refusal(fmt.Errorf("send: %w", errors.New("no such host"))): exitRefused,
	} {
		require.Equal(t, want, exitCode(err), err)
	}

	require.Zero(t, exitCode(nil))
}

// Whoever ends a command before it has a result gets the exit code that its help promises.
func TestInterruptedCommands(t *testing.T) {
	for name, value := range rightInput() {
		t.Setenv(name, value)
	}

	ended, end := context.WithCancel(t.Context())
	end()
	for _, args := range [][]string{
		{"status"}, {"migrate"}, {"audit"}, {"replay", "--from", "1"}, {"rewind", "--to", "1"}, {"doctor"},
		{"plan", "wait"}, {"plan", "move", "--from", "1", "--to", "2"}, {"command", "list"},
		{"sender", "resume", "--sender", "0x00000000000000000000000000000000000000aa"},
	} {
		cmd := root()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		require.Equal(t, exitInterrupted, exitCode(cmd.ExecuteContext(ended)), "%v", args)
	}
}

// Every command says in its help how it ends.
func TestHelpSaysHowItEnds(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		require.Equal(t, 1, strings.Count(c.Long, "Exit codes: 0 well; "), c.CommandPath())
		require.Contains(t, c.Long, "2 could not ask", c.CommandPath())
		require.NotRegexp(t, `Exit code \d`, c.Long, "%s: the codes are said in one place", c.CommandPath())
		require.NotContains(t, c.Long, "\n\t", "a line of the help of %s was broken like code", c.CommandPath())
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root())
}

// What is not a command is not done, and the exit code says so.
func TestUnknownCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "needs a command"},
		{[]string{"stauts"}, "did you mean status"},
		{[]string{"nonsense", "--flag"}, "unknown flag"},
		{[]string{"nonsense"}, `no command "nonsense"`},
		{[]string{"plan"}, "needs a command"},
		{[]string{"plan", "wiat"}, "did you mean wait"},
		{[]string{"version", "now"}, "takes no arguments"},
		{[]string{"plan", "wait", "now"}, "takes no arguments"},
		{[]string{"plan", "wait", "--since", "yesterday", "--instance", "r0"}, "--since"},
		{[]string{"plan", "wait", "--since", "2026-01-02T03:04:05Z"}, "--instance"},
	} {
		code, out := call(t, nil, c.args...)
		require.Equal(t, exitRefused, code, "%v: %s", c.args, out)
		require.Contains(t, out, c.says, "%v", c.args)
	}
}

// Before the first migration the commands say so, with the remedy, and change nothing.
func TestBeforeTheFirstMigration(t *testing.T) {
	url := testpg.Bare(t)
	env := []string{
		"CHAIN_ID=1337", "DATABASE_URL=" + url, "INSTANCE_ID=cli", "RPC_URL=http://127.0.0.1:1", "PUBSUB_PROJECT_ID=project",
		"PUBSUB_TOPIC_ID=topic",
		"FACTORY_ADDRESS=0x00000000000000000000000000000000000000aa", "PUBSUB_EMULATOR_HOST=127.0.0.1:1",
	}
	for _, args := range [][]string{
		{"status"}, {"plan", "wait", "--timeout", "0s"}, {"plan", "move", "--from", "1", "--to", "2"}, {"audit"},
		{"replay", "--from", "1"}, {"migrate", "--check"},
	} {
		code, out := call(t, env, args...)
		want := exitRefused
		if args[0] == "migrate" {
			want = exitNo
		}

		require.Equal(t, want, code, "%v: %s", args, out)
		require.Contains(t, out, "run `escrow-relayer migrate`", "%v", args)
		require.NotContains(t, out, "SQLSTATE", "%v", args)
	}

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	var tables int
	require.NoError(t, conn.QueryRow(t.Context(),
		`select count(*) from pg_tables where schemaname = 'public'`).Scan(&tables))
	require.Zero(t, tables)
}

// A fleet is whole as a fleet of N only when it has N partitions.
func TestWhole(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	three := func() *fleet.Fleet {
		f := &fleet.Fleet{Leader: fleet.Leader{Valid: true, Held: true}, Slots: fleet.Slots{Total: 2520, Served: 2520}}
		for n := range 3 {
			f.Instances = append(f.Instances, fleet.Instance{ID: fmt.Sprintf("r%d", n), Number: n, Total: 3, Alive: true,
				Started: started})
		}

		return f
	}
	require.Empty(t, (&whole{lag: 100}).missing(three()))
	require.Empty(t, (&whole{lag: 100, total: 3}).missing(three()))
	require.Contains(t, (&whole{lag: 100, total: 4}).missing(three()), "partition 3 of 4 has no live instance")
	require.Contains(t, (&whole{lag: 100, total: 2}).missing(three()), "r2 has 3 partitions")

	frozen := three()
	frozen.Outbox.OldestAge = fleet.Age(fleet.LimitOutbox.Behind - time.Second)
	frozen.Problems = frozen.Judge()
	require.Empty(t, (&whole{lag: 100}).missing(frozen), "messages that settle")
	frozen.Outbox.OldestAge = fleet.Age(fleet.LimitOutbox.Behind)
	frozen.Problems = frozen.Judge()
	require.Equal(t, "the oldest of 0 messages has waited for Pub/Sub for 30s", (&whole{lag: 100}).missing(frozen))

	without := three()
	without.Instances[1].Alive = false
	require.Equal(t, "partition 1 of 3 has no live instance", (&whole{lag: 100, total: 3}).missing(without))
	require.Empty(t, (&whole{lag: 100, instance: "r0", total: 3}).missing(without))

	require.Empty(t, (&whole{lag: 100, instance: "r0", since: started}).missing(three()))
	require.Contains(t, (&whole{lag: 100, instance: "r0", since: started.Add(time.Second)}).missing(three()),
		"not been started since")
}

func readLog(t *testing.T, p *lab.Process) string {
	b, err := os.ReadFile(p.LogFile)
	require.NoError(t, err)
	return string(b)
}

// A terminal and a supervisor tell an instance to stop at the same time: it stops cleanly.
func TestAWishToStopToldTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.run("r0", 0, 1, nil)
	w.ready("r0")
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGINT)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, code)
}

// While nobody tells the age of a block, status invents none; of a block of this moment it says 0s.
func TestAgesThatNobodyTells(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, show(&out, &fleet.Fleet{}, false))
	require.Contains(t, out.String(), "head unknown, newest block that may be processed unknown\n")
	require.Equal(t, "0s", known(1))
}
