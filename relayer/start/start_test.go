package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

// history is a chain whose endpoints keep no state below a block.
type history struct {
	reader
	oldest uint64
	asked  int
	says   error // of older state; nil: that there is none
}

func (h *history) Code(ctx context.Context, a common.Address, block uint64) ([]byte, error) {
	h.asked++
	if block < h.oldest {
		return nil, cmp.Or(h.says, fmt.Errorf("%w: missing trie node", chain.ErrNoHistory))
	}

	return h.reader.Code(ctx, a, block)
}

// A START_BLOCK is held against a real chain, on which the factory was deployed somewhere in the middle.
func TestCheckStart(t *testing.T) {
	sim := testchain.NewSim(t, testchain.Options{Seed: 3})
	require.NoError(t, sim.Mine(t.Context(), 9))
	contracts, err := testchain.Deploy(t.Context(), sim)
	require.NoError(t, err)
	require.NoError(t, sim.Mine(t.Context(), 50))
	src := chain.New(chain.Config{URLs: []string{sim.HTTP()}, ChainID: sim.ChainID().Uint64()})
	t.Cleanup(src.Close)
	head, err := src.Head(t.Context())
	require.NoError(t, err)

	deployed := contracts.Block // at or above the block of the factory
	for deployed > 0 {
		code, err := src.Code(t.Context(), contracts.Factory, deployed-1)
		require.NoError(t, err)
		if len(code) == 0 {
			break
		}

		deployed--
	}

	require.Greater(t, deployed, uint64(9))

	for name, c := range map[string]struct {
		start     uint64
		allow     bool
		oldest    uint64
		refused   string // "" : it is not
		unchecked bool
		says      error
	}{
		"at the deployment":                     {start: deployed},
		"below it":                              {start: 4},
		"the first block":                       {start: 0},
		"above it":                              {start: deployed + 1, refused: fmt.Sprintf("set START_BLOCK=%d,", deployed)},
		"far above it":                          {start: head.Number, refused: fmt.Sprintf("set START_BLOCK=%d,", deployed)},
		"above it, and allowed":                 {start: deployed + 1, allow: true},
		"above the head":                        {start: head.Number + 1, refused: "newest block"},
		"above the head, and late ones allowed": {start: head.Number + 1, allow: true, refused: "newest block"},
		"no history at all":                     {start: deployed + 20, oldest: head.Number, unchecked: true},
		"no history, in other words": {start: deployed + 20, oldest: head.Number, unchecked: true,
			says: errors.New("node says \"BlockOutOfRangeError\" (code -32602)")},
		"no answer about history": {start: deployed + 20, oldest: head.Number, unchecked: true,
			says: errors.New("HTTP status 500")},
		"history from above the deployment on, in other words": {start: deployed + 20, oldest: deployed + 7,
			says: errors.New("HTTP status 500"), refused: fmt.Sprintf("in block %d or before it", deployed+7)},
		"history from above the deployment on": {start: deployed + 20, oldest: deployed + 7,
			refused: fmt.Sprintf("in block %d or before it", deployed+7)},
		"history from the deployment on": {start: deployed + 20, oldest: deployed,
			refused: fmt.Sprintf("in block %d or before it", deployed)},
		"history from just below it on": {start: deployed + 20, oldest: deployed - 1,
			refused: fmt.Sprintf("was in block %d: ", deployed)},
	} {
		t.Run(name, func(t *testing.T) {
			h := &history{reader: src, oldest: c.oldest, says: c.says}
			unchecked, err := checkStart(t.Context(), h, contracts.Factory, c.start, c.allow)
			require.LessOrEqual(t, h.asked, 40)
			require.Equal(t, c.unchecked, unchecked != "")
			if c.refused == "" {
				require.NoError(t, err)
				return
			}

			require.ErrorIs(t, err, errStartBlock)
			require.ErrorContains(t, err, c.refused)
		})
	}
}

// starting has a database, and nothing else yet.
func starting(t *testing.T, url string) *Checks {
	t.Helper()
	cfg := &config.Config{DatabaseURL: url, SessionDatabaseURL: url, InstanceID: "r0", DBMaxConns: 2,
		MigrateOnStart: true, DBOutageLimit: time.Minute}
	db, err := database.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)

	return &Checks{Config: cfg, DB: db, Failed: func(error) {}, Log: slog.New(slog.DiscardHandler)}
}

// A start waits for a database for DB_OUTAGE_LIMIT, and says what was out of reach.
func TestAStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	closed, err := port.Reserve()
	require.NoError(t, err)
	defer closed.Close()
	c := starting(t, "postgres://nobody@"+closed.Addr()+"/relayer?sslmode=disable")
	c.Config.DBOutageLimit = time.Second
	err = c.retry(t.Context(), step{"database", "the database", time.Minute, c.checkDatabase, ""})
	require.ErrorContains(t, err, "DB_OUTAGE_LIMIT=1s: nothing accepts connections at")
}

// A migration that takes longer than any other step may is waited for, rather than cut off and begun anew for ever.
func TestAMigrationMayTakeLong(t *testing.T) {
	t.Parallel()
	url := testpg.Bare(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	// The migration waits for this transaction, as it would work on a large table.
	_, err = conn.Exec(t.Context(), `create table hold (); create function hold() returns event_trigger language plpgsql as $$ begin lock table hold in share mode; end $$;
		create event trigger hold on ddl_command_start when tag in ('CREATE TABLE') execute function hold()`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `begin; lock table hold in access exclusive mode`)
	require.NoError(t, err)
	c := starting(t, url)

	// A step that may take no longer than this attempt never gets through.
	brief := step{"schema", "the database", 500 * time.Millisecond, c.prepareSchema, ""}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.Error(t, c.retry(ctx, brief))

	done := make(chan error, 1)
	go func() {
		done <- c.retry(t.Context(), step{"schema", "the database", migrateTimeout, c.prepareSchema, ""})
	}()
	pool := testpg.Open(t, url)
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, pool.QueryRow(t.Context(),
			`select exists (select from pg_locks where not granted and relation is not null
				and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits))

		return waits
	}, 10*time.Minute, 50*time.Millisecond)
	_, err = conn.Exec(t.Context(), `rollback`)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Greater(t, migrateTimeout, time.Hour)
}

// Where nothing is to be migrated, a connection that swallows what is sent does not hold up a start for as long
// as migrations may take (chaos seed 7000000033 with commands).
func TestASchemaThatIsThereTakesNoLongerThanOtherSteps(t *testing.T) {
	t.Parallel()
	proxy, url, err := faults.ProxyURL(testpg.New(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	c := starting(t, url)
	require.NoError(t, c.prepareSchema(t.Context()))

	trap := proxy.Trap("escrow_relayer_versions")
	defer trap.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.ErrorIs(t, c.prepareSchema(ctx), context.DeadlineExceeded)
	require.NoError(t, ctx.Err(), "it ended by itself")
	<-trap.Caught()
}
