package relayer

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// The last words of an instance that gives the database up are DB_OUTAGE_LIMIT and what is wrong with
// the database: at the start and later, whether the limit is reached between two attempts or within one.
func TestTheLastWordsOfAnOutage(t *testing.T) {
	t.Parallel()
	closed, err := port.Reserve()
	require.NoError(t, err)
	defer closed.Close()
	url := "postgres://nobody@" + closed.Addr() + "/relayer?sslmode=disable"

	for _, limit := range []time.Duration{time.Second, 2 * time.Second} {
		cfg := &config.Config{DatabaseURL: url, SessionDatabaseURL: url, InstanceID: "r0", DBMaxConns: 2,
			DBOutageLimit: limit}
		db, err := database.Open(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(db.Close)
		r := &Relayer{cfg: cfg, db: db, secrets: redact.New(), log: slog.New(slog.DiscardHandler),
			commands: &commands{}}
		err = r.tenures(t.Context())
		require.ErrorIs(t, err, ErrOutage)
		said := database.Explain(err).Error() // as whoever ends with it prints it
		require.Contains(t, said, "DB_OUTAGE_LIMIT="+limit.String())
		require.Contains(t, said, "nothing accepts connections at "+closed.Addr())
	}
}
