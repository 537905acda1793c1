package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

const chain = 31337

// life is an instance: a claimer, and a connection that holds its lock, which is what the others see of it.
type life struct {
	*Claimer
	id   string
	conn *pgx.Conn
}

// die ends the session, and returns when the server has freed its lock.
func (l *life) die(t *testing.T) {
	pid := l.conn.PgConn().PID()
	require.NoError(t, l.conn.Close(context.Background()))
	require.Eventually(t, func() bool {
		var gone bool
		require.NoError(t, l.cfg.DB.QueryRow(t.Context(), `select not exists (select from pg_locks where pid = $1)`,
			pid).Scan(&gone))

		return gone
	}, 10*time.Minute, time.Millisecond)
}

// Step, Join and Release try again where the server has ended a transaction, as Run and a tenure do: its process stood
// still for idleTimeout, which on a busy machine happens.
func (l *life) Step(ctx context.Context) error {
	return again(func() error { return l.Claimer.Step(ctx) })
}

func (l *life) Join(ctx context.Context) error {
	return again(func() error { return l.Claimer.Join(ctx) })
}

func (l *life) Release(ctx context.Context, slots []int16) error {
	return again(func() error { return l.Claimer.Release(ctx, slots) })
}

func again(try func() error) (err error) {
	for range 60 {
		err = try()
		if idle := new(pgconn.PgError); !errors.As(err, &idle) || idle.Code != "25P03" {
			break
		}
	}

	return err
}

func born(t *testing.T, url string, pool *pgxpool.Pool, id string, number, total int, change func(*Config)) *life {
	l := &life{id: id}
	key := int64(0)
	for _, b := range []byte(id) {
		key = key<<8 | int64(b)
	}

	var err error
	l.conn, err = pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.conn.Close(context.Background()) })
	_, err = l.conn.Exec(t.Context(), `select pg_advisory_lock($1)`, key)
	require.NoError(t, err)
	cfg := Config{DB: pool, ChainID: chain, InstanceID: id, LockKey: key, Partition: Partition{number, total, Modulo},
		StartBlock: 100, AdoptAfter: time.Hour}
	if change != nil {
		change(&cfg)
	}

	l.Claimer, err = New(cfg)
	require.NoError(t, err)
	require.NoError(t, l.Join(t.Context()))

	return l
}

// The session is there, but not where the slots are kept: the database failed over, and its old primary answers.
func TestOwnSessionIsSeenAsDead(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	l := born(t, url, pool, "a", 0, 1, nil)
	steps(t, l)
	_, err := l.conn.Exec(t.Context(), `select pg_advisory_unlock_all()`)
	require.NoError(t, err)
	require.ErrorIs(t, l.Run(t.Context(), nil), ErrUnseen)
}

func at(n time.Duration) func(*Config) { return func(c *Config) { c.AdoptAfter = n } }

func steps(t *testing.T, lives ...*life) {
	for range 3 {
		for _, l := range lives {
			require.NoError(t, l.Step(t.Context()))
		}
	}
}

// owners of all slots by the database, and what each life believes: the two have to agree.
func owners(t *testing.T, pool *pgxpool.Pool, lives ...*life) map[string]int {
	rows, _ := pool.Query(t.Context(),
		`select coalesce(owner, ''), array_agg(slot order by slot) from slot_ownership where chain_id = $1 group by 1`, chain)
	count := map[string]int{}
	held := map[string][]int16{}
	var owner string
	var slots []int16
	_, err := pgx.ForEachRow(rows, []any{&owner, &slots}, func() error {
		count[owner], held[owner] = len(slots), slices.Clone(slots)
		return nil
	})
	require.NoError(t, err)
	total := 0
	for _, n := range count {
		total += n
	}

	require.Equal(t, Slots, total)
	for _, l := range lives {
		h, _ := l.Holding()
		require.Len(t, h.Slots, len(held[l.id]), l.id)
		if len(h.Slots) > 0 {
			require.Equal(t, held[l.id], h.Slots, l.id)
		}

		require.Equal(t, epoch(t, pool, l.id), h.Epoch, l.id)
	}

	return count
}

func epoch(t *testing.T, pool *pgxpool.Pool, id string) (n int64) {
	require.NoError(t, pool.QueryRow(t.Context(), `select epoch from cursors where chain_id = $1 and instance_id = $2`,
		chain, id).Scan(&n))
	return n
}

func cursorOf(t *testing.T, pool *pgxpool.Pool, id string) (n int64) {
	require.NoError(t, pool.QueryRow(t.Context(),
		`select next_block from cursors where chain_id = $1 and instance_id = $2`, chain, id).Scan(&n))
	return n
}

// commit is the condition that every commit of the ledger has.
func commit(t *testing.T, pool *pgxpool.Pool, id string, epoch, from, to int64) bool {
	tag, err := pool.Exec(t.Context(),
		`update cursors set next_block = $5 where chain_id = $1 and instance_id = $2 and epoch = $3 and next_block = $4`,
		chain, id, epoch, from, to)
	require.NoError(t, err)

	return tag.RowsAffected() == 1
}

func TestFleetClaimsEverySlotOnce(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	var lives []*life
	for i := range 3 {
		lives = append(lives, born(t, url, pool, fmt.Sprint("r", i), i, 3, nil))
	}

	var wg sync.WaitGroup
	for _, l := range lives { // at once
		wg.Go(func() { require.NoError(t, l.Step(t.Context())) })
	}

	wg.Wait()
	require.Equal(t, map[string]int{"r0": 840, "r1": 840, "r2": 840}, owners(t, pool, lives...))
	for _, l := range lives {
		require.EqualValues(t, 100, cursorOf(t, pool, l.id))
	}
}

func TestDeadOwnersSlotsAreAdoptedAndGivenBack(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b, c := born(t, url, pool, "a", 0, 3, at(0)), born(t, url, pool, "b", 1, 3, at(0)),
		born(t, url, pool, "c", 2, 3, at(0))
	steps(t, a, b, c)
	held, _ := c.Holding()
	require.True(t, commit(t, pool, "a", epoch(t, pool, "a"), 100, 200))
	require.True(t, commit(t, pool, "b", epoch(t, pool, "b"), 100, 150))
	require.True(t, commit(t, pool, "c", held.Epoch, 100, 120))

	c.die(t)
	steps(t, a, b)
	count := owners(t, pool, a, b)
	require.Zero(t, count["c"])
	require.InDelta(t, count["a"], count["b"], 120, "evenly")
	require.EqualValues(t, 120, cursorOf(t, pool, "a"), "the adopter goes on from the dead one's cursor")
	require.EqualValues(t, 120, cursorOf(t, pool, "b"))
	require.False(t, commit(t, pool, "c", held.Epoch, 120, 130), "a zombie cannot commit")
	require.ErrorIs(t, c.Step(t.Context()), ErrFenced)

	require.True(t, commit(t, pool, "a", epoch(t, pool, "a"), 120, 300))
	require.True(t, commit(t, pool, "b", epoch(t, pool, "b"), 120, 310))
	c2 := born(t, url, pool, "c", 2, 3, at(0))
	steps(t, a, b, c2)
	require.Equal(t, map[string]int{"a": 840, "b": 840, "c": 840}, owners(t, pool, a, b, c2))
	require.EqualValues(t, 300, cursorOf(t, pool, "c"), "the lower of the two hand-over cursors")
}

func TestAdoptionWaits(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, nil), born(t, url, pool, "b", 1, 2, nil)
	steps(t, a, b)
	b.die(t)
	steps(t, a)
	require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a))
	_, err := pool.Exec(t.Context(),
		`update relayer_instances set dead_since = now() - interval '2 hours' where instance_id = 'b'`)
	require.NoError(t, err)
	steps(t, a)
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, a))
}

func TestHotStandbyTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 1, nil), born(t, url, pool, "b", 0, 1, nil)
	steps(t, a, b)
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, a, b))
	a.die(t)
	steps(t, b)
	require.Equal(t, map[string]int{"b": 2520}, owners(t, pool, b), "it prefers them: no waiting")
}

func TestCleanReleaseHandsTheCursorOver(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a := born(t, url, pool, "a", 0, 1, nil)
	steps(t, a)
	before, changed := a.Holding()
	require.True(t, commit(t, pool, "a", before.Epoch, 100, 777))
	require.NoError(t, a.Release(t.Context(), nil))
	<-changed
	require.False(t, commit(t, pool, "a", before.Epoch, 777, 778), "a commit in flight fails")
	require.NoError(t, a.Leave(t.Context()))
	a.die(t)
	b := born(t, url, pool, "b", 0, 1, nil)
	steps(t, b)
	require.EqualValues(t, 777, cursorOf(t, pool, "b"))
}

// An instance that crashed and comes back before anybody claimed keeps its slots and its cursor, under a higher epoch.
func TestRestartKeepsWhatNobodyClaimed(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a := born(t, url, pool, "a", 0, 1, nil)
	steps(t, a)
	old, _ := a.Holding()
	require.True(t, commit(t, pool, "a", old.Epoch, 100, 500))
	a.die(t)
	again := born(t, url, pool, "a", 0, 1, nil)
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, again))
	require.EqualValues(t, 500, cursorOf(t, pool, "a"))
	require.False(t, commit(t, pool, "a", old.Epoch, 500, 501))
}

// A claim makes a commit of the claimer that is under way fail: it was computed without the slots just claimed.
func TestClaimFencesTheClaimersOwnCommit(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a, b := born(t, url, pool, "a", 0, 2, at(0)), born(t, url, pool, "b", 1, 2, at(0))
	steps(t, a, b)
	before, _ := a.Holding()
	b.die(t)
	require.NoError(t, a.Step(t.Context()))
	require.False(t, commit(t, pool, "a", before.Epoch, 100, 101))
	now, _ := a.Holding()
	require.True(t, commit(t, pool, "a", now.Epoch, 100, 101))
}

func TestRollingRepartitionLeavesNothingUnserved(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{Modulo, Consistent} {
		t.Run(string(s), func(t *testing.T) {
			url := testpg.New(t)
			pool := testpg.Open(t, url)
			strategy := func(c *Config) { c.Partition.Strategy, c.AdoptAfter = s, 0 }
			fleet := map[int]*life{}
			all := func() (lives []*life) {
				for _, l := range fleet {
					lives = append(lives, l)
				}

				return lives
			}
			for _, total := range []int{3, 4, 2, 5} {
				for number := range max(total, len(fleet)) {
					if old := fleet[number]; old != nil {
						require.NoError(t, old.Release(t.Context(), nil))
						require.NoError(t, old.Leave(t.Context()))
						old.die(t)
						delete(fleet, number)
					}

					if number < total {
						fleet[number] = born(t, url, pool, fmt.Sprint("r", number), number, total, strategy)
					}

					steps(t, all()...)
					require.Zero(t, owners(t, pool, all()...)[""], "unserved in the middle of the change to %d", total)
				}

				for number, l := range fleet {
					h, _ := l.Holding()
					require.Equal(t, Partition{number, total, s}.Preferred(), h.Slots)
				}
			}
		})
	}
}

func TestAutoTakesAFreeNumber(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	auto := func(c *Config) { c.Auto, c.AdoptAfter = true, 0 }
	a, b, c := born(t, url, pool, "a", 0, 3, auto), born(t, url, pool, "b", 0, 3, auto),
		born(t, url, pool, "c", 0, 3, auto)
	steps(t, a, b, c)
	require.Equal(t, map[string]int{"a": 840, "b": 840, "c": 840}, owners(t, pool, a, b, c))
	standby := born(t, url, pool, "d", 0, 3, auto)
	steps(t, a, b, c, standby)
	h, _ := standby.Holding()
	require.Empty(t, h.Slots)
	b.die(t)
	steps(t, a, c, standby)
	h, _ = standby.Holding()
	require.Equal(t, 1, h.Partition.Number)
	require.Equal(t, map[string]int{"a": 840, "d": 840, "c": 840}, owners(t, pool, a, c, standby))
}

func TestYieldWaitsForThePublisher(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	var quiesced []int16
	busy := errors.New("still publishing")
	a := born(t, url, pool, "a", 0, 1, func(c *Config) {
		c.Quiesce = func(_ context.Context, slots []int16) error { quiesced = slots; return busy }
	})
	steps(t, a)
	// restarted with another total, not released: it adopted what it does not prefer
	a.cfg.Partition = Partition{0, 2, Modulo}
	again := born(t, url, pool, "a2", 1, 2, nil)
	_, err := pool.Exec(t.Context(), `update relayer_instances set total_partitions = 2 where instance_id = 'a'`)
	require.NoError(t, err)
	steps(t, a, again)
	require.Len(t, quiesced, 1260)
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, a, again), "not yielded while the publisher is busy")
	busy = nil
	steps(t, a, again)
	require.Equal(t, map[string]int{"a": 1260, "a2": 1260}, owners(t, pool, a, again))
}

func TestChainsShareADatabase(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a := born(t, url, pool, "a", 0, 1, nil)
	b := born(t, url, pool, "b", 0, 1, func(c *Config) { c.ChainID = chain + 1 })
	steps(t, a, b)
	require.Equal(t, map[string]int{"a": 2520}, owners(t, pool, a))
	h, _ := b.Holding()
	require.Len(t, h.Slots, Slots)
}

// The owner of slots is changed by hand. The old and the new owner join again with what the tables say: each slot's
// owner knows of it.
func TestOwnersThatSomebodyHasChanged(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"b", ""} {
		t.Run(owner, func(t *testing.T) {
			t.Parallel()
			url := testpg.New(t)
			pool := testpg.Open(t, url)
			a, b := born(t, url, pool, "a", 0, 2, nil), born(t, url, pool, "b", 1, 2, nil)
			steps(t, a, b)
			_, err := pool.Exec(t.Context(), `update slot_ownership set owner = nullif($1, '') where slot = 0`, owner)
			require.NoError(t, err)
			require.ErrorIs(t, a.Step(t.Context()), ErrFenced)
			require.NoError(t, a.Join(t.Context()))
			if owner == "b" {
				require.ErrorIs(t, b.Step(t.Context()), ErrFenced)
				require.NoError(t, b.Join(t.Context()))
			}

			steps(t, a, b)
			require.Equal(t, map[string]int{"a": 1260, "b": 1260}, owners(t, pool, a, b))
		})
	}
}
