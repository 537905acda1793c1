package retention_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const chain = 31337

func setup(t *testing.T) *pgxpool.Pool {
	db := testpg.Pool(t)
	testpg.Words(t, db)
	require.NoError(t, election.Prepare(t.Context(), db, chain, 1, "0xfac"))
	require.NoError(t, election.Prepare(t.Context(), db, chain+1, 1, "0xfac"))

	return db
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func column(t *testing.T, db *pgxpool.Pool, sql string) []string {
	rows, _ := db.Query(t.Context(), sql)
	s, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)

	return s
}

// Only the history of an escrow that ended long ago, whose ending was verified and published, may
// go; and it goes as a whole.
func TestEventsStayWhileTheyAreNeeded(t *testing.T) {
	db := setup(t)
	const old, young = "2 hours", "1 minute"
	for i, e := range []struct {
		escrow, kind, age string
		chain, block      int64
		state             string
	}{
		{"0xgone", "EscrowDeployed", old, chain, 5, "canonical"},
		{"0xgone", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xrefunded", "EscrowRefunded", old, chain, 6, "canonical"},
		{"0xactive", "EscrowDeployed", old, chain, 5, "canonical"},
		{"0xyoung", "EscrowReleased", young, chain, 6, "canonical"},
		{"0xunverified", "EscrowReleased", old, chain, 50, "canonical"},
		{"0xwaiting", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xorphan", "EscrowReleased", old, chain, 6, "orphaned"},
		{"0xelsewhere", "EscrowReleased", old, chain + 1, 6, "canonical"},
	} {
		exec(t, db, `insert into processed_events (chain_id, event_id, event_type, contract_address, escrow, slot, block_number, log_index, block_hash, block_timestamp, args,
			processed_by_instance, state, retract_after, processed_at)
			values ($1, $2 || $3, $3, $2, $2, 0, $4, $7, '', 0, '{}', 'r0', $5, case when $5 = 'canonical' then null else 9 end, now() - $6::text::interval)`,
			e.chain, e.escrow, e.kind, e.block, e.state, e.age, i)
	}

	exec(t, db, `insert into outbox_messages (chain_id, slot, escrow, event_id, event_type) values ($1, 0, '0xwaiting', '0xwaiting', 'EscrowReleased')`, chain)
	exec(t, db, `update leadership set verified_block = 20`)
	all := len(column(t, db, `select event_id from processed_events`))

	r, err := retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain})
	require.NoError(t, err)
	require.Zero(t, r.Events, "for ever, unless it is set")
	require.Len(t, column(t, db, `select event_id from processed_events`), all)

	r, err = retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Events)
	for _, escrow := range []string{"0xactive", "0xelsewhere", "0xorphan", "0xunverified", "0xwaiting", "0xyoung"} {
		require.NotEmpty(t, column(t, db, `select event_id from processed_events where escrow_key = word('`+escrow+`', 20)`),
			escrow)
	}

	for _, escrow := range []string{"0xgone", "0xrefunded"} {
		require.Empty(t, column(t, db, `select event_id from processed_events where escrow_key = word('`+escrow+`', 20)`),
			escrow)
	}
}

// A dead instance is forgotten with its cursor, unless slots still count from that cursor.
func TestDeadInstancesThatOwnNothing(t *testing.T) {
	db := setup(t)
	for id, dead := range map[string]string{"alive": "", "lately": "1 day", "long ago": "8 days", "owner": "8 days"} {
		exec(t, db, `insert into relayer_instances (chain_id, instance_id, partition_number, total_partitions, strategy, status, lock_key, dead_since)
			values ($1, $2, 0, 1, 'modulo', case when $3 = '' then 'active' else 'dead' end, 1, now() - nullif($3, '')::interval)`, chain, id, dead)
		exec(t, db, `insert into cursors (chain_id, instance_id) values ($1, $2)`, chain, id)
	}

	exec(t, db, `insert into slot_ownership (chain_id, slot, owner, next_block) values ($1, 7, 'owner', 1)`, chain)
	r, err := retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain, Instances: 7 * 24 * time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Instances)
	require.Equal(t, []string{"alive", "lately", "owner"},
		column(t, db, `select instance_id from relayer_instances order by 1`))
	require.Equal(t, []string{"alive", "lately", "owner"}, column(t, db, `select instance_id from cursors order by 1`))
}

// The newest remembered blocks stay, also where they are far apart.
func TestRememberedBlocks(t *testing.T) {
	db := setup(t)
	exec(t, db, `insert into chain_blocks select $1, n * 1000, '0x' || n from generate_series(1, 2100) n`, chain)
	exec(t, db, `insert into chain_blocks select $1, n, '0x' || n from generate_series(1, 10) n`, chain+1)
	r, err := retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain})
	require.NoError(t, err)
	require.EqualValues(t, 2100-2049, r.Blocks)
	require.Equal(t, []string{"52000"}, column(t, db, `select min(number)::text from chain_blocks where chain_id = 31337`))
	require.Equal(t, []string{"10"}, column(t, db, `select count(*)::text from chain_blocks where chain_id <> 31337`))
}

// A database that does not answer is tried again at the next turn, and the end of the term is the end.
func TestRunGoesOnAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
		require.NoError(t, err)
		defer db.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		tries := &counter{}
		require.NoError(t, retention.Run(ctx, retention.Config{DB: db, ChainID: chain, Log: slog.New(tries)}))
		require.Equal(t, 3, tries.n)
	})
}

type counter struct {
	slog.Handler
	n int
}

func (c *counter) Enabled(context.Context, slog.Level) bool { return true }

func (c *counter) Handle(context.Context, slog.Record) error {
	c.n++
	return nil
}
