package election_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// memoryOf is what a new session says of a server.
func memoryOf(t *testing.T, url string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	s, err := election.Open(t.Context(), election.SessionConfig{
		Conn: cfg, ChainID: 7, InstanceID: "r0", Wait: time.Minute})
	require.NoError(t, err)
	s.Close()

	return s.Memory()
}

// killOne has the kernel kill a process of the server, as for want of memory, and returns when the server
// has recovered: under the same postmaster, whose start time says nothing.
func killOne(t *testing.T, url string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	witness, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	started := func(conn *pgx.Conn) (at time.Time, err error) {
		return at, conn.QueryRow(ctx, `select pg_postmaster_start_time()`).Scan(&at)
	}
	before, err := started(conn)
	require.NoError(t, err)
	// the program runs as the server's user, and kills the process that waits for it
	_, err = conn.Exec(ctx, `copy (select 1) to program 'kill -9 $PPID'`)
	require.Error(t, err)
	require.Eventually(t, func() bool { return witness.Ping(ctx) != nil }, 10*time.Minute, 20*time.Millisecond,
		"the recovery ends all connections; until then a new one meets the server as it was")
	require.Eventually(t, func() bool {
		again, err := pgx.Connect(ctx, url)
		if err != nil {
			return false
		}

		defer func() { _ = again.Close(context.WithoutCancel(ctx)) }()
		after, err := started(again)

		return err == nil && after.Equal(before)
	}, 10*time.Minute, 20*time.Millisecond)
}

// The name changes exactly where commits that were answered may be forgotten: when the server recovers
// from the crash of one of its processes, with synchronous_commit on and off, or of itself, and when a standby
// is promoted. A restart in order keeps it.
func TestMemoryChangesWhereCommitsMayBeForgotten(t *testing.T) {
	t.Parallel()
	for _, commit := range []string{"on", "off"} {
		t.Run("synchronous_commit="+commit, func(t *testing.T) {
			t.Parallel()
			pg, err := testpg.Start(t.Context(), testpg.Options{
				Settings: map[string]string{"synchronous_commit": commit}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, pg.Stop(context.WithoutCancel(t.Context()))) })
			template, err := pg.Template(t.Context())
			require.NoError(t, err)
			require.NoError(t, pg.CreateDatabase(t.Context(), "relayer", template))
			url := pg.URL("relayer")
			first := memoryOf(t, url)
			require.Equal(t, first, memoryOf(t, url))

			require.NoError(t, pg.Down(t.Context(), testpg.Fast))
			require.NoError(t, pg.Up(t.Context()))
			require.Equal(t, first, memoryOf(t, url), "a restart in order")

			killOne(t, url)
			second := memoryOf(t, url)
			require.NotEqual(t, first, second, "one process was killed")

			require.NoError(t, pg.Down(t.Context(), testpg.Immediate))
			require.NoError(t, pg.Up(t.Context()))
			third := memoryOf(t, url)
			require.NotEqual(t, second, third, "the server was killed")

			standby, err := pg.Standby(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, standby.Stop(context.WithoutCancel(t.Context()))) })
			require.Equal(t, third, memoryOf(t, url))
			require.NoError(t, standby.Promote(t.Context()))
			require.NotEqual(t, third, memoryOf(t, standby.URL("relayer")), "the standby was promoted")
			require.Equal(t, third, memoryOf(t, url), "the old primary, which still answers")
		})
	}
}

// Sessions that find no name at the same moment agree on one.
func TestSessionsAgreeOnAName(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	names := make(chan string)
	for i := range 8 {
		go func() {
			cfg, err := pgx.ParseConfig(url)
			if err != nil {
				panic(err)
			}

			s, err := election.Open(t.Context(), election.SessionConfig{Conn: cfg, ChainID: int64(i + 1), InstanceID: "r0"})
			if err != nil {
				panic(err)
			}

			s.Close()
			names <- s.Memory()
		}()
	}

	first := <-names
	for range 7 {
		require.Equal(t, first, <-names)
	}
}
