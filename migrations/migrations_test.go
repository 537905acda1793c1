package migrations_test

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

// Several instances start at once on an empty database: one applies, the others find nothing left to do.
func TestManyAtOnce(t *testing.T) {
	conn, err := pgx.ParseConfig(testpg.Bare(t))
	require.NoError(t, err)
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrStale)
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 5 {
		wg.Go(func() {
			versions, err := migrations.Up(t.Context(), conn)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			applied += len(versions)
		})
	}
	wg.Wait()
	s, err := migrations.Status(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, s.Latest, s.Current)
	require.EqualValues(t, s.Latest, applied, "each migration once")
	require.NoError(t, migrations.Check(t.Context(), conn))
}
