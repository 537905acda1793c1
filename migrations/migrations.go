// Package migrations holds the schema as numbered SQL files and applies them with goose.
//
// Files are embedded, frozen once released, and safe beside the previous release of the binary.
// Several instances may call Up at once: goose holds a Postgres advisory lock, so one applies the
// migrations and the others find them applied.
//
// A binary refuses a database with a newer schema, unless that database declares the two
// compatible. A migration beside which binaries of an older release may run declares it for its
// version alone, so that a later migration starts without the promise:
//
//	create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null);
//	insert into schema_compatibility values (7, 5); -- binaries of versions 5 and 6 may run beside version 7
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations, one file per version.
//
//go:embed *.sql
var FS embed.FS

// versions is the table of the applied versions. goose's default name would collide with that of
// another application in the same schema.
const versions = "escrow_relayer_versions"

// protect takes from every login but the owner what default privileges gave it on the tables of versions: a login of
// the services could else say that a migration is missing, which stops every instance that starts. The lock keeps two
// of them apart.
const protect = `
	do $$
	declare
		t regclass;
		login text;
	begin
		foreach t in array array[to_regclass('escrow_relayer_versions'), to_regclass('schema_compatibility')] loop
			continue when not exists (select from pg_class where oid = t and pg_has_role(relowner, 'usage'));
			execute format('lock table %s in share row exclusive mode', t);
			for login in
				select distinct r.rolname from pg_class c, aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
				 where c.oid = t and a.grantee <> c.relowner
				   and a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
			loop
				execute format('revoke insert, update, delete, truncate on %s from %I', t, login);
			end loop;
		end loop;
	end $$`

// ErrStale means that a migration is missing.
var ErrStale = errors.New("stale schema")

// ErrFuture means that the database is newer than this binary and does not declare the two
// compatible.
var ErrFuture = errors.New("schema of a newer release")

// Up applies the missing migrations and returns their versions. The connection must reach Postgres
// itself or a session-pooling proxy, since the lock belongs to a session.
func Up(ctx context.Context, conn *pgx.ConnConfig) (applied []int64, err error) {
	// try every second for two hours: another instance may be at a long migration
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 7200))
	if err != nil {
		return nil, fmt.Errorf("set up the migration lock: %w", err)
	}

	db := stdlib.OpenDB(*conn)
	p, err := goose.NewProvider(goose.DialectPostgres, db, FS, goose.WithSessionLocker(locker),
		goose.WithTableName(versions))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the embedded migrations: %w", err), db.Close())
	}

	defer func() { err = errors.Join(err, p.Close()) }()
	results, err := p.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("apply migrations: %w", err)
	}

	if _, err := db.ExecContext(ctx, protect); err != nil {
		return nil, fmt.Errorf("protect the table of versions: %w", err)
	}

	for _, r := range results {
		applied = append(applied, r.Source.Version)
	}

	return applied, nil
}

// State is what Status reports: the version of the database and the newest one that this binary knows.
type State struct {
	Current int64 `json:"current"`
	Latest  int64 `json:"latest"`
	// Oldest is the oldest version with binaries that may work with a database newer than this binary;
	// 0: undeclared.
	Oldest int64 `json:"oldest_compatible,omitempty"`
}

// Fits returns nil when this binary can work with a database in this state, else ErrStale or
// ErrFuture, wrapped.
func (s State) Fits() error {
	switch {
	case s.Current == 0:
		return fmt.Errorf("%w: the database has no schema, this binary needs version %d; run `escrow-relayer migrate` or set MIGRATE_ON_START=true",
			ErrStale, s.Latest)
	case s.Current < s.Latest:
		return fmt.Errorf("%w: the database is at version %d, this binary needs %d; run `escrow-relayer migrate` or set MIGRATE_ON_START=true",
			ErrStale, s.Current, s.Latest)
	case s.Current > s.Latest && (s.Oldest == 0 || s.Oldest > s.Latest):
		return fmt.Errorf("%w: the database is at version %d and does not say that a binary of version %d may work with it; "+
			"start the newer release, or restore the database of this one", ErrFuture, s.Current, s.Latest)
	}

	return nil
}

// Status reads the schema's version; a database without a schema has version 0.
func Status(ctx context.Context, conn *pgx.ConnConfig) (s State, err error) {
	if s.Latest, err = latest(); err != nil {
		return s, err
	}

	db, err := pgx.ConnectConfig(ctx, conn)
	if err != nil {
		return s, fmt.Errorf("read the schema's version: %w", err)
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = db.Close(ctx) // nothing was written
	}()

	var migrated, says bool
	err = db.QueryRow(ctx,
		`select to_regclass($1) is not null, to_regclass('schema_compatibility') is not null`, versions).
		Scan(&migrated, &says)
	if err == nil && migrated {
		err = db.QueryRow(ctx, `select coalesce(max(version_id), 0) from `+versions+` where is_applied`).Scan(&s.Current)
	}

	if err == nil && says && s.Current > s.Latest {
		err = db.QueryRow(ctx, `select coalesce(min(oldest), 0) from schema_compatibility where version = $1`,
			s.Current).Scan(&s.Oldest)
	}

	if err != nil {
		return s, fmt.Errorf("read the schema's version: %w", err)
	}

	return s, nil
}

// latest is the newest version among the embedded files.
func latest() (version int64, err error) {
	files, err := FS.ReadDir(".")
	if err != nil {
		return 0, fmt.Errorf("read the embedded migrations: %w", err)
	}

	for _, f := range files {
		v, err := goose.NumericComponent(f.Name())
		if err != nil {
			return 0, fmt.Errorf("read the embedded migrations: %w", err)
		}

		version = max(version, v)
	}

	return version, nil
}

// Check returns ErrStale, wrapped, when a migration is missing, and ErrFuture, wrapped, when the
// database is newer than this binary and does not declare the two compatible.
func Check(ctx context.Context, conn *pgx.ConnConfig) error {
	s, err := Status(ctx, conn)
	if err != nil {
		return err
	}

	return s.Fits()
}
