package main

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// call runs the binary with nothing but the given environment.
func call(t *testing.T, env []string, args ...string) (code int, out string) {
	for range 10 {
		code, out = callOnce(t, env, args...)
		// On a busy machine doctor finds that what answers at once elsewhere does not, and is right.
		if !slices.Contains(args, "doctor") || !strings.Contains(out, "no answer within 3s") {
			break
		}
	}

	return code, out
}

func callOnce(t *testing.T, env []string, args ...string) (code int, out string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	_ = cmd.Run()

	return cmd.ProcessState.ExitCode(), b.String()
}

func TestUsage(t *testing.T) {
	code, out := call(t, nil, "run", "--help")
	require.Zero(t, code)
	for _, v := range config.Variables() {
		require.Contains(t, out, v.Name)
	}

	code, out = call(t, nil, "run")
	require.Equal(t, 2, code)
	for _, name := range []string{"CHAIN_ID", "RPC_URL", "FACTORY_ADDRESS", "PUBSUB_PROJECT_ID", "PUBSUB_TOPIC_ID",
		"DATABASE_URL"} {
		require.Contains(t, out, name, "all problems together")
	}

	for _, args := range [][]string{{"run", "--nonsense"}, {"run", "now"}, {"replay"},
		{"plan", "move", "--from", "0", "--to", "3"}} {
		code, out = call(t, nil, args...)
		require.Equal(t, 2, code, "%v: %s", args, out)
	}

	code, out = call(t, nil, "plan", "move", "--from", "3", "--to", "4", "--strategy", "consistent")
	require.Zero(t, code)
	require.Contains(t, out, "648 of 2520 slots move")
}

// A person who does not know the command tries the flag, and gets the same line.
func TestVersion(t *testing.T) {
	code, line := call(t, nil, "version")
	require.Zero(t, code)
	require.Regexp(t, `^escrow-relayer \S+, commit \S+ of \S+, go\S+ \w+/\w+\n$`, line)

	for _, flag := range []string{"--version", "-v"} {
		code, out := call(t, nil, flag)
		require.Zero(t, code, "%s: %s", flag, out)
		require.Equal(t, line, out, flag)
	}

	code, help := call(t, nil, "--help")
	require.Zero(t, code)
	require.Contains(t, help, "--version")

	code, out := call(t, nil, "run", "--version")
	require.Equal(t, exitRefused, code, "only the command itself has a version: %s", out)
	require.Contains(t, out, "unknown flag")
}

// Each thing that does not fit is said at once, with the variable, and nothing else runs.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for name, c := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"chain id": {map[string]string{"CHAIN_ID": "5"}, []string{"CHAIN_ID", "1337"}},
		"no code": {map[string]string{"FACTORY_ADDRESS": "0x00000000000000000000000000000000000000aa"},
			[]string{"FACTORY_ADDRESS"}},
		"no topic":    {map[string]string{"PUBSUB_TOPIC_ID": "nowhere"}, []string{"PUBSUB_TOPIC_ID=nowhere"}},
		"no schema":   {map[string]string{"MIGRATE_ON_START": "false"}, []string{"escrow-relayer migrate"}},
		"no database": {map[string]string{"DATABASE_URL": w.PG.URL("nowhere")}, []string{"DATABASE_URL", "nowhere"}},
		"partition":   {map[string]string{"PARTITION_NUMBER": "7"}, []string{"PARTITION_NUMBER"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"DATABASE_URL": w.another(strings.ReplaceAll(name, " ", "_")), "PORT": "0"}
			maps.Copy(env, c.env)

			code, out := call(t, w.Environ("r0", 0, 2, env), "run")
			require.Equal(t, 2, code, out)
			for _, want := range c.want {
				require.Contains(t, out, want)
			}
		})
	}
}

func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	code, out := call(t, append(w.Environ("r0", 0, 1, map[string]string{"INSTANCE_LOCK_WAIT": "500ms"}), "PORT=0"), "run")
	require.Equal(t, 2, code, out)
	require.Contains(t, out, "INSTANCE_ID=r0")
	w.blocks(3)
	w.audit(false)

	// While it waits, page and /readyz name the twin; the database is well.
	first := w.fleet["r0"]
	w.run("r0", 0, 1, map[string]string{"INSTANCE_LOCK_WAIT": "10m"})
	defer func() { w.fleet["r0"] = first }()
	require.Eventually(t, func() bool {
		status, ready := w.read("r0", "/readyz")
		_, page := w.read("r0", "/")
		return status == http.StatusServiceUnavailable &&
			strings.Contains(ready, "another live process has INSTANCE_ID=r0") &&
			strings.Contains(page, "give each instance its own INSTANCE_ID") &&
			!strings.Contains(page, "once the database answers")
	}, patience, 50*time.Millisecond)
}

func TestStatusAuditReplayMigrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ownServer)
	env := w.Environ("cli", 0, 1, nil)
	code, out := call(t, env, "migrate", "--check")
	require.Equal(t, 1, code, out)
	code, out = call(t, env, "migrate")
	require.Zero(t, code, out)
	require.Contains(t, out, "applied 00001")

	w.run("r0", 0, 1, map[string]string{"FINALITY": "confirmations"})
	w.ready("r0")
	w.blocks(10)
	w.audit(false)
	w.until("r0 has told how it knows its blocks", func(f *fleet.Fleet) bool { return f.Find("r0").Trust == "proved" })
	code, out = call(t, env, "status")
	require.Zero(t, code, out)
	require.Regexp(t, `r0 .* proved `, out)
	require.Contains(t, out, "r0 leads")
	require.Contains(t, out, "2520 of 2520 served")
	code, out = call(t, env, "plan", "wait", "--timeout", "5m", "--instance", "r0", "--total", "1")
	require.Zero(t, code, out)
	code, out = call(t, env, "plan", "wait", "--timeout", "0s", "--instance", "r1")
	require.Equal(t, exitNo, code, out)
	require.Contains(t, out, "r1 is not alive")
	code, out = call(t, env, "plan", "wait", "--timeout", "0s", "--total", "3")
	require.Equal(t, exitNo, code, out)
	require.Contains(t, out, "partition 2 of 3 has no live instance")
	code, out = call(t, env, "plan", "wait", "--timeout", "0s", "--gone", "r9")
	require.Equal(t, exitRefused, code, out)
	require.Contains(t, out, "--gone r9: no instance of that name is known")
	code, out = call(t, append(env, "DATABASE_URL=postgres://u@127.0.0.1:1/x"), "plan", "wait", "--timeout", "0s")
	require.Equal(t, exitRefused, code, "a database that cannot be asked says neither yes nor no: %s", out)
	require.Contains(t, out, "nothing accepts connections at 127.0.0.1:1")
	code, out = call(t, env, "replay", "--from", "1000000")
	require.Equal(t, exitNo, code, out)
	require.Contains(t, out, "0 events")
	require.NotContains(t, readLog(t, w.fleet["r0"]), `"severity":"WARNING"`, "a first start warns of nothing")

	code, out = call(t, env, "doctor", "--timeout", "80s")
	require.Zero(t, code, out)
	require.NotContains(t, out, "WRONG")
	require.Contains(t, out, "chain 1337")
	code, out = call(t, append(env, "PUBSUB_TOPIC_ID=nowhere"), "doctor", "--timeout", "80s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "PUBSUB_TOPIC_ID=nowhere")

	code, out = call(t, env, "audit", "--from", "0")
	require.Zero(t, code, out)
	require.Contains(t, out, "0 missing, 0 extra, 0 differing")
	// Break what is stored: the audit sees it.
	var id, other string
	require.NoError(t, w.DB.QueryRow(t.Context(), `delete from events
		where (block_number, log_index) = (select block_number, log_index from events where type = 3 limit 1)
		returning event_id(tx_hash, log_index, occurrence)`).Scan(&id))
	require.NoError(t, w.DB.QueryRow(t.Context(), `update events set args = '{"approver":"nobody"}'
		where (block_number, log_index) = (select block_number, log_index from events where type = 3 limit 1)
			returning event_id(tx_hash, log_index, occurrence)`).Scan(&other))
	code, out = call(t, env, "audit", "--from", "0")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "missing   "+id)
	require.Contains(t, out, "differing "+other)
	require.Contains(t, out, "1 missing, 0 extra, 1 differing")

	// A replay of one escrow publishes its whole history once more, marked.
	var escrow string
	var n int
	require.NoError(t, w.DB.QueryRow(t.Context(),
		`select escrow, count(*) from processed_events where event_type = any($1) group by escrow order by 2 desc limit 1`,
		contract.DefaultEvents).Scan(&escrow, &n))
	before := w.Received.Len()
	code, out = call(t, append(env, "EVENT_NAMES=ArbiterChanged", "OTHER_EVENTS_TOPIC_ID=other"), "replay", "--escrow",
		escrow)
	require.Equal(t, exitRefused, code, out)
	require.Contains(t, out, `EVENT_NAMES is "ArbiterChanged", and on r0 it is ""`)
	code, out = call(t, env, "replay", "--escrow", escrow, "--dry-run")
	require.Zero(t, code, out)
	require.Equal(t, before, w.Received.Len())
	code, out = call(t, env, "replay", "--escrow", escrow)
	require.Zero(t, code, out)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.Received.Wait(ctx, before+n))
	for _, m := range w.Received.Messages()[before:] {
		require.Equal(t, "true", m.Attributes["replay"])
		require.Equal(t, escrow, m.Attributes["escrow"])
	}

	w.fleet["r0"].Kill()
	w.until("nobody lives", func(f *fleet.Fleet) bool { return f.Live() == 0 })
	code, out = call(t, env, "status")
	require.Equal(t, 1, code, out)
}
