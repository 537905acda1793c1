package election_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// A session whose connection swallows bytes ends with its lease, also when statements are under way
// on it: a follower contends all the time.
func TestSwallowedSessionEndsWithItsLease(t *testing.T) {
	t.Parallel()
	for name, contending := range map[string]bool{"idle": false, "contending": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.contend(t, "leader", nil)
			proxy, behind, err := faults.ProxyURL(f.url)
			require.NoError(t, err)
			t.Cleanup(func() { _ = proxy.Close() })
			conn, err := pgx.ParseConfig(behind)
			require.NoError(t, err)
			s, err := f.open(t, "b", func(c *election.SessionConfig) { brief(c); c.Conn = conn })
			require.NoError(t, err)
			result := make(chan error, 1)
			go func() { result <- s.Run(t.Context()) }()
			if contending {
				e := elector(t, f, s, "b", nil) // its pool does not go through the proxy
				go func() {
					_ = e.Run(t.Context(), func(ctx context.Context, _ election.Term) error { <-ctx.Done(); return nil })
				}()
			}

			undo := proxy.Swallow(true)
			t.Cleanup(func() { _ = undo() })
			select {
			case err := <-result:
				require.ErrorIs(t, err, election.ErrLost)
				if !contending { // else the deadline of the contender's statement may end first
					require.ErrorContains(t, err, "lease")
				}

				require.False(t, s.Valid())
			case <-time.After(time.Minute): // the lease is 5 s
				t.Fatal("the session does not notice that nothing answers")
			}
		})
	}
}

// A statement on the session that nobody bounds is bounded by the lease.
func TestDoEndsWithTheLease(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.open(t, "a", brief)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() { result <- s.Run(t.Context()) }()
	err = s.Do(context.Background(), func(ctx context.Context, _ *pgx.Conn) error {
		<-ctx.Done() // as a statement does on a connection that swallows bytes
		return ctx.Err()
	})
	require.Error(t, err)
	require.ErrorIs(t, <-result, election.ErrLost)
}

// What is asked for after the end of its context is not begun: an instance that stops takes no lock again, which the
// others wait for.
func TestDoBeginsNothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, _ := f.run(t, "a")
	ended, end := context.WithCancel(t.Context())
	end()
	for range 100 {
		begun := func(context.Context, *pgx.Conn) error { return errors.New("begun") }
		require.ErrorIs(t, s.Do(ended, begun), context.Canceled)
		require.NoError(t, s.Do(t.Context(), func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) }))
	}
}

// What a session spends on waiting for a predecessor is no part of its lease.
func TestLeaseBeginsWhenTheLockIsTaken(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, end := f.run(t, "a")
	var answers atomic.Int32
	var s *election.Session
	opened := make(chan error, 1)
	go func() {
		var err error
		s, err = f.open(t, "a", func(c *election.SessionConfig) {
			brief(c)
			c.Wait = time.Minute
			c.Clock = func() time.Duration { return time.Duration(answers.Load()) * time.Minute }
			c.Waiting = func(error) { answers.Add(1) } // a minute per look
		})
		opened <- err
	}()
	require.Eventually(t, func() bool { return answers.Load() >= 2 }, 10*time.Minute, time.Millisecond)
	require.NoError(t, end())
	require.NoError(t, <-opened)
	t.Cleanup(s.Close)
	require.True(t, s.Valid(), "over before it began")
}

// A machine that was suspended for longer than the lease finds the session over: its clock has gone on meanwhile.
func TestLeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var clock atomic.Int64
	s, err := f.open(t, "a",
		func(c *election.SessionConfig) {
			brief(c)
			c.Clock = func() time.Duration { return time.Duration(clock.Load()) }
		})
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() { result <- s.Run(t.Context()) }()
	require.True(t, s.Valid())
	clock.Add(int64(6 * time.Second)) // the lease is 5 s
	require.False(t, s.Valid())
	require.ErrorIs(t, <-result, election.ErrLost)
}

// Instances of several chains share a database, and its notification channels.
func TestNotificationsOfOtherChainsArePassedOver(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, _ := f.run(t, "a")
	for _, c := range []int{chain + 1, chain} { // delivered in this order
		_, err := f.pool.Exec(t.Context(), `select pg_notify('hints', $1::bigint::text)`, c)
		require.NoError(t, err)
		if c != chain {
			_, err = f.pool.Exec(t.Context(), `select pg_notify($1, $2::bigint::text)`, election.Channel, chain)
			require.NoError(t, err)
			<-s.Hint(election.Channel)
			require.Empty(t, s.Hint("hints"), "another chain's")
		}
	}

	<-s.Hint("hints")
}

// frozen is a connection of an instance that has changed the leadership row and says nothing more.
func (f fixture) frozen(t *testing.T, id string) *pgx.Conn {
	c, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	c.RuntimeParams["application_name"] = election.ApplicationName(id)
	conn, err := pgx.ConnectConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `begin; update leadership set next_block = next_block + 1`)
	require.NoError(t, err)

	return conn
}

// The former leader was frozen in the middle of a commit: the next one does not wait for it.
func TestTermBeginsThoughTheFormerLeaderIsFrozenInACommit(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	<-a.won
	zombie := f.frozen(t, "a")
	_, err := f.pool.Exec(t.Context(), `select pg_terminate_backend($1)`, a.session.PID())
	require.NoError(t, err)
	b := f.contend(t, "b", nil)
	select {
	case <-b.won:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for the frozen one")
	}

	_, err = zombie.Exec(t.Context(), `commit`)
	require.Error(t, err, "its connection was ended")
}

// A term that cannot begin, and one whose work fails, cost the leadership for a while, and nothing else.
func TestErrorsOfATermDoNotEndTheRun(t *testing.T) {
	t.Parallel()
	f := setup(t)
	blocker := f.frozen(t, "somebody else")
	impatient := f.pool.Config().Copy()
	impatient.ConnConfig.RuntimeParams["lock_timeout"] = "50"
	pool, err := pgxpool.NewWithConfig(t.Context(), impatient)
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	s, _ := f.run(t, "a")
	e := elector(t, f, s, "a", func(c *election.ElectorConfig) { c.DB = pool })
	ctx, cancel := context.WithCancel(t.Context())
	won, result := make(chan election.Term, 10), make(chan error, 1)
	go func() {
		result <- e.Run(ctx, func(_ context.Context, term election.Term) error {
			won <- term
			return errors.New("boom")
		})
	}()
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, f.pool.QueryRow(t.Context(),
			`select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())`).Scan(&waits))

		return waits
	}, 10*time.Minute, time.Millisecond)
	_, err = blocker.Exec(t.Context(), `rollback`)
	require.NoError(t, err)
	first, second := <-won, <-won
	require.Greater(t, second.Epoch, first.Epoch)
	require.True(t, s.Valid())
	cancel()
	require.NoError(t, <-result)
}

// A beat that fails is made up for by the next one; when none succeeds the leader goes before others end it.
func TestBeatsThatFail(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	term := <-a.won
	broken := testpg.Open(t, f.url)
	e := elector(t, f, a.session, "a",
		func(c *election.ElectorConfig) { c.StaleAfter = 5 * time.Second; c.DB = broken })
	beat := e.Beats(term)
	require.NoError(t, beat(t.Context()))
	broken.Close()
	require.NoError(t, beat(t.Context()), "the next one may succeed")
	require.Eventually(t, func() bool { return errors.Is(beat(t.Context()), election.ErrResign) }, time.Minute,
		10*time.Millisecond)
}

// While a rollback holds the leadership row no leader can beat, and none is ended for it.
func TestLeaderIsNotEndedDuringARollback(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	<-a.won
	rollback, err := pgx.Connect(t.Context(), f.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rollback.Close(context.Background()) })
	_, err = rollback.Exec(t.Context(), `begin; select from ownership_lock for update`)
	require.NoError(t, err)
	b := f.contend(t, "b", func(c *election.ElectorConfig) { c.StaleAfter = 100 * time.Millisecond })
	select {
	case <-b.won:
		t.Fatal("the leader was ended in the middle of a rollback")
	case <-time.After(time.Second):
	}

	require.True(t, a.session.Valid())
	_, err = rollback.Exec(t.Context(), `rollback`)
	require.NoError(t, err)
	<-b.won
}

// A row whose leader resigned long ago, since no node could be used, says nothing of a candidate that has just got
// the lock: what contenders find stale once is a suspicion, and the next check finds its first heartbeat.
func TestANewLeaderIsNotEndedForItsPredecessorsSilence(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, err := f.pool.Exec(t.Context(), `update leadership set last_heartbeat = now() - interval '1 hour'`)
	require.NoError(t, err)
	candidate, _ := f.run(t, "a")
	key := f.key(t, election.Leader, chain, "")
	require.NoError(t, candidate.Do(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `select pg_advisory_lock($1)`, key) // and its first heartbeat is under way

		return err
	}))
	b := f.contend(t, "b", func(c *election.ElectorConfig) {
		c.StaleAfter, c.RetryEvery = 24*time.Second, 10*time.Millisecond
	})
	select { // the first check comes after StaleAfter/6, the second as long after it
	case <-b.won:
		t.Fatal("the candidate was ended at the first look")
	case <-time.After(5 * time.Second):
	}

	require.True(t, candidate.Valid())
	_, err = f.pool.Exec(t.Context(), `update leadership set last_heartbeat = now()`)
	require.NoError(t, err)
	select {
	case <-b.won:
		t.Fatal("it has written its heartbeat")
	case <-time.After(2 * time.Second):
	}

	_, err = f.pool.Exec(t.Context(), `update leadership set last_heartbeat = now() - interval '1 hour'`)
	require.NoError(t, err)
	<-b.won // one that stays silent is ended
}

// Only what dead instances have under way is ended.
func TestEndTransactions(t *testing.T) {
	t.Parallel()
	f := setup(t)
	register := func(id string, chain int64) {
		_, err := f.pool.Exec(t.Context(), `insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key)
			values ($1, $2, 0, 1, 'modulo', 'active', $3)`, chain, id, f.key(t, election.Instance, chain, id))
		require.NoError(t, err)
	}
	register("alive", chain)
	register("dead", chain)
	alive, _ := f.run(t, "alive")
	conn := func(id, begin string) *pgx.Conn {
		c, err := pgx.ParseConfig(f.url)
		require.NoError(t, err)
		c.RuntimeParams["application_name"] = election.ApplicationName(id)
		conn, err := pgx.ConnectConfig(t.Context(), c)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), begin)
		require.NoError(t, err)

		return conn
	}
	busy, dead, idle := conn("alive", `begin`), conn("dead", `begin`), conn("dead", `select 1`)
	ended, err := election.EndTransactions(t.Context(), f.pool, []string{"alive", "dead"})
	require.NoError(t, err)
	require.Equal(t, 1, ended)
	require.NoError(t, busy.Ping(t.Context()))
	require.NoError(t, idle.Ping(t.Context()))
	require.Error(t, dead.Ping(t.Context()))

	// A namesake on another chain lives: whose connection it is cannot be told.
	register("dead", chain+1)
	_, end := f.run(t, "other")
	_, err = f.pool.Exec(t.Context(), `update relayer_instances set lock_key = $1 where chain_id = $2`,
		f.key(t, election.Instance, chain, "other"), chain+1)
	require.NoError(t, err)
	again := conn("dead", `begin`)
	ended, err = election.EndTransactions(t.Context(), f.pool, []string{"dead"})
	require.NoError(t, err)
	require.Zero(t, ended)
	require.NoError(t, end())
	require.NoError(t, again.Ping(t.Context()))

	// An earlier process's: begun before the session had the lock.
	ended, err = alive.EndFormer(t.Context(), f.pool)
	require.NoError(t, err)
	require.Zero(t, ended, "begun after it")
	changed := conn("late", `begin; update relayer_instances set status = status where instance_id = 'dead'`)
	locked := conn("late", `begin; select pg_advisory_xact_lock(1)`)
	read := conn("late", `begin; select count(*) from relayer_instances`)
	sibling, err := f.open(t, "late", func(c *election.SessionConfig) { c.Started = time.Now().Add(-time.Hour) })
	require.NoError(t, err)
	ended, err = sibling.EndFormer(t.Context(), f.pool)
	require.NoError(t, err)
	require.Zero(t, ended, "they may be of another chain of this process, which began before them")
	sibling.Close()

	s, _ := f.run(t, "late")
	now := conn("late", `begin; select txid_current()`)
	ended, err = s.EndFormer(t.Context(), f.pool)
	require.NoError(t, err)
	require.Equal(t, 2, ended)
	require.Error(t, changed.Ping(t.Context()))
	require.Error(t, locked.Ping(t.Context()))
	require.NoError(t, read.Ping(t.Context()), "nobody waits for a reader, and it may be this process's own")
	require.NoError(t, now.Ping(t.Context()))
}

// SESSION_DATABASE_URL and DATABASE_URL name two databases: the others would not see that the instance lives.
func TestASessionInAnotherDatabaseIsFound(t *testing.T) {
	t.Parallel()
	f, g := setup(t), setup(t)
	s, end := f.run(t, "a")
	require.NoError(t, s.Find(t.Context(), f.pool))
	require.ErrorIs(t, s.Find(t.Context(), g.pool), election.ErrElsewhere)
	conn, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	require.NoError(t, election.CheckSame(t.Context(), conn, f.pool))
	require.ErrorIs(t, election.CheckSame(t.Context(), conn, g.pool), election.ErrElsewhere)
	require.NoError(t, end())
	require.ErrorIs(t, s.Find(t.Context(), g.pool), election.ErrLost, "one that is over is nowhere")
}

// The database ends the session's connection between the lock and the look for it, as at a failover: that is
// no database other than the pool's, and a start tries again.
func TestASessionLostMeanwhileIsNotElsewhere(t *testing.T) {
	t.Parallel()
	f := setup(t)
	conn, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	cfg := f.pool.Config().Copy()
	cfg.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) { // before the look
		var ended int
		err := f.pool.QueryRow(ctx, `with holder as materialized (select pid from pg_locks where locktype = 'advisory'
			and database = (select oid from pg_database where datname = current_database()))
			select count(*) from holder where pg_terminate_backend(pid, 60000)`).Scan(&ended) // waits for its end, in ms
		require.Equal(t, 1, ended)

		return true, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	err = election.CheckSame(t.Context(), conn, pool)
	require.ErrorContains(t, err, "session")
	require.NotErrorIs(t, err, election.ErrElsewhere)

	s, end := f.run(t, "a")
	require.ErrorIs(t, s.Find(t.Context(), pool), election.ErrLost)
	require.ErrorIs(t, end(), election.ErrLost)
}

func TestRewind(t *testing.T) {
	t.Parallel()
	f := setup(t) // from block 10 on
	_, err := registry.Start(t.Context(), f.pool, chain+1)
	require.ErrorIs(t, err, registry.ErrUnknown)
	_, err = registry.Rewind(t.Context(), f.pool, chain, 10)
	require.ErrorContains(t, err, "it can only be moved back")
	_, err = f.pool.Exec(t.Context(), `update leadership set next_block = 50, block_hash = 'x', verified_block = 40`)
	require.NoError(t, err)
	was, err := registry.Rewind(t.Context(), f.pool, chain, 4)
	require.NoError(t, err)
	require.EqualValues(t, 10, was)
	var next, verified int64
	var hash *string
	require.NoError(t, f.pool.QueryRow(t.Context(),
		`select next_block, verified_block, block_hash from leadership`).Scan(&next, &verified, &hash))
	require.Equal(t, []int64{50, 40}, []int64{next, verified}, "the head is read on")
	require.Equal(t, "x", *hash)
	list, err := registry.Factories(t.Context(), f.pool, chain)
	require.NoError(t, err)
	require.Equal(t, []registry.Factory{{ID: 1, Address: named("0xfac"), Start: 4, Past: 4, Until: 10}}, list)
	now, err := registry.Start(t.Context(), f.pool, chain)
	require.NoError(t, err)
	require.EqualValues(t, 4, now)
}
