package main

import (
	"context"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// The rights of deploy/README.md on a real Postgres: the migration login owns the tables, and a
// fleet lives with the services' login alone, also through a takeover, a replay and the questions
// that operators ask with it; it cannot change a table.
func TestServicesNeedNoRightToChangeTables(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../deploy/README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```postgresql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 4, "what postgres grants, what the migration login grants, and both for the services with keys")

	w := newWorld(t, ownServer)
	ctx := t.Context()
	as := func(user string) string {
		u, err := url.Parse(w.URL)
		require.NoError(t, err)
		u.User = url.User(user)

		return u.String()
	}
	exec := func(user, sql string) error {
		conn, err := pgx.Connect(ctx, as(user))
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(ctx))
		_, err = conn.Exec(ctx, sql)

		return err
	}
	const services, migrations = "escrow-relayer@fusion-prime.iam", "escrow-relayer-ddl@fusion-prime.iam"
	require.NoError(t, exec("postgres",
		`create role "`+services+`" login; create role "`+migrations+`" login; create role other login`))
	require.NoError(t, exec("postgres", blocks[0][1]))
	require.NoError(t, exec(migrations, blocks[1][1]))
	_, err = pgx.Connect(ctx, as("other"))
	require.ErrorContains(t, err, "permission denied for database", "every other login stays outside")
	code, out := w.operator(map[string]string{"DATABASE_URL": as(migrations)}, "migrate")
	require.Zero(t, code, out)

	env := map[string]string{"DATABASE_URL": as(services), "MIGRATE_ON_START": "false"}
	w.startTwo(env)
	w.blocks(5)
	w.fleet["r0"].Kill()
	delete(w.fleet, "r0")
	w.until("r1 serves all", func(f *fleet.Fleet) bool { return slotsOf("r1", 2520)(f) && f.Leader.Valid })
	w.blocks(3)
	w.audit(true)
	for _, command := range [][]string{{"doctor"}, {"replay", "--from", "0", "--to", "1000000", "--dry-run"},
		{"audit", "--from", "0"}} {
		code, out := w.operator(env, command...)
		require.NotEqual(t, 2, code, "%v: %s", command, out)
		require.NotContains(t, strings.ToLower(out), "permission denied", "%v", command)
	}

	require.ErrorContains(t, exec(services, `alter table outbox add column x int`), "must be owner")
	require.ErrorContains(t, exec(services, `create table x ()`), "permission denied")
	stop, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	require.NoError(t, w.fleet["r1"].Stop(stop))
}
