// Package migrations holds the schema as numbered SQL files and applies them with goose.
//
// Files are embedded, never edited once released, and safe beside the previous release of the binary. Several instances may
// call Up at once: goose holds a Postgres advisory lock of its own, so one applies and the others find nothing left to do.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations, one file a version.
//
//go:embed *.sql
var FS embed.FS

// ErrStale is returned by Check when the database's schema is not the one this binary was built for.
var ErrStale = errors.New("stale schema")

// Up applies what is missing and returns the versions it applied. The connection must reach Postgres itself or a
// session-pooling proxy, since the lock belongs to a session.
func Up(ctx context.Context, conn *pgx.ConnConfig) (applied []int64, err error) {
	err = with(conn, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if err != nil {
			return fmt.Errorf("apply migrations: %w", err)
		}
		for _, r := range results {
			applied = append(applied, r.Source.Version)
		}
		return nil
	})
	return applied, err
}

// State is what Status reports: the version of the database and the newest one that this binary knows.
type State struct {
	Current int64 `json:"current"`
	Latest  int64 `json:"latest"`
}

// Status reads the schema's version. On a database without any schema goose creates its own, empty, version table.
func Status(ctx context.Context, conn *pgx.ConnConfig) (s State, err error) {
	err = with(conn, func(p *goose.Provider) error {
		s.Latest = p.ListSources()[len(p.ListSources())-1].Version
		current, err := p.GetDBVersion(ctx)
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
		s.Current = current
		return nil
	})
	return s, err
}

// Check returns an error wrapping ErrStale when a migration is missing. A database that is newer than the binary passes:
// migrations are written so that the previous release runs beside them.
func Check(ctx context.Context, conn *pgx.ConnConfig) error {
	s, err := Status(ctx, conn)
	if err != nil {
		return err
	}
	if s.Current < s.Latest {
		return fmt.Errorf("%w: the database is at version %d, this binary needs %d; run `escrow-relayer migrate` or set MIGRATE_ON_START=true", ErrStale, s.Current, s.Latest)
	}
	return nil
}

func with(conn *pgx.ConnConfig, f func(*goose.Provider) error) (err error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120)) // try every second for two minutes
	if err != nil {
		return fmt.Errorf("set up the migration lock: %w", err)
	}
	db := stdlib.OpenDB(*conn)
	p, err := goose.NewProvider(goose.DialectPostgres, db, FS, goose.WithSessionLocker(locker))
	if err != nil {
		return errors.Join(fmt.Errorf("read the embedded migrations: %w", err), db.Close())
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return f(p)
}
