package election_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

// stranger is a connection of a login without a single grant.
func (f fixture) stranger(t *testing.T) *pgx.Conn {
	_, err := f.pool.Exec(t.Context(),
		`do $$ begin create role stranger login; exception when duplicate_object or unique_violation then null; end $$`)
	require.NoError(t, err)
	u, err := url.Parse(f.url)
	require.NoError(t, err)
	u.User = url.User("stranger")
	cfg, err := pgx.ParseConfig(u.String())
	require.NoError(t, err)
	cfg.RuntimeParams["application_name"] = election.ApplicationName("b") // it may call itself anything
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })

	return conn
}

// holds takes locks by their keys.
func holds(t *testing.T, conn *pgx.Conn, keys ...int64) {
	for _, key := range keys {
		_, err := conn.Exec(t.Context(), `select pg_advisory_lock($1)`, key)
		require.NoError(t, err)
	}
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()

	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()

	return j.text.String()
}

// The keys of the first versions, and every lock that is held for all to see: neither stops an election, nor a
// start under an instance's name, and the log names who it is.
func TestALoginWithoutRightsDelaysNobody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	other := f.stranger(t)
	holds(t, other, 999999<<40|chain, 999998<<40, 999997<<40|chain)
	require.Error(t, other.QueryRow(t.Context(), `select secret from lock_identity`).Scan(nil), "the identity is not for it")
	a := f.contend(t, "a", nil)
	<-a.won

	// It sees the leader's lock, and the instance's, and waits to be the next to get them.
	leader, instance := f.key(t, election.Leader, chain, ""), f.key(t, election.Instance, chain, "a")
	ready := make(chan error, 1)
	go func() {
		_, err := other.Exec(context.Background(), `select pg_advisory_lock($1), pg_advisory_lock($2)`, leader, instance)
		ready <- err
	}()
	require.NoError(t, a.end())
	require.NoError(t, <-ready)

	var log journal
	b := f.contend(t, "b", func(c *election.ElectorConfig) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	<-b.won
	require.Contains(t, log.String(), "stranger")
	require.Contains(t, log.String(), "pid=")
	require.NotEqual(t, leader, f.key(t, election.Leader, chain, ""))

	// Nor is it taken for the leader, nor for the instance that has gone.
	var ours int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from held_locks() where key in ($1, $2)`, leader,
		instance).Scan(&ours))
	require.Zero(t, ours)

	s, err := f.open(t, "a", nil)
	require.NoError(t, err)
	require.NotEqual(t, instance, s.Key())
	s.Close()
	require.NoError(t, b.end())
}

// A lock in the hands of one of us stays where it is, also while a stranger waits for it.
func TestAStrangerThatWaitsIsNoHolder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.contend(t, "a", nil)
	<-a.won
	other := f.stranger(t)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	leader := f.key(t, election.Leader, chain, "")
	go func() { defer close(waiting); _, _ = other.Exec(ctx, `select pg_advisory_lock($1)`, leader) }()
	b := f.contend(t, "b", nil)
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from pg_locks where not granted`).Scan(&n))

		return n > 0
	}, 10*time.Minute, 10*time.Millisecond)
	select {
	case <-b.won:
		t.Fatal("two leaders")
	default:
	}

	require.Equal(t, leader, f.key(t, election.Leader, chain, ""))
	require.True(t, a.session.Valid())
	cancel()
	<-waiting
}

// Two schemas of one database share no lock, and no two locks of a schema have one key.
func TestTwoSchemasShareNoLock(t *testing.T) {
	t.Parallel()
	base := testpg.Bare(t)
	keys := map[int64]bool{}
	for _, schema := range []string{"one", "two"} {
		cfg, err := pgx.ParseConfig(base)
		require.NoError(t, err)
		cfg.RuntimeParams["search_path"] = schema
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), `create schema `+schema)
		require.NoError(t, err)
		_, err = migrations.Up(t.Context(), cfg)
		require.NoError(t, err)
		var senders []int64
		for _, l := range []election.Lock{{election.Leader, chain, ""}, {election.Leader, chain + 1, ""},
			{election.Replies, chain, ""}, {election.Instance, chain, "a"}, {election.Sender, chain, "a"},
			{election.Sender, chain, "b"}} {
			var key int64
			require.NoError(t, conn.QueryRow(t.Context(), `select lock_key($1, $2, $3)`,
				l.Purpose, l.ChainID, l.Name).Scan(&key))
			keys[key] = true
			if l.Purpose == election.Sender {
				senders = append(senders, key>>40)
			}
		}

		require.Equal(t, senders[0], senders[1], "the upper bits tell the purpose")
	}

	require.Len(t, keys, 12)
}
