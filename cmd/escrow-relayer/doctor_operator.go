package main

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

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
	{"status, audit, locks, plan wait, plan move, sender status, command list and command show", readAll()},
	{"replay", []string{"select event_types", "select events", "select requests", "insert requests"}},
	{"factory retire", []string{"select leadership", "update leadership", "select factories", "update factories",
		"select cursors", "update cursors", "select commands", "select relayer_instances"}},
	{"rewind", []string{"select leadership", "update leadership", "select factories", "update factories",
		"select cursors", "update cursors"}},
	{"sender pause, sender resume", []string{"select senders", "update senders"}},
	{"sender adopt-nonce", []string{"select senders", "update senders", "select commands", "update commands",
		"select used_nonces"}},
	{"command cancel", []string{"select commands", "update commands"}},
}

// tables are those of the schema, and its views.
var tables = []string{"factories", "escrows", "late_escrows", "relayer_instances", "instance_health", "cursors",
	"slot_ownership", "leadership", "chain_blocks", "events", "orphaned_events", "outbox", "findings", "endpoint_faults",
	"records", "folded_records", "event_types", "writers", "lock_turns", "ownership_lock", "requests", "memory",
	"processed_events", "stored_events", "outbox_messages", "escrow_registry", "escrow_records"}

// commandTables are those that only an instance writes that takes commands, acts on them or removes them.
var commandTables = []string{"senders", "commands", "command_claims", "command_attempts", "used_nonces", "replies"}

// readAll is select on every table.
func readAll() (rights []string) {
	for _, t := range slices.Concat(tables, commandTables) {
		rights = append(rights, "select "+t)
	}

	return rights
}

// examineOperator examines an operator's login: a missing right to read is a fault, other missing
// rights are notes.
func (d *doctor) examineOperator(ctx context.Context) {
	d.of = "database"
	db, err := database.Open(ctx, d.cfg)
	if err != nil {
		d.judge("login", "", err)
		return
	}

	defer db.Close()
	user, ok := d.login(ctx, db)
	if !ok {
		return
	}

	var schema bool
	err = db.Pool.QueryRow(ctx, `select to_regclass('escrow_relayer_versions') is not null`).Scan(&schema)
	switch {
	case err != nil:
		d.judge("schema", "", database.Explain(err))
	case !schema:
		d.say(wrong, "schema", "none yet, or not in this login's search path: "+
			"`escrow-relayer migrate` makes it, as the account of migrations")
	default:
		d.tasks(ctx, db, user)
		d.ends(ctx, db)
	}
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
