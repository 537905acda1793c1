package testfleet

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/registry"
)

// Fleet is the database of one chain's fleet, empty at first.
type Fleet struct {
	DB    *pgxpool.Pool
	URL   string
	Chain int64

	t testing.TB
}

// New returns the fleet of a chain in a migrated database of its own, which is dropped at the end
// of the test. Rows may be written in the words of the views too (testpg.Words).
func New(t testing.TB, chain int64) *Fleet {
	t.Helper()
	f := &Fleet{t: t, URL: testpg.New(t), Chain: chain}
	f.DB = testpg.Open(t, f.URL)
	testpg.Words(t, f.DB)

	return f
}

// Of returns the fleet of another chain in the same database.
func (f *Fleet) Of(chain int64) *Fleet {
	other := *f
	other.Chain = chain

	return &other
}

// Exec runs a statement and returns how many rows it changed. It is for what only one test needs.
func (f *Fleet) Exec(sql string, args ...any) int64 {
	f.t.Helper()
	tag, err := f.DB.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)

	return tag.RowsAffected()
}

// Column returns the one column of a query, which is text.
func (f *Fleet) Column(sql string, args ...any) []string {
	f.t.Helper()
	rows, _ := f.DB.Query(f.t.Context(), sql, args...)
	column, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)

	return column
}

// Prepare makes the chain's row, as the first instance does: nobody leads yet.
func (f *Fleet) Prepare(start int64, factory string) {
	f.t.Helper()
	_, err := registry.Prepare(f.t.Context(), f.DB, f.Chain,
		[]registry.Factory{{Address: common.HexToAddress(factory), Start: start}})
	require.NoError(f.t, err)
}

// Elect makes an instance the leader of a prepared chain, in epoch 1.
func (f *Fleet) Elect(id string) {
	f.t.Helper()
	f.Exec(`update leadership set instance_id = $2, epoch = 1 where chain_id = $1`, f.Chain, id)
}

// Join gives an instance a cursor at a block, in epoch 1.
func (f *Fleet) Join(id string, next int64) {
	f.t.Helper()
	f.Exec(`insert into cursors (chain_id, instance_id, epoch, next_block) values ($1, $2, 1, $3)`, f.Chain, id, next)
}

// SetCursor puts the cursor of an instance elsewhere, behind a block with this hash; empty: the hash
// is not known.
func (f *Fleet) SetCursor(id string, next int64, hash string) {
	f.t.Helper()
	changed := f.Exec(`update cursors set next_block = $3, block_hash = nullif($4, '')
		where chain_id = $1 and instance_id = $2`, f.Chain, id, next, hash)
	require.EqualValues(f.t, 1, changed, "%s has no cursor", id)
}

// OwnAll makes an instance the owner of every slot. The slots have had no owner before.
func (f *Fleet) OwnAll(id string, next int64) {
	f.t.Helper()
	f.Exec(`insert into slot_ownership (chain_id, slot, owner, next_block, sent_block)
		select $1, s, $2, $3::bigint, $3::bigint - 1 from generate_series(0, 2519) s`, f.Chain, id, next)
}

// Alone is Prepare, Elect, Join and OwnAll: one instance does everything, from the first block on.
func (f *Fleet) Alone(id string, start int64, factory string) {
	f.t.Helper()
	f.Prepare(start, factory)
	f.Elect(id)
	f.Join(id, start)
	f.OwnAll(id, start)
}

// Publish notes that everything is sent, as Pub/Sub does that acknowledges everything.
func (f *Fleet) Publish() {
	f.t.Helper()
	f.Exec(`delete from outbox where chain_id = $1`, f.Chain)
	f.Exec(`update slot_ownership s set sent_block = c.next_block - 1, sent_index = 2147483647 from cursors c
		where s.chain_id = $1 and c.chain_id = $1 and c.instance_id = s.owner and c.next_block > s.sent_block`, f.Chain)
}

// Leader is what the chain's row says of a leader, and where its watch and its second reading are.
type Leader struct {
	ID       string        // empty: nobody has led yet
	Beat     time.Duration // how old its heartbeat is
	Since    time.Duration // how long it has led
	Next     int64         // its cursor: the next block of the factory watch
	Start    int64
	Verified int64
	Factory  string
}

// Leads makes the chain's row as a leader of epoch 7 has left it. That alone does not hold the
// lock: see Session.Lead.
func (f *Fleet) Leads(l Leader) {
	f.t.Helper()
	f.Exec(`insert into leadership (chain_id, instance_id, epoch, since, last_heartbeat, next_block, start_block, verified_block)
		values ($1, nullif($2, ''), 7, now() - $3::interval, now() - $4::interval, $5, $6, $7)`,
		f.Chain, l.ID, l.Since, l.Beat, l.Next, l.Start, l.Verified)
	if l.Factory != "" {
		f.Exec(`insert into factories (chain_id, id, address, start_block) values ($1, 1, $2, $3)`, f.Chain,
			common.HexToAddress(l.Factory).Bytes(), l.Start)
	}
}

// LeaderBeat sets how old the leader's heartbeat is.
func (f *Fleet) LeaderBeat(ago time.Duration) {
	f.t.Helper()
	f.Exec(`update leadership set last_heartbeat = now() - $2::interval where chain_id = $1`, f.Chain, ago)
}

// Verify sets the block up to which the chain was read a second time.
func (f *Fleet) Verify(block int64) {
	f.t.Helper()
	f.Exec(`update leadership set verified_block = $2 where chain_id = $1`, f.Chain, block)
}
