package partition

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
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// frozen is a connection of an instance's pool in whose middle of a commit the process was frozen:
// the instance's cursor row is locked.
func frozen(t *testing.T, url, id string) *pgx.Conn {
	c, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	c.RuntimeParams["application_name"] = election.ApplicationName(id)
	conn, err := pgx.ConnectConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `begin`)
	require.NoError(t, err)
	tag, err := conn.Exec(t.Context(),
		`update cursors set next_block = next_block + 1 where chain_id = $1 and instance_id = $2`, chain, id)
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())

	return conn
}

func endDead(pool *pgxpool.Pool) func(*Config) {
	return func(c *Config) {
		c.EndDead = func(ctx context.Context, ids []string) error {
			_, err := election.EndTransactions(ctx, pool, ids)
			return err
		}
	}
}

// An owner was frozen in the middle of a commit. Nobody waits for it: its standby takes its slots,
// and another instance stops cleanly.
func TestClaimFromAnOwnerFrozenInACommit(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, nil), born(t, url, pool, "b", 0, 2, endDead(pool))
	c := born(t, url, pool, "c", 1, 2, nil)
	steps(t, a, c, b)
	zombie := frozen(t, url, "a")
	a.die(t) // its session; the commit is still open

	require.NoError(t, b.Step(t.Context()))
	require.Equal(t, map[string]int{"b": 1260, "c": 1260}, owners(t, pool, b, c))
	require.NoError(t, c.Release(t.Context(), nil))
	_, err := zombie.Exec(t.Context(), `commit`)
	require.Error(t, err)
	require.EqualValues(t, 100, cursorOf(t, pool, "b"), "what the zombie had not committed is not counted")
}

// Where its transaction cannot be ended (another user's, say), the claim that fails on the row
// leaves the lock of the fleet to the others.
func TestAClaimDoesNotHoldTheFleetUp(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, nil), born(t, url, pool, "b", 0, 2, nil)
	c := born(t, url, pool, "c", 1, 2, nil)
	steps(t, a, c, b)
	zombie := frozen(t, url, "a")
	a.die(t)

	require.ErrorContains(t, b.Step(t.Context()), "lock timeout")
	require.NoError(t, c.Release(t.Context(), nil))
	_, err := zombie.Exec(t.Context(), `rollback`)
	require.NoError(t, err)
	require.NoError(t, b.Step(t.Context()))
}

// A process that is frozen in the middle of a claim has the lock of the whole fleet: the server ends its transaction.
func TestOwnershipLockOfAFrozenProcess(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a := born(t, url, pool, "a", 0, 1, nil)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, lockOwnership(t.Context(), tx, chain))
	require.NoError(t, a.Step(t.Context())) // waits for the server to do so
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, a))
	require.Error(t, tx.Commit(t.Context()))
}

// An instance that holds its lock and never looks after its slots is not alive: others serve what it would have.
func TestAnInstanceThatMakesNoStepIsNotAlive(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, at(0)), born(t, url, pool, "b", 1, 2, at(0))
	require.NoError(t, a.Step(t.Context()))
	steps(t, b)
	require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a, b))
	b.cfg.StaleAfter = 200 * time.Millisecond
	require.Eventually(t, func() bool {
		require.NoError(t, b.Step(t.Context()))
		return owners(t, pool)["b"] == 2520
	}, 10*time.Minute, 20*time.Millisecond)
	require.ErrorIs(t, a.Step(t.Context()), ErrFenced, "it finds out when it goes on")

	b.cfg.StaleAfter = StaleAfter
	require.NoError(t, a.Join(t.Context()))
	steps(t, a, b)
	require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a, b))
}

// One that was taken for dead, and from which nobody has claimed, goes on where it was.
func TestOneThatWasTakenForDeadIsAliveAgain(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, nil), born(t, url, pool, "b", 1, 2, nil)
	steps(t, a, b)
	_, err := pool.Exec(t.Context(),
		`update relayer_instances set seen_at = now() - interval '1 hour' where instance_id = 'a'`)
	require.NoError(t, err)
	require.NoError(t, b.Step(t.Context())) // marks it, and waits AdoptAfter
	status := func() (s string) {
		require.NoError(t, pool.QueryRow(t.Context(),
			`select status from relayer_instances where instance_id = 'a'`).Scan(&s))
		return s
	}
	require.Equal(t, "dead", status())
	steps(t, a, b)
	require.Equal(t, "active", status())
	require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a, b))
}

// longAgo has every instance be stuck, or able, for two hours longer, by the database's clock.
func longAgo(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `update relayer_instances
		set stuck_since = stuck_since - interval '2 hours', able_since = able_since - interval '2 hours'`)
	require.NoError(t, err)
}

// An owner whose nodes are gone gives its slots up to one that can go on, stays out for its probation, and comes back.
func TestAnOwnerThatCannotGoOnSitsOut(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	var down [2]atomic.Bool
	able := func(i int) func(*Config) {
		return func(c *Config) {
			c.AdoptAfter, c.StallAfter = 0, time.Hour
			c.Able = func() error {
				if down[i].Load() {
					return errors.New("no node")
				}

				return nil
			}
		}
	}
	a, b := born(t, url, pool, "a", 0, 2, able(0)), born(t, url, pool, "b", 1, 2, able(1))
	both, one := map[string]int{"a": 1260, "b": 1260}, map[string]int{"b": 2520}
	then := func(want map[string]int, when string) {
		t.Helper()
		steps(t, a, b)
		require.Equal(t, want, owners(t, pool, a, b), when)
	}
	then(both, "at first")

	down[0].Store(true)
	then(both, "stuck, and not for long")
	longAgo(t, pool)
	then(one, "stuck for long")
	down[0].Store(false)
	then(one, "on probation")
	longAgo(t, pool)
	then(both, "able for long")

	// With all nodes gone nobody moves anything.
	down[0].Store(true)
	down[1].Store(true)
	then(both, "both stuck")
	epochs := []int64{epoch(t, pool, "a"), epoch(t, pool, "b")}
	longAgo(t, pool)
	then(both, "both stuck for long")
	require.Equal(t, []int64{epoch(t, pool, "a"), epoch(t, pool, "b")}, epochs)

	// A new life of one that sits out still does, while its nodes are gone.
	down[1].Store(false)
	then(both, "b able, and not for long")
	longAgo(t, pool)
	then(one, "b able for long")
	require.NoError(t, a.Join(t.Context()))
	then(one, "a lives anew, and is stuck")
}

// An instance that lives, looks after its slots and prefers free ones, and whose claims fail, leaves them to another.
func TestOneThatCannotClaimSitsOut(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	sick := testpg.Open(t, url+"&application_name=sick")
	stall := func(c *Config) { c.AdoptAfter, c.StallAfter = 0, time.Hour }
	a := born(t, url, pool, "a", 0, 2, func(c *Config) { stall(c); c.DB = sick })
	b := born(t, url, pool, "b", 1, 2, stall)
	for _, statement := range []string{
		`create function refuse() returns trigger language plpgsql as $$ begin
			if current_setting('application_name') = 'sick' then raise exception 'no'; end if;
			return null;
		end $$`,
		`create trigger refuse before update on slot_ownership for each statement execute function refuse()`,
	} {
		_, err := pool.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	require.ErrorContains(t, a.Step(t.Context()), "claim slots")
	steps(t, b)
	left := map[string]int{"": 1260, "b": 1260}
	require.Equal(t, left, owners(t, pool, a, b), "left to the one that prefers them")
	require.ErrorContains(t, a.Step(t.Context()), "claim slots", "it tells that it is stuck")
	steps(t, b)
	require.Equal(t, left, owners(t, pool, a, b), "stuck, and not for long")
	longAgo(t, pool)
	steps(t, a, b)
	require.Equal(t, map[string]int{"b": 2520}, owners(t, pool, a, b), "on probation, and nothing fails")

	_, err := pool.Exec(t.Context(), `drop trigger refuse on slot_ownership`)
	require.NoError(t, err)
	longAgo(t, pool)
	steps(t, a, b)
	require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a, b), "able for long")
}

func TestSitsOut(t *testing.T) {
	t.Parallel()
	const stall = 15 * time.Second
	me := func(m Member) Member { m.ID, m.Alive, m.Active = "me", true, true; return m }
	other := func(m Member) Member { m.ID, m.Alive, m.Active = "other", true, true; return m }
	stuck, able := Member{Stuck: true, StateFor: time.Minute}, Member{StateFor: time.Minute}
	out := Member{Stuck: true, StateFor: time.Minute, SitsOut: true}
	dead := other(able)
	dead.Alive = false
	for name, c := range map[string]struct {
		want      bool
		fleet     []Member
		probation time.Duration
	}{
		"alone":                         {false, []Member{me(stuck)}, 0},
		"able":                          {false, []Member{me(able), other(able)}, 0},
		"stuck beside one that is able": {true, []Member{me(stuck), other(able)}, 0},
		"stuck not for long": {false,
			[]Member{me(Member{Stuck: true, StateFor: time.Second}), other(able)}, 0},
		"beside one that is stuck too":         {false, []Member{me(stuck), other(stuck)}, 0},
		"beside one that has just become able": {false, []Member{me(stuck), other(Member{StateFor: time.Second})}, 0},
		"beside one that sits out": {false,
			[]Member{me(stuck), other(Member{StateFor: time.Minute, SitsOut: true})}, 0},
		"beside a dead one":                  {false, []Member{me(stuck), dead}, 0},
		"out and stuck":                      {true, []Member{me(out), other(able)}, 0},
		"out and stuck, the other stuck too": {true, []Member{me(out), other(stuck)}, 0},
		"out and alone":                      {false, []Member{me(out), dead}, 0},
		"out and able for a moment": {true,
			[]Member{me(Member{StateFor: time.Second, SitsOut: true}), other(able)}, 0},
		"out and able for a moment, other stuck": {false,
			[]Member{me(Member{StateFor: time.Second, SitsOut: true}), other(stuck)}, 0},
		"out and able for the shortest probation": {false, []Member{me(Member{StateFor: stall, SitsOut: true}), other(able)},
			0},
		"out and able, in a longer probation": {true, []Member{me(Member{StateFor: stall, SitsOut: true}), other(able)},
			2 * stall},
	} {
		require.Equal(t, c.want, sitsOut("me", c.fleet, stall, c.probation), name)
	}
}
