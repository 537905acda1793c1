package election_test

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/registry"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}

const chain = 31337

type fixture struct {
	url  string
	pool *pgxpool.Pool
}

func setup(t *testing.T) fixture {
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	require.NoError(t, prepare(t, pool, chain, 10, "0xfac"))

	return fixture{url, pool}
}

// prepare has the database follow one factory. Its name is short.
func prepare(t *testing.T, pool *pgxpool.Pool, chainID, start int64, factory string) error {
	_, err := registry.Prepare(t.Context(), pool, chainID, []registry.Factory{{Address: named(factory), Start: start}})
	return err
}

func named(factory string) common.Address { return common.BytesToAddress([]byte(factory)) }

// probeEvery is so long that a busy machine loses no session.
const probeEvery = 20 * time.Second

// brief is for the tests of a lease's end: the product's own probes, with a lease of 5 s. The server ends a statement
// after two of them, also those of the opening, so less fails on a busy machine.
func brief(c *election.SessionConfig) { c.ProbeEvery = 2 * time.Second }

func (f fixture) open(t *testing.T, id string, change func(*election.SessionConfig)) (*election.Session, error) {
	conn, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	cfg := election.SessionConfig{Conn: conn, ChainID: chain, InstanceID: id, ProbeEvery: probeEvery,
		Channels: []string{election.Channel, "hints"}}
	if change != nil {
		change(&cfg)
	}

	return election.Open(t.Context(), cfg)
}

// run starts a session and returns a function that ends it and returns what Run returned.
func (f fixture) run(t *testing.T, id string) (*election.Session, func() error) {
	s, err := f.open(t, id, nil)
	for until := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(until); {
		s, err = f.open(t, id, nil) // a statement may miss its time on a busy machine: an instance tries again too
	}

	require.NoError(t, err)

	return s, start(t, s)
}

// start runs a session and returns a function that ends it and returns what Run returned.
func start(t *testing.T, s *election.Session) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	ended := false
	var got error
	end := func() error {
		cancel()
		if !ended {
			got, ended = <-result, true
		}

		return got
	}
	t.Cleanup(func() { _ = end() })

	return end
}

func (f fixture) key(t *testing.T, purpose election.Purpose, chain int64, name string) (key int64) {
	require.NoError(t, f.pool.QueryRow(t.Context(), `select lock_key($1, $2, $3)`, purpose, chain, name).Scan(&key))

	return key
}

func (f fixture) locks(t *testing.T) (n int) {
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`).Scan(&n))
	return n
}

func TestInstanceIDBelongsToOneSession(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, end := f.run(t, "a")
	_, err := f.open(t, "a", nil)
	require.ErrorIs(t, err, election.ErrTaken)
	require.ErrorContains(t, err, "INSTANCE_ID=a")

	// A successor waits for the predecessor to leave, as a new revision does on Cloud Run.
	waiting := make(chan error, 1)
	go func() {
		s, err := f.open(t, "a", func(c *election.SessionConfig) { c.Wait = time.Minute })
		if err == nil {
			s.Close()
		}

		waiting <- err
	}()
	require.NoError(t, end())
	require.NoError(t, <-waiting)
}

func TestSessionLives(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.open(t, "a", func(c *election.SessionConfig) { c.ProbeEvery = 2 * time.Second })
	require.NoError(t, err)
	end := start(t, s)
	require.Equal(t, 1, f.locks(t))

	_, err = f.pool.Exec(t.Context(), `select pg_notify('hints', $1::bigint::text)`, chain)
	require.NoError(t, err)
	<-s.Hint("hints")

	// Longer than the lease (5 s) and than the server's own limit (6 s): the probes keep it.
	var pid uint32
	deadline := time.After(7 * time.Second)
	for waiting := true; waiting; {
		select {
		case <-deadline:
			waiting = false
		case <-time.After(50 * time.Millisecond):
			require.True(t, s.Valid())
			require.NoError(t, s.Do(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
				return c.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid)
			}))
			require.Equal(t, s.PID(), pid)
		}
	}

	require.NoError(t, end())
	require.False(t, s.Valid())
	require.ErrorIs(t, s.Do(t.Context(), nil), election.ErrLost)
	require.Eventually(t, func() bool { return f.locks(t) == 0 }, 10*time.Minute, 10*time.Millisecond)
}

// A stop comes at any moment, also while a statement of the session is under way: what the session
// holds is given back through it all the same.
func TestStopDuringAStatement(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.open(t, "a", func(c *election.SessionConfig) { c.ProbeEvery = time.Minute })
	require.NoError(t, err)
	sessionCtx, endSession := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(sessionCtx) }()
	t.Cleanup(func() { endSession(); <-ended })

	blocker, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `select pg_advisory_xact_lock(77)`)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- s.Do(ctx, func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `select pg_advisory_lock(77)`)
			return err
		})
	}()
	require.Eventually(t, func() (waits bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `
			select exists (select from pg_locks where pid = $1::bigint and not granted)`, s.PID()).Scan(&waits))
		return waits
	}, 10*time.Minute, 10*time.Millisecond)

	stop()
	require.NoError(t, blocker.Commit(t.Context()))
	require.NoError(t, <-done)
	require.True(t, s.Valid())
	require.NoError(t, s.Do(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `select pg_advisory_unlock(77)`)
		return err
	}))
}

func TestSessionThatIsTerminatedIsLost(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.open(t, "a", nil)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() { result <- s.Run(t.Context()) }()
	_, err = f.pool.Exec(t.Context(), `select pg_terminate_backend($1)`, s.PID())
	require.NoError(t, err)
	require.ErrorIs(t, <-result, election.ErrLost)
	require.False(t, s.Valid())
}

// A session whose process is frozen loses its locks by the server's clock, and its lease, a little earlier, by its own.
func TestFrozenSession(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.open(t, "a", brief) // nobody runs it: nothing probes, as in a frozen process
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.True(t, s.Valid())
	require.Eventually(t, func() bool {
		if n := f.locks(t); n == 0 {
			require.False(t, s.Valid(), "the lock was free while the lease still ran")
			return true
		}

		return false
	}, 10*time.Minute, 5*time.Millisecond)
}

func elector(t *testing.T, f fixture, s *election.Session, id string,
	change func(*election.ElectorConfig)) *election.Elector {
	cfg := election.ElectorConfig{Session: s, DB: f.pool, ChainID: chain, InstanceID: id,
		RetryEvery: 50 * time.Millisecond, CoolDown: 100 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}

	e, err := election.NewElector(cfg)
	require.NoError(t, err)

	return e
}

// contender leads until its release channel is closed or its context ends.
type contender struct {
	id      string
	session *election.Session
	won     chan election.Term
	lost    chan error // what Run returned
	resign  chan struct{}
	end     func() error
}

func (f fixture) contend(t *testing.T, id string, change func(*election.ElectorConfig)) *contender {
	c := &contender{id: id, won: make(chan election.Term, 10), lost: make(chan error, 1), resign: make(chan struct{}, 1)}
	c.session, c.end = f.run(t, id)
	e := elector(t, f, c.session, id, change)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		c.lost <- e.Run(ctx, func(ctx context.Context, term election.Term) error {
			c.won <- term
			select {
			case <-ctx.Done():
				return nil
			case <-c.resign:
				return election.ErrResign
			}
		})
		close(c.lost)
	}()
	t.Cleanup(func() { cancel(); <-c.lost })

	return c
}

func TestOneLeaderAndTheNextWhenItGoes(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	first := <-a.won
	b := f.contend(t, "b", nil)
	select {
	case <-b.won:
		t.Fatal("two leaders")
	case <-time.After(300 * time.Millisecond):
	}

	// The session of the leader ends: the other one leads, under a higher epoch.
	_, err := f.pool.Exec(t.Context(), `select pg_terminate_backend($1)`, a.session.PID())
	require.NoError(t, err)
	second := <-b.won
	require.Greater(t, second.Epoch, first.Epoch)
	require.ErrorIs(t, <-a.lost, election.ErrLost)

	e := elector(t, f, b.session, "b", nil)
	require.ErrorIs(t, e.Beat(t.Context(), first), election.ErrFenced)
	require.NoError(t, e.Beat(t.Context(), second))
}

func TestResignedLeaderLeavesItToTheOthers(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", func(c *election.ElectorConfig) { c.CoolDown = time.Hour })
	<-a.won
	// The other one would look only after an hour: the notification tells it.
	b := f.contend(t, "b", func(c *election.ElectorConfig) { c.RetryEvery = time.Hour })
	a.resign <- struct{}{}
	<-b.won
}

func TestIneligibleDoesNotContend(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", func(c *election.ElectorConfig) { c.Eligible = func() bool { return false } })
	b := f.contend(t, "b", nil)
	<-b.won
	require.Empty(t, a.won)
}

// A leader that answers probes but makes no rounds is ended by a contender.
func TestHungLeaderIsEnded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	<-a.won
	b := f.contend(t, "b", func(c *election.ElectorConfig) { c.StaleAfter = 300 * time.Millisecond })
	<-b.won
	require.ErrorIs(t, <-a.lost, election.ErrLost)
}

func TestPrepareRefusesAnotherFactory(t *testing.T) {
	t.Parallel()
	f := setup(t)
	require.NoError(t, prepare(t, f.pool, chain, 99, "0xfac"))
	_, err := f.pool.Exec(t.Context(), `insert into escrows (chain_id, address, slot, discovered_block_number, log_index, tx_hash, factory)
		values ($1, 'e', 1, 21, 0, 'a', 1)`, chain)
	require.NoError(t, err)
	require.ErrorContains(t, prepare(t, f.pool, chain, 10, "0xother"), "FACTORY_ADDRESS")
	require.NoError(t, prepare(t, f.pool, chain+1, 10, "0xother"))
}

// What binds a database to a factory is the first escrow: a wrong FACTORY_ADDRESS that found none costs no database.
// Instances that still have it are stopped first.
func TestAFactoryWithoutEscrowsIsReplaced(t *testing.T) {
	t.Parallel()
	f := setup(t)
	row := func() (factory common.Address, start, next, epoch int64) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select f.address, l.start_block, next_block, epoch
			from leadership l join factories f using (chain_id) where chain_id = $1`, chain).Scan(&factory, &start, &next, &epoch))
		return factory, start, next, epoch
	}
	_, err := f.pool.Exec(t.Context(), `update leadership set next_block = 500, epoch = 3`)
	require.NoError(t, err)
	a := f.contend(t, "a", nil)
	<-a.won
	_, err = f.pool.Exec(t.Context(), `insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key)
		select chain_id, 'a', 0, 1, 'modulo', 'active', lock_key from leadership where chain_id = $1`, chain)
	require.NoError(t, err)
	err = prepare(t, f.pool, chain, 20, "0xright")
	require.ErrorIs(t, err, registry.ErrOtherFactory)
	require.ErrorContains(t, err, "stop every instance")

	_, err = f.pool.Exec(t.Context(), `update relayer_instances set lock_key = 1`) // it is gone
	require.NoError(t, err)
	_, _, _, before := row()
	require.NoError(t, prepare(t, f.pool, chain, 20, "0xright"))
	factory, start, next, epoch := row()
	require.Equal(t, named("0xright"), factory)
	require.Equal(t, []int64{20, 20, before + 1}, []int64{start, next, epoch})

	_, err = f.pool.Exec(t.Context(), `insert into escrows (chain_id, address, slot, discovered_block_number, log_index, tx_hash, factory)
		values ($1, 'e', 1, 21, 0, 'a', 1)`, chain)
	require.NoError(t, err)
	require.ErrorIs(t, prepare(t, f.pool, chain, 30, "0xfac"), registry.ErrOtherFactory)
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, err := f.pool.Exec(t.Context(), `insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key, last_heartbeat)
		values ($1, 'a', 0, 1, 'modulo', 'active', 1, now() - interval '1 hour')`, chain)
	require.NoError(t, err)
	require.NoError(t, election.Heartbeat(t.Context(), f.pool, chain, "a",
		election.Vitals{CurrentBlock: 5, HeadBlock: 7, Escrows: 3, Trust: "agreed by 2", Stopping: true}))
	var status, trust string
	var current, head, escrows int
	var fresh bool
	require.NoError(t, f.pool.QueryRow(t.Context(),
		`select status, trust, current_block, head_block, escrows_monitored, last_heartbeat > now() - interval '1 minute' from relayer_instances`).Scan(&status, &trust, &current, &head, &escrows, &fresh))
	require.Equal(t, []string{"stopping", "agreed by 2"}, []string{status, trust})
	require.Equal(t, []int{5, 7, 3}, []int{current, head, escrows})
	require.True(t, fresh)
}

// A configuration adds the factories that it brings if it names those that are followed; what it leaves out is
// followed on.
func TestPrepareAddsFactories(t *testing.T) {
	t.Parallel()
	f := setup(t) // 0xfac from block 10 on
	_, err := f.pool.Exec(t.Context(), `update leadership set next_block = 50, verified_block = 40`)
	require.NoError(t, err)
	_, err = f.pool.Exec(t.Context(), `insert into escrows (chain_id, address, slot, discovered_block_number, log_index, tx_hash, factory)
		values ($1, 'e', 1, 21, 0, 'a', 1)`, chain)
	require.NoError(t, err)
	old, past, young := named("0xfac"), named("0xpast"), named("0xyoung")
	prepare := func(want ...registry.Factory) []common.Address {
		left, err := registry.Prepare(t.Context(), f.pool, chain, want)
		require.NoError(t, err)
		return left
	}
	want := []registry.Factory{{Address: old, Start: 10}, {Address: past, Start: 5}, {Address: young, Start: 60}}
	for range 2 { // the second time changes nothing
		require.Empty(t, prepare(want...))
		list, err := registry.Factories(t.Context(), f.pool, chain)
		require.NoError(t, err)
		require.Equal(t, []registry.Factory{{ID: 1, Address: old, Start: 10},
			{ID: 2, Address: past, Start: 5, Past: 5, Until: 50}, {ID: 3, Address: young, Start: 60}}, list)
		var next, start, generation int64
		require.NoError(t, f.pool.QueryRow(t.Context(), `select next_block, start_block, generation from leadership`).
			Scan(&next, &start, &generation))
		require.Equal(t, []int64{50, 5, 1}, []int64{next, start, generation})
	}

	require.Equal(t, []common.Address{past, young}, prepare(registry.Factory{Address: old, Start: 10}))
	_, err = registry.Prepare(t.Context(), f.pool, chain, []registry.Factory{{Address: old}, {Address: named("0xnew")}})
	require.ErrorIs(t, err, registry.ErrOtherFactory, "it brings one, and leaves out two")
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := registry.RetireFactory(t.Context(), tx, chain, past, 0)
		require.ErrorIs(t, err, registry.ErrUnknownFactory, "its past is still being read")
		_, err = registry.RetireFactory(t.Context(), tx, chain, young, 0)

		return err
	}))
	require.Empty(t, prepare(registry.Factory{Address: old}, registry.Factory{Address: past},
		registry.Factory{Address: named("0xnew"), Start: 50}),
		"a retired one may be left out")

	_, err = registry.Rewind(t.Context(), f.pool, chain, 2)
	require.NoError(t, err)
	list, err := registry.Factories(t.Context(), f.pool, chain)
	require.NoError(t, err)
	var pasts [][3]int64
	for _, k := range list {
		pasts = append(pasts, [3]int64{k.Start, k.Past, k.Until})
	}

	require.Equal(t, [][3]int64{{2, 2, 10}, {2, 2, 50}, {2, 2, 60}}, pasts[:3])
}
