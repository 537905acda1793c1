package retention_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const chain = 31337

// setup returns a fleet, and prepares its chain and another one.
func setup(t *testing.T) *testfleet.Fleet {
	t.Helper()
	f := testfleet.New(t, chain)
	f.Prepare(1, "0xfac")
	f.Of(chain+1).Prepare(1, "0xfac")
	f.Exec(`insert into chain_blocks (chain_id, number, hash) values ($1, 50, '0x')`, chain) // the oldest remembered

	return f
}

// Only the history of an escrow that ended long ago, whose ending was verified and published, may
// go; and it goes as a whole.
func TestEventsStayWhileTheyAreNeeded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const old, young = 2 * time.Hour, time.Minute
	for i, e := range []struct {
		escrow, kind string
		age          time.Duration
		chain, block int64
		state        string
	}{
		{"0xgone", "EscrowDeployed", old, chain, 5, "canonical"},
		{"0xgone", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xrefunded", "EscrowRefunded", old, chain, 6, "canonical"},
		{"0xactive", "EscrowDeployed", old, chain, 5, "canonical"},
		{"0xyoung", "EscrowReleased", young, chain, 6, "canonical"},
		{"0xunverified", "EscrowReleased", old, chain, 50, "canonical"},
		{"0xwaiting", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xlogged", "EscrowReleased", old, chain, 7, "canonical"},
		{"0xlate", "EscrowDeployed", old, chain, 5, "canonical"},
		{"0xlate", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xorphan", "EscrowReleased", old, chain, 6, "orphaned"},
		{"0xcommanded", "EscrowReleased", old, chain, 6, "canonical"},
		{"0xelsewhere", "EscrowReleased", old, chain + 1, 6, "canonical"},
	} {
		f.Of(e.chain).Stores(testfleet.Event{ID: e.escrow + e.kind, Type: e.kind, Escrow: e.escrow, Block: e.block,
			Index: int32(i), State: e.state, RetractFrom: 9, Stored: e.age})
	}

	for i, escrow := range []string{"0xgone", "0xactive"} {
		f.Finds(testfleet.Escrow{Address: escrow, Block: 5, Slot: int16(i)})
	}

	f.Finds(testfleet.Escrow{Address: "0xlate", Block: 5, Late: true}) // a factory's past is read for hours
	f.Exec(`update late_escrows set monitored = 20`)

	records := func() []string {
		return f.Column(`select status || ' ' || last_event_type || ' ' || last_event_block from escrow_records order by 1`)
	}
	before := records()
	require.Equal(t, []string{"created EscrowDeployed 5", "released EscrowReleased 6", "released EscrowReleased 6"},
		before)
	f.Queues(testfleet.Message{Escrow: "0xwaiting", EventID: "0xwaiting", Type: "EscrowReleased"})
	f.Exec(insertCommand, chain, 1, "", "x", "sent", "", 1, -2*time.Hour, -2*time.Hour, 0, nil)
	f.Exec(`update commands set escrow = hex(word('0xcommanded', 20))`)
	f.OwnAll("a", 7)
	f.Exec(`update events set apart = false where block_number = 7`) // of the log, beyond what is sent
	f.Exec(`update slot_ownership set sent_block = 60 where slot = 2519`)
	f.Verify(20)
	f.Of(chain + 1).Verify(20)
	all := len(f.Column(`select event_id from processed_events`))

	r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain})
	require.NoError(t, err)
	require.Zero(t, r.Events, "for ever, unless it is set")
	require.Len(t, f.Column(`select event_id from processed_events`), all)

	r, err = retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.Equal(t, before, records(), "the last state stays")
	require.EqualValues(t, 3, r.Events)
	for _, escrow := range []string{"0xactive", "0xcommanded", "0xelsewhere", "0xlate", "0xlogged", "0xorphan",
		"0xunverified", "0xwaiting", "0xyoung"} {
		require.NotEmpty(t, f.Column(`select event_id from processed_events where escrow_key = word('`+escrow+`', 20)`),
			escrow)
	}

	for _, escrow := range []string{"0xgone", "0xrefunded"} {
		require.Empty(t, f.Column(`select event_id from processed_events where escrow_key = word('`+escrow+`', 20)`),
			escrow)
	}
}

// A rollback may go back to the oldest block that is remembered, and retracts what is above it.
func TestEventsAboveTheOldestRememberedBlockStay(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i, block := range []int64{19, 20, 21} {
		f.Stores(testfleet.Event{ID: fmt.Sprint(block), Type: "EscrowReleased", Escrow: fmt.Sprint(block), Block: block,
			Index: int32(i), Stored: 2 * time.Hour})
	}

	f.OwnAll("a", 30)
	f.Verify(30)
	f.Exec(`insert into chain_blocks (chain_id, number, hash) values ($1, 20, '0x20')`, chain)
	r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Events)
	require.Equal(t, []string{"21"}, f.Column(`select block_number::text from events`))
}

// A backlog that nobody has sent costs a clean-up no look-up for each of its escrows.
func TestBacklogIsNotLookedUp(t *testing.T) {
	t.Parallel()
	const escrows = 500
	f := setup(t)
	for i := range escrows {
		f.Stores(testfleet.Event{ID: fmt.Sprint(i), Type: "EscrowReleased", Escrow: fmt.Sprint(i), Block: 40, Index: int32(i),
			Stored: 2 * time.Hour})
	}

	f.Exec(`update events set apart = false`)
	f.OwnAll("a", 40)
	f.Verify(45)
	f.Exec(`vacuum analyze events`)
	db, read := testpg.Counted(t, f.URL)
	before := read("events")
	r, err := retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.Zero(t, r.Events)
	require.LessOrEqual(t, read("events")-before, escrows)
	f.Exec(`update slot_ownership set sent_block = 40`)
	r, err = retention.Once(t.Context(), retention.Config{DB: db, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, escrows, r.Events)
}

// A dead instance is forgotten with its cursor, unless slots still count from that cursor.
func TestDeadInstancesThatOwnNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const day = 24 * time.Hour
	f.Registers(testfleet.Instance{ID: "alive", Total: 1})
	for id, dead := range map[string]time.Duration{"lately": day, "long ago": 8 * day, "owner": 8 * day} {
		f.Registers(testfleet.Instance{ID: id, Total: 1})
		f.Died(id, dead)
	}

	f.Exec(`insert into slot_ownership (chain_id, slot, owner, next_block) values ($1, 7, 'owner', 1)`, chain)
	r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Instances: 7 * 24 * time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Instances)
	require.Equal(t, []string{"alive", "lately", "owner"},
		f.Column(`select instance_id from relayer_instances order by 1`))
	require.Equal(t, []string{"alive", "lately", "owner"}, f.Column(`select instance_id from cursors order by 1`))
}

// The newest remembered blocks stay, also where they are far apart.
func TestRememberedBlocks(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Exec(`delete from chain_blocks`)
	f.Exec(`insert into chain_blocks select $1, n * 1000, '0x' || n from generate_series(1, 2100) n`, chain)
	f.Exec(`insert into chain_blocks select $1, n, '0x' || n from generate_series(1, 10) n`, chain+1)
	r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain})
	require.NoError(t, err)
	require.EqualValues(t, 2100-2049, r.Blocks)
	require.Equal(t, []string{"52000"}, f.Column(`select min(number)::text from chain_blocks where chain_id = 31337`))
	require.Equal(t, []string{"10"}, f.Column(`select count(*)::text from chain_blocks where chain_id <> 31337`))
}

// A database that does not answer is tried again at the next turn, and the end of the term is the end.
func TestRunGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
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

// No step is prepared: its plan would stay the one that was right while the outbox was empty.
func TestStepsArePlannedAnew(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 10 {
		_, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: time.Hour})
		require.NoError(t, err)
	}

	var prepared []string
	for _, c := range f.DB.AcquireAllIdle(t.Context()) {
		rows, _ := c.Query(t.Context(), `select statement from pg_prepared_statements`)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		prepared = append(prepared, all...)
		c.Release()
	}

	text := strings.Join(prepared, "\n")
	require.Contains(t, text, "delete from chain_blocks", "which needs no other plan")
	require.NotContains(t, text, "delete from events")
	require.NotContains(t, text, "delete from commands")
}
