package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// Clocks that differ by more make ages and lags on status pages and in alerts misleading; decisions
// are independent of them.
const (
	skewNoted = time.Second
	skewWrong = 30 * time.Second
)

// database does the steps of the start, and examines what else an instance needs of the database.
func (d *doctor) database(ctx context.Context) {
	db := d.start.DB
	if !d.steps(ctx, "database") {
		return
	}

	d.steps(ctx, "schema", "settings", "start block")
	var migrated bool
	err := db.Pool.QueryRow(ctx, `select to_regclass('escrow_relayer_versions') is not null`).Scan(&migrated)
	switch {
	case err != nil:
		d.judge("schema", "", err)
	case migrated:
		d.rights(ctx, db)
		d.left(ctx, db)
		d.fleet(ctx, db)
	}

	d.server(ctx, db)
}

// fleet reports what the instances say of the database, as status does: what they meet may not meet doctor. What may
// end within seconds, as what an instance reports that has just started, is a note.
func (d *doctor) fleet(ctx context.Context, db *database.Database) {
	f, err := readFleet(ctx, d.cfg, db)
	for _, p := range f.Problems {
		switch p.Kind {
		case fleet.DatabaseRefuses, fleet.InstanceFault, fleet.Standing, fleet.ReadOnly, fleet.StaleHeartbeat:
			v := wrong
			if p.Severity == fleet.Notice {
				v = note
			}

			d.say(v, "fleet", "%s: %s", d.secrets.Mask(p.Text), p.Remedy)

			return
		}
	}

	d.judge("fleet", "no instance says that the database takes nothing", database.Explain(err))
}

// selectLeft finds the other chains of a database with messages that wait, and that no instance follows: none holds
// its lock, and none that has not stopped has reported for a minute. Under load a session may be lost for some seconds.
const selectLeft = `
	select l.chain_id from leadership l
	where l.chain_id <> $1
	  and (exists (select from outbox o where o.chain_id = l.chain_id)
	       or exists (select from events e join slot_ownership s using (chain_id, slot)
		where e.chain_id = l.chain_id and e.told and not e.apart and (block_number, log_index) > (sent_block, sent_index)
		  and block_number >= (select min(sent_block) from slot_ownership m where m.chain_id = l.chain_id)))
	  and not exists (select from relayer_instances i left join instance_health r using (chain_id, instance_id)
	                  where i.chain_id = l.chain_id
		and (i.left_at is null and r.reported_at > now() - interval '1 minute'
		     or exists (select from held_locks() h where h.key = i.lock_key)))
	order by l.chain_id`

// left reports chains that were taken out of a configuration too early.
func (d *doctor) left(ctx context.Context, db *database.Database) {
	rows, _ := db.Pool.Query(ctx, selectLeft, d.cfg.ChainID)
	chains, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range chains {
		d.say(wrong, "chains", "messages of chain %d wait in the outbox, and no instance follows it: run one with that "+
			"chain until `escrow-relayer status --chain %d` shows that none waits", id, id)
	}

	if len(chains) == 0 {
		d.judge("chains", "no messages wait of a chain that nobody follows", err)
	}
}

// selectMissing lists the rights, as "privilege table", that the user lacks: to read every table and view of the
// schema, and to write all but those in $1.
const selectMissing = `
	select privilege || ' ' || c.relname
	  from pg_class s join pg_class c on c.relnamespace = s.relnamespace and c.relowner = s.relowner,
	       unnest(array['select', 'insert', 'update', 'delete']) with ordinality as p (privilege, n)
	 where s.oid = 'escrow_relayer_versions'::regclass and c.relkind in ('r', 'v')
	   and (privilege = 'select' or c.relname <> all ($1)) and not has_table_privilege(c.oid, privilege)
	 order by c.relname, n`

// rights reports the missing rights on the tables, and that they take rows. The sequences of identity columns need no
// separate rights.
func (d *doctor) rights(ctx context.Context, db *database.Database) {
	read := []string{"escrow_relayer_versions", "schema_compatibility", "lock_identity"}
	if !d.cfg.HasCommands() && d.cfg.Retention == 0 { // every instance reads the tables of commands, to show them
		read = append(read, "senders", "commands", "command_claims", "command_attempts", "used_nonces", "replies")
	}

	rows, _ := db.Pool.Query(ctx, selectMissing, read)
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		d.judge("rights", "", err)
	case len(missing) > 0:
		d.say(wrong, "rights", "%s: grant them to the user of DATABASE_URL", strings.Join(missing, ", "))
	default:
		d.say(fine, "rights", "select, insert, update, delete on every table")
		d.judge("commit", "a commit is taken, and there is room (nothing was kept)", database.Explain(
			fleet.Naming(ctx, db.Session, func(ctx context.Context) error { return d.commits(ctx, db) })))
	}
}

// commits adds a megabyte to a table, under the unused chain id 0, and takes it back: a disk may be full. Then it
// commits a row in the table of the instances' reports, and removes it: only a commit shows that the database takes
// one.
func (d *doctor) commits(ctx context.Context, db *database.Database) error {
	return database.Within(ctx, readTimeout, func(ctx context.Context) error {
		tx, err := db.Pool.Begin(ctx)
		if err != nil {
			return fmt.Errorf("begin a transaction: %w", err)
		}

		_, err = tx.Exec(ctx, `insert into chain_blocks (chain_id, number, hash)
			select 0, n, repeat('x', 1000) from generate_series(1, 1000) n`)
		if err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx))); err != nil {
			return fmt.Errorf("add a megabyte: %w", err)
		}

		if err = fleet.Report(ctx, db.Pool, 0, &fleet.Self{ID: "doctor"}, time.Now(), d.secrets.Mask); err == nil {
			_, err = db.Pool.Exec(ctx, `delete from instance_health where chain_id = 0`)
		}

		return err
	})
}

// selectServer reads the version, the login and the clock of a server, whether it forgets commits in a crash, who may
// come in, and how many.
const selectServer = `
	select current_setting('server_version'), current_user, clock_timestamp(),
	       current_setting('synchronous_commit') = 'off', current_database(),
	       has_database_privilege('public', current_database(), 'connect'),
	       coalesce(has_schema_privilege('public', current_schema(), 'create'), false),
	       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
	       (select count(*) from pg_stat_activity where backend_type = 'client backend')`

// server examines the server: its clock, its durability, its connections, and whether other logins have access, who
// may take an advisory lock then.
func (d *doctor) server(ctx context.Context, db *database.Database) {
	var theirs time.Time
	var forgets, connect, create bool
	var version, user, name string
	var most, used int
	before := time.Now()
	err := db.Pool.QueryRow(ctx, selectServer).
		Scan(&version, &user, &theirs, &forgets, &name, &connect, &create, &most, &used)
	took := time.Since(before)
	if !d.judge("login", fmt.Sprintf("Postgres %s as %s", version, user), database.Explain(err)) {
		return
	}

	d.clock(theirs.Sub(before.Add(took/2)), took/2)

	if connect {
		d.say(note, "public", "every login of the server may connect to this database, take locks in it, and fill its disk "+
			"with large objects: revoke connect on database %s from public; grant connect on database %s to the logins of the fleet", name, name)
	}

	if create {
		d.say(note, "public", "every login may create tables in the schema: revoke create on schema public from public")
	}

	switch {
	case forgets && d.cfg.SendersFile != "":
		d.say(wrong, "durability", "synchronous_commit is off: a crash forgets commands that were sent: set it to on")
	case forgets:
		d.say(note, "durability", "synchronous_commit is off: what a crash forgets is published again, and not "+
			"retracted if a reorganisation deeper than the finality replaces it at that moment")
	}

	if redact.Weak(d.cfg.DatabaseURL) || redact.Weak(d.cfg.SessionDatabaseURL) {
		d.say(note, "password", "the database's password can be guessed, or is an ordinary word, which logs can only "+
			"mask where a password stands: make one with `openssl rand -hex 24`")
	}

	d.connections(most, used)
}

// clock reports how far the database's clock is ahead of this machine's.
func (d *doctor) clock(skew, accuracy time.Duration) {
	v, remedy := fine, ""
	switch {
	case skew.Abs() > skewWrong:
		v, remedy = wrong, ": set the clocks by NTP"
	case skew.Abs() > skewNoted:
		v = note
	}

	d.say(v, "clock", "the database is %s ahead of this machine, give or take %s%s", skew.Round(time.Millisecond),
		accuracy.Round(time.Millisecond), remedy)
}

// connections compares the server's limit with the fleet's.
func (d *doctor) connections(most, used int) {
	v, remedy := fine, ""
	chains := max(1, d.cfg.Chains)
	want := (int(d.cfg.DBMaxConns) + 1) * d.cfg.Total * chains
	if want > most {
		v, remedy = wrong, ": raise the server's max_connections"
		if fit := most/d.cfg.Total/chains - 1; fit >= 4 {
			remedy += fmt.Sprintf(", or set DB_MAX_CONNS=%d", fit)
		}
	}

	d.say(v, "connections", "%d in use of %d; the fleet takes up to %d (TOTAL_PARTITIONS times DB_MAX_CONNS and a session, "+
		"for each of %d chains)%s", used, most, want, chains, remedy)
}
