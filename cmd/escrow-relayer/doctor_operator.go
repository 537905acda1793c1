package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

// task is a runbook's task for an operator, and the rights that it needs in the database, as
// "privilege table". They are those of the statements that the command runs: one that locks rows
// needs update.
type task struct {
	command string
	rights  []string
}

// tasks are what operators do. The first is required of every operator's login.
var tasks = []task{
	{"status, locks, plan wait, plan move, sender status, command list and command show", readAll()},
	{"audit", readAll()},
	{"replay", []string{"select event_types", "select events", "update events", "select outbox", "insert outbox",
		"select lock_identity", "select lock_turns"}},
	{"factory retire", []string{"select leadership", "update leadership", "select factories", "update factories",
		"select commands", "select relayer_instances"}},
	{"rewind", []string{"select leadership", "update leadership", "select factories", "update factories"}},
	{"sender pause, sender resume", []string{"select senders", "update senders"}},
	{"sender adopt-nonce", []string{"select senders", "update senders", "select commands", "update commands",
		"select used_nonces"}},
	{"command cancel", []string{"select commands", "update commands"}},
}

// readAll is select on everything that status and audit read.
func readAll() (rights []string) {
	for _, t := range []string{"cursors", "slot_ownership", "leadership", "relayer_instances", "instance_health",
		"factories", "escrows", "late_escrows", "events", "outbox", "findings", "endpoint_faults", "event_types",
		"writers", "records", "senders", "commands", "command_attempts", "used_nonces", "replies", "lock_turns",
		"processed_events", "escrow_registry", "escrow_records"} {
		rights = append(rights, "select "+t)
	}

	return rights
}

// examineOperator examines an operator's login: a missing right to read is a fault, other missing
// rights are notes.
func (d *doctor) examineOperator(ctx context.Context) error {
	d.of = "database"
	db := d.open(ctx)
	if db == nil {
		return nil
	}

	defer db.Close()
	user, ok := d.login(ctx, db)
	if !ok {
		return nil
	}

	var schema bool
	err := db.Pool.QueryRow(ctx, `select to_regclass('escrow_relayer_versions') is not null`).Scan(&schema)
	switch {
	case err != nil:
		d.judge("schema", "", database.Explain(err))
	case !schema:
		d.say(wrong, "schema", "none yet, or not in this login's search path: "+
			"`escrow-relayer migrate` makes it, as the account of migrations")
	default:
		d.schemaVersion(ctx, db)
		d.tasks(ctx, db, user)
		d.ends(ctx, db)
	}

	return nil
}

// tasks reports which of the tasks the login can do.
func (d *doctor) tasks(ctx context.Context, db *database.Database, user string) {
	for n, t := range tasks {
		missing, err := missingRights(ctx, db, t.rights)
		switch {
		case err != nil:
			d.judge("tasks", "", database.Explain(err))
			return
		case len(missing) == 0:
			d.say(fine, "tasks", "%s: possible with this login", t.command)
		case n == 0:
			d.say(wrong, "tasks", "%s: not possible, %s missing: grant it to %s, or act as the services' account",
				t.command, strings.Join(missing, ", "), user)
		default:
			d.say(note, "tasks", "%s: not possible with this login (%s missing): act as the services' account for it",
				t.command, strings.Join(missing, ", "))
		}
	}
}

// schemaVersion reports the version, if the login may read it.
func (d *doctor) schemaVersion(ctx context.Context, db *database.Database) {
	missing, err := missingRights(ctx, db, []string{"select escrow_relayer_versions"})
	if err == nil && len(missing) > 0 {
		d.say(note, "schema", "its version cannot be seen: select on escrow_relayer_versions is missing")
		return
	}

	state, err := migrations.Status(ctx, db.Session)
	d.judge("schema", fmt.Sprintf("version %d of %d", state.Current, state.Latest), database.Explain(err))
}

// ends reports which sessions the login may end: that frees the locks of an unreachable instance.
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
		d.judge("sessions", "", database.Explain(err))
	case foreign > 0 && !signal:
		d.say(note, "sessions", "pg_terminate_backend on %d of %d sessions of instances: not possible with this login: "+
			"act as the services' account, or be granted pg_signal_backend", foreign, all)
	default:
		d.say(fine, "sessions", "pg_terminate_backend on the %d sessions of instances: possible with this login", all)
	}
}

// missingRights returns the rights, as "privilege table", that the user lacks on an existing table.
func missingRights(ctx context.Context, db *database.Database, rights []string) ([]string, error) {
	const missing = `
		select r from unnest($1::text[]) with ordinality as x (r, n)
		 where to_regclass(split_part(r, ' ', 2)) is not null
		   and not has_table_privilege(to_regclass(split_part(r, ' ', 2)), split_part(r, ' ', 1))
		 order by n`
	rows, _ := db.Pool.Query(ctx, missing, rights)

	return pgx.CollectRows(rows, pgx.RowTo[string])
}
