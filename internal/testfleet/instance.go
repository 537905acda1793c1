package testfleet

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
)

// sessionEnds bounds the wait for the server to end a session, a moment after its client has.
const sessionEnds = 30 * time.Second

// Instance is what the tables say of an instance.
type Instance struct {
	ID            string
	Number, Total int           // its partition
	Head          int64         // newest block of its node
	Next          int64         // its cursor
	Behind        time.Duration // how old the block below its cursor is
	Escrows       int
	Version       string
	Started, Beat time.Duration // how long ago
}

// Starts makes a live instance that owns the slots which its partition prefers: its rows, and the
// session that holds its lock until the test ends or the session is ended.
func (f *Fleet) Starts(i Instance) *Session {
	f.t.Helper()
	f.register(i, time.Hour) // seen an hour from now: a test that takes long does not make it hung

	return f.Session(f.Key(election.Instance, i.ID))
}

// Registers is Starts without a session: the instance is not alive, and nobody has noticed yet.
func (f *Fleet) Registers(i Instance) {
	f.t.Helper()
	f.register(i, 0)
}

func (f *Fleet) register(i Instance, seen time.Duration) {
	f.t.Helper()
	f.Exec(`insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status,
			lock_key, head_block, escrows_monitored, version, started_at, last_heartbeat, seen_at)
		values ($1, $2, $3, $4, 'modulo', 'active', $5, $6, $7, $8, now() - $9::interval, now() - $10::interval,
			now() + $11::interval)`,
		f.Chain, i.ID, i.Number, i.Total, f.Key(election.Instance, i.ID), i.Head, i.Escrows, i.Version, i.Started,
		i.Beat, seen)
	f.Exec(`insert into cursors (chain_id, instance_id, next_block, block_time) values ($1, $2, $3, now() - $4::interval)`,
		f.Chain, i.ID, i.Next, i.Behind)
	f.Own(i.ID, Preferred(i.Number, i.Total)...)
}

// Preferred are the slots that partition number of total prefers.
func Preferred(number, total int) []int16 {
	return partition.Partition{Number: number, Total: total, Strategy: partition.Modulo}.Preferred()
}

// Gone makes the row of an instance that died or, with left set, stopped cleanly. It never had a
// cursor.
func (f *Fleet) Gone(id string, number, total int, left bool, ago time.Duration) {
	f.t.Helper()
	f.Exec(`insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status,
			lock_key, dead_since, left_at)
		values ($1, $2, $3, $4, 'modulo', 'dead', $5, now() - $6::interval, case when $7 then now() - $6::interval end)`,
		f.Chain, id, number, total, f.Key(election.Instance, id), ago, left)
}

// Died is what the others write of an instance that they have missed for so long.
func (f *Fleet) Died(id string, ago time.Duration) {
	f.t.Helper()
	f.Exec(`update relayer_instances set status = 'dead', dead_since = now() - $3::interval
		where chain_id = $1 and instance_id = $2`, f.Chain, id, ago)
}

// Left is what an instance writes that stopped cleanly so long ago.
func (f *Fleet) Left(id string, ago time.Duration) {
	f.t.Helper()
	f.Exec(`update relayer_instances
		set status = 'dead', dead_since = now() - $3::interval, left_at = now() - $3::interval
		where chain_id = $1 and instance_id = $2`, f.Chain, id, ago)
}

// LeftWhenItDied makes clean stops of the deaths of the instances, or of all of the chain's if none
// is named.
func (f *Fleet) LeftWhenItDied(ids ...string) {
	f.t.Helper()
	f.Exec(`update relayer_instances set left_at = dead_since
		where chain_id = $1 and (cardinality($2::text[]) = 0 or instance_id = any($2))`, f.Chain, append([]string{}, ids...))
}

// Seen sets how long ago an instance checked its slots, and how old its heartbeat is.
func (f *Fleet) Seen(id string, seen, beat time.Duration) {
	f.t.Helper()
	f.Exec(`update relayer_instances set seen_at = now() - $3::interval, last_heartbeat = now() - $4::interval
		where chain_id = $1 and instance_id = $2`, f.Chain, id, seen, beat)
}

// Beat sets how old the heartbeat of an instance is.
func (f *Fleet) Beat(id string, ago time.Duration) {
	f.t.Helper()
	f.Exec(`update relayer_instances set last_heartbeat = now() - $3::interval where chain_id = $1 and instance_id = $2`,
		f.Chain, id, ago)
}

// FreeSlots makes every slot, free for so long and left at a block.
func (f *Fleet) FreeSlots(next int64, ago time.Duration) {
	f.t.Helper()
	f.Exec(`insert into slot_ownership (chain_id, slot, next_block, since)
		select $1, s, $2, now() - $3::interval from generate_series(0, 2519) s`, f.Chain, next, ago)
}

// Own gives slots to an instance now, or frees them (the empty id).
func (f *Fleet) Own(id string, slots ...int16) {
	f.t.Helper()
	f.Exec(`update slot_ownership set owner = nullif($2, ''), since = now() where chain_id = $1 and slot = any($3)`,
		f.Chain, id, slots)
}

// HandOver gives all slots of an instance to another, so long ago. The empty id is: nobody.
func (f *Fleet) HandOver(from, to string, ago time.Duration) {
	f.t.Helper()
	f.Exec(`update slot_ownership set owner = nullif($3, ''), since = now() - $4::interval
		where chain_id = $1 and owner is not distinct from nullif($2, '')`, f.Chain, from, to, ago)
}

// SlotsSince sets how long slots have had their owner, or none.
func (f *Fleet) SlotsSince(ago time.Duration, slots ...int16) {
	f.t.Helper()
	f.Exec(`update slot_ownership set since = now() - $2::interval where chain_id = $1 and slot = any($3)`, f.Chain, ago,
		slots)
}

// Session is a database session that holds advisory locks: by them others see that an instance lives.
type Session struct {
	f    *Fleet
	conn *pgx.Conn
}

// Key is the advisory lock of a purpose and name on this chain.
func (f *Fleet) Key(purpose election.Purpose, name string) (key int64) {
	f.t.Helper()
	require.NoError(f.t, f.DB.QueryRow(f.t.Context(), `select lock_key($1, $2, $3)`, purpose, f.Chain, name).Scan(&key))

	return key
}

// Session opens one that holds the locks until the test ends or End is called.
func (f *Fleet) Session(keys ...int64) *Session {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.URL)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s := &Session{f, conn}
	s.Lock(keys...)

	return s
}

// Lock takes more locks.
func (s *Session) Lock(keys ...int64) {
	s.f.t.Helper()
	for _, key := range keys {
		_, err := s.conn.Exec(s.f.t.Context(), `select pg_advisory_lock($1)`, key)
		require.NoError(s.f.t, err)
	}
}

// Lead takes the leader lock of the chain.
func (s *Session) Lead() {
	s.f.t.Helper()
	key := s.f.Key(election.Leader, "")
	s.Lock(key)
	s.f.Exec(`update leadership set lock_key = $2 where chain_id = $1`, s.f.Chain, key)
}

// End ends the session, as a crash does, and returns when the server has let go of its locks.
func (s *Session) End() {
	s.f.t.Helper()
	pid := s.conn.PgConn().PID()
	require.NoError(s.f.t, s.conn.Close(s.f.t.Context()))
	require.Eventually(s.f.t, func() bool {
		var held bool
		err := s.f.DB.QueryRow(s.f.t.Context(),
			`select exists (select from pg_locks where locktype = 'advisory' and pid = $1::bigint)`, pid).Scan(&held)

		return err == nil && !held
	}, sessionEnds, 5*time.Millisecond)
}
