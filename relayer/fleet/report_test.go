package fleet_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// A watch stands from the moment at which it is first seen to have blocks and to store none; a stored
// block, or nothing to store, ends it. A rollback is no progress.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	var w fleet.Watchdog
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	require.Zero(t, w.Standing(at(1), 10, false))
	require.Equal(t, at(2), w.Standing(at(2), 10, true))
	require.Equal(t, at(2), w.Standing(at(90), 10, true))
	require.Equal(t, at(2), w.Standing(at(91), 8, true), "back is not on")
	require.Equal(t, at(92), w.Standing(at(92), 9, true))
	require.Zero(t, w.Standing(at(93), 9, false))
	require.Equal(t, at(94), w.Standing(at(94), 9, true))
}

// What an instance says of itself is what every screen has: how long it stands, why, and since when
// the database has taken nothing from it.
func TestReports(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1000).Lead()
	now := time.Now()
	self := &fleet.Self{ID: "a", StandingSince: now.Add(-90 * time.Second), Stuck: errors.New("a secret")}
	report := func() {
		require.NoError(t, fleet.Report(t.Context(), w.DB, chain, self, now, func(s string) string {
			require.Equal(t, "storing: a secret", s)
			return "storing: masked"
		}))
	}
	read := func() fleet.Fleet {
		f, err := fleet.Read(t.Context(), w.DB, chain)
		require.NoError(t, err)

		return f
	}
	report()
	report()
	f := read()
	require.Equal(t, []string{fleet.Standing}, kinds(f.Problems))
	require.NotEqual(t, fleet.Notice, f.Problems[0].Severity)
	require.Contains(t, f.Problems[0].Text, ": a; a says: storing: masked")

	w.Exec(`update instance_health set standing_since = null, fault = '', fault_since = null`)
	require.Empty(t, read().Problems)
	for ago, severity := range map[string]fleet.Severity{"2 seconds": fleet.Notice, "40 seconds": fleet.Warning,
		"150 seconds": fleet.Critical} {
		w.Exec(`update instance_health set fault = 'database: no commits today', fault_since = now() - $1::interval`, ago)
		problems := read().Problems
		require.Equal(t, []string{fleet.InstanceFault}, kinds(problems))
		require.Equal(t, severity, problems[0].Severity, ago)
		require.Contains(t, problems[0].Text, "; a says: database: no commits today")
	}

	w.Exec(`update instance_health set fault = '', fault_since = null`)
	for ago, severity := range map[string]fleet.Severity{"8 seconds": fleet.Notice, "40 seconds": fleet.Warning,
		"150 seconds": fleet.Critical} {
		w.Exec(`update instance_health set reported_at = now() - $1::interval`, ago)
		problems := read().Problems
		require.Equal(t, []string{fleet.DatabaseRefuses}, kinds(problems))
		require.Equal(t, severity, problems[0].Severity, ago)
		require.Contains(t, problems[0].Text, "from a: commits fail or hang")
	}

	// Another one is heard of: it is no fault of the database.
	w.live("b", 0, 1, 1000)
	w.Exec(`update instance_health set reported_at = now() - interval '150 seconds'`)
	problems := read().Problems
	require.Equal(t, fleet.StaleHeartbeat, problems[0].Kind)
	require.Contains(t, problems[0].Text, "nothing has been heard of a for 2m 3")
}

// An instance that cannot join has no session and is there all the same: nobody says that it died.
func TestAnInstanceThatCannotJoinIsThere(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.lost("a", 0, 1, 1000)
	w.Seen("a", time.Minute, time.Minute)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.NobodyAlive}, kinds(f.Problems))

	conn := connect(t, w.URL, election.ApplicationName("a"))
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, fleet.Hung, f.Find("a").State)
	require.Equal(t, []string{fleet.DatabaseRefuses}, kinds(f.Problems))

	// Its connections are those of another chain alone.
	w.Exec(`insert into instance_health values ($1, 'a', now() - interval '10 minutes'), (99, 'a', now())`, chain)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.NobodyAlive}, kinds(f.Problems))
	require.NoError(t, conn.Close(t.Context()))
}

// A lock that a person holds is named, with its holder, and what to do.
func TestWhoHasLocked(t *testing.T) {
	w := setup(t)
	mine, person := connect(t, w.URL, election.ApplicationName("a")), connect(t, w.URL, "psql")
	own, err := pgx.ParseConfig(w.URL)
	require.NoError(t, err)
	waits := func() (locked *fleet.LockedError) {
		require.Eventually(t, func() bool { // a look has a second, in which a busy machine may not answer
			err := fleet.Waits(t.Context(), own)
			return err == nil || errors.As(err, &locked)
		}, 10*time.Minute, 20*time.Millisecond)

		return locked
	}
	tx, err := person.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table cursors`)
	require.NoError(t, err)
	require.Nil(t, waits())

	done := make(chan error, 1)
	go func() {
		_, err := mine.Exec(context.WithoutCancel(t.Context()), `select from cursors`)
		done <- err
	}()
	require.Eventually(t, func() bool { return waits() != nil }, 10*time.Minute, 20*time.Millisecond)
	what, remedy := waits().Advice()
	require.Regexp(t, `^the table cursors is locked by pid \d+, login \w+, application "psql", in a transaction of \d+s$`, what)
	require.Contains(t, remedy, "pg_terminate_backend(")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
	require.Nil(t, waits())
}

// connect opens a connection with an application_name, until the test ends.
func connect(t *testing.T, url, application string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	cfg.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })

	return conn
}

func TestSinceWhenSomethingIsWrong(t *testing.T) {
	t.Parallel()
	var w fleet.Watchdog
	at := time.Unix(1_700_000_000, 0)
	require.Zero(t, w.Standing(at, 0, false))
	require.Equal(t, at, w.Standing(at, 0, true))
	require.Equal(t, at, w.Standing(at.Add(time.Minute), 0, true), "since it began")
	require.Zero(t, w.Standing(at.Add(2*time.Minute), 0, false))
	require.Equal(t, at.Add(3*time.Minute), w.Standing(at.Add(3*time.Minute), 0, true), "anew")
}
