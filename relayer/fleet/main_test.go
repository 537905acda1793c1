package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/partition"
)

const chain = 31337

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database with rows written by hand, and sessions that hold locks.
type world struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
}

func setup(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, url: testpg.New(t)}
	w.pool = testpg.Open(t, w.url)
	testpg.Words(t, w.pool)

	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// chainRow makes the leadership row and all slots, free since a time ago.
func (w *world) chainRow(leader string, beatAgo, freeFor time.Duration) {
	w.t.Helper()
	w.exec(`insert into leadership (chain_id, instance_id, epoch, since, last_heartbeat, next_block, start_block, factory, verified_block)
		values ($1, nullif($2, ''), 7, now() - interval '1 hour', now() - $3::interval, 1000, 10, '0xfac', 900)`, chain, leader, beatAgo)
	w.exec(`insert into slot_ownership (chain_id, slot, next_block, since) select $1, s, 500, now() - $2::interval from generate_series(0, 2519) s`, chain, freeFor)
}

// instance makes the rows of an instance that owns what its partition prefers, and with live set a
// session that holds its lock.
func (w *world) instance(id string, number, total int, next int64, live bool) *pgx.Conn {
	w.t.Helper()
	key := election.InstanceKey(chain, id)
	// Seen an hour from now: a test that takes long does not make it hung.
	w.exec(`insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key, head_block, escrows_monitored, version, seen_at)
		values ($1, $2, $3, $4, 'modulo', 'active', $5, 1010, 3, 'v1', now() + case when $6 then interval '1 hour' else interval '0' end)`, chain, id, number, total, key, live)
	w.exec(`insert into cursors (chain_id, instance_id, next_block, block_time) values ($1, $2, $3, now())`,
		chain, id, next)
	w.own(id, (partition.Partition{Number: number, Total: total, Strategy: partition.Modulo}).Preferred()...)
	if !live {
		return nil
	}

	return w.lock(key)
}

func (w *world) own(id string, slots ...int16) {
	w.t.Helper()
	w.exec(`update slot_ownership set owner = nullif($2, ''), since = now() where chain_id = $1 and slot = any($3)`,
		chain, id, slots)
}

// lock opens a session that holds locks until the test ends or it is closed.
func (w *world) lock(keys ...int64) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, key := range keys {
		_, err = conn.Exec(w.t.Context(), `select pg_advisory_lock($1)`, key)
		require.NoError(w.t, err)
	}

	return conn
}

func (w *world) lead(conn *pgx.Conn) {
	w.t.Helper()
	_, err := conn.Exec(w.t.Context(), `select pg_advisory_lock($1)`, election.LeaderKey(chain))
	require.NoError(w.t, err)
}
