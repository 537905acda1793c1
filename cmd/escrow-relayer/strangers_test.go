package main

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

// A login without a grant waits for the leader's lock and the lock of a sender, and gets both when their session
// ends. status takes no dead instance for the leader, page and status name the stranger, and how to end it.
func TestAStrangerWithLocksIsNamed(t *testing.T) {
	t.Parallel()
	const chain = 1337
	f := testfleet.New(t, chain)
	f.Leads(testfleet.Leader{ID: "r0", Next: 10})
	r0 := f.Session()
	r0.Lead()
	f.Exec(`do $$ begin create role stranger login; exception when duplicate_object or unique_violation then null; end $$`)
	u, err := url.Parse(f.URL)
	require.NoError(t, err)
	u.User = url.User("stranger")
	cfg, err := pgx.ParseConfig(u.String())
	require.NoError(t, err)
	cfg.RuntimeParams["application_name"] = "curious \x1b[31m"
	stranger, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = stranger.Close(context.Background()) })
	key := f.Column(`select lock_key::text from leadership`)[0]
	env := []string{"CHAIN_ID=" + strconv.Itoa(chain), "DATABASE_URL=" + f.URL}
	r0.End()
	_, err = stranger.Exec(t.Context(), `select pg_advisory_lock($1)`, key)
	require.NoError(t, err)
	code, out := call(t, env, "status")
	require.Equal(t, exitNo, code, out)
	require.Contains(t, out, "nobody leads")
	require.Contains(t, out, "login stranger")
	require.Contains(t, out, "curious")
	pid := strconv.Itoa(int(stranger.PgConn().PID()))
	require.Contains(t, out, "pid "+pid)
	end := "select pg_terminate_backend(" + pid + ")"
	require.Contains(t, out, "first step: `"+end)
	require.NotContains(t, out, "\x1b[31m", "what a row or a session says of itself is text, and moves no cursor")
	f.Exec(end)
	require.Error(t, stranger.Ping(t.Context()))
	code, out = call(t, env, "status")
	require.Equal(t, exitNo, code, out)
	require.NotContains(t, out, "stranger")
}

// What others wrote into rows is text on a terminal.
func TestRowsMoveNoCursor(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	show := newTable(&out, "instance")
	show.AppendRow([]any{"r0\x1b[2J\u009b2J\a\rgone"})
	show.Render()
	require.Contains(t, out.String(), "gone")
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' }
	require.False(t, strings.ContainsFunc(out.String(), control), out.String())
}
