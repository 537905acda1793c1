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

// Looking at a database changes nothing in it.
func TestCheckMakesNoTable(t *testing.T) {
	url := testpg.Bare(t)
	conn, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrStale)

	var tables int
	require.NoError(t, testpg.Open(t, url).QueryRow(t.Context(),
		`select count(*) from pg_tables where schemaname = 'public'`).Scan(&tables))
	require.Zero(t, tables)
}

// A binary works with a newer database only where that says so, for the very version that it is at.
func TestSchemaOfANewerRelease(t *testing.T) {
	url := testpg.New(t)
	conn, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	db := testpg.Open(t, url)
	run := func(sql string, args ...any) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	now, err := migrations.Status(t.Context(), conn)
	require.NoError(t, err)
	require.NoError(t, now.Fits())

	newer := now.Latest + 1
	run(`insert into goose_db_version (version_id, is_applied) values ($1, true)`, newer)
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrFuture)

	run(`create table schema_compatibility (version bigint primary key, oldest bigint not null)`)
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrFuture, "it says nothing")
	run(`insert into schema_compatibility values ($1, $2)`, newer, now.Latest)
	require.NoError(t, migrations.Check(t.Context(), conn))

	run(`insert into goose_db_version (version_id, is_applied) values ($1, true)`, newer+1)
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrFuture, "the promise is not inherited")
}
