package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

// task is something that a runbook tells an operator to do, and what it takes in the database: rights
// on tables, as "privilege table". The rights are those of the statements that the command runs: one
// that locks rows takes update.
type task struct {
	command string
	rights  []string
}

// tasks are what operators do. The first of them is what a login is for that may read only.
var tasks = []task{
	{"status, plan wait, plan move, sender status, command list and command show", readAll()},
	{"audit", readAll()},
	{"replay", []string{"select event_types", "select events", "update events", "select outbox", "insert outbox"}},
	{"rewind", []string{"select leadership", "update leadership"}},
	{"sender pause, sender resume", []string{"select senders", "update senders"}},
	{"sender adopt-nonce", []string{"select senders", "update senders", "select commands", "update commands"}},
	{"command cancel", []string{"select commands", "update commands"}},
}

// readAll is select on everything that status and audit read.
func readAll() (rights []string) {
	for _, t := range []string{"cursors", "slot_ownership", "leadership", "relayer_instances", "escrows", "late_escrows",
		"events", "outbox", "findings", "event_types", "writers", "records", "senders", "commands", "command_attempts",
		"replies", "processed_events", "escrow_registry", "escrow_records"} {
		rights = append(rights, "select "+t)
	}

	return rights
}

// examineOperator examines the login of a person: what it cannot do is no fault, but that it cannot read is.
func (d *doctor) examineOperator(ctx context.Context) error {
	d.login(ctx)
	return nil
}

func (d *doctor) login(ctx context.Context) {
	const of = "database"
	db, err := database.Open(ctx, d.cfg)
	if !d.judge(of, "settings", "read", err) {
		return
	}

	defer db.Close()
	var version, user string
	var schema bool
	err = db.Pool.QueryRow(ctx,
		`select current_setting('server_version'), current_user, to_regclass('goose_db_version') is not null`).Scan(&version,
		&user, &schema)
	if !d.judge(of, "login", fmt.Sprintf("Postgres %s as %s", version, user), database.Explain(err)) {
		return
	}

	if !schema {
		d.say(wrong, of, "schema", "none yet, or not in this login's search path: "+
			"`escrow-relayer migrate` makes it, as the account of migrations")
		return
	}

	d.schemaVersion(ctx, db)
	for n, t := range tasks {
		missing, err := missingRights(ctx, db, t.rights)
		switch {
		case err != nil:
			d.judge(of, "tasks", "", database.Explain(err))
			return
		case len(missing) == 0:
			d.say(fine, of, "tasks", "%s: possible with this login", t.command)
		case n == 0:
			d.say(wrong, of, "tasks", "%s: not possible, %s missing: grant it to %s, or act as the services' account",
				t.command, strings.Join(missing, ", "), user)
		default:
			d.say(note, of, "tasks", "%s: not possible with this login (%s missing): act as the services' account for it",
				t.command, strings.Join(missing, ", "))
		}
	}

	d.ends(ctx, db)
}

// schemaVersion tells the version to those who may read it.
func (d *doctor) schemaVersion(ctx context.Context, db *database.Database) {
	missing, err := missingRights(ctx, db, []string{"select goose_db_version"})
	if err == nil && len(missing) > 0 {
		d.say(note, "database", "schema", "its version cannot be seen: select on goose_db_version is missing")
		return
	}

	state, err := migrations.Status(ctx, db.Session)
	d.judge("database", "schema", fmt.Sprintf("version %d of %d", state.Current, state.Latest), database.Explain(err))
}

// ends says whose sessions the login may end: that frees the locks of an instance that is not to be reached.
func (d *doctor) ends(ctx context.Context, db *database.Database) {
	const others = `
		select count(*) filter (where not pg_has_role(current_user, usesysid, 'member')), count(*),
		       pg_has_role(current_user, 'pg_signal_backend', 'member')
		  from pg_stat_activity
		 where application_name like 'escrow-relayer/%' and pid <> pg_backend_pid()`
	var foreign, all int
	var signal bool
	err := db.Pool.QueryRow(ctx, others).Scan(&foreign, &all, &signal)
	switch {
	case err != nil:
		d.judge("database", "sessions", "", database.Explain(err))
	case foreign > 0 && !signal:
		d.say(note, "database", "sessions", "pg_terminate_backend on %d of %d sessions of instances: not possible with this login: "+
			"act as the services' account, or be granted pg_signal_backend", foreign, all)
	default:
		d.say(fine, "database", "sessions", "pg_terminate_backend on the %d sessions of instances: possible with this login", all)
	}
}

// missingRights returns those of "privilege table" that the user does not have on a table that exists.
func missingRights(ctx context.Context, db *database.Database, rights []string) ([]string, error) {
	const missing = `
		select r from unnest($1::text[]) with ordinality as x (r, n)
		 where to_regclass(split_part(r, ' ', 2)) is not null
		   and not has_table_privilege(to_regclass(split_part(r, ' ', 2)), split_part(r, ' ', 1))
		 order by n`
	rows, _ := db.Pool.Query(ctx, missing, rights)

	return pgx.CollectRows(rows, pgx.RowTo[string])
}
