package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/migrations"
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

// database examines the database for an instance.
func (d *doctor) database(ctx context.Context) {
	db := d.open(ctx)
	if db == nil {
		return
	}

	defer db.Close()
	session, err := pgx.ConnectConfig(ctx, db.Session)
	if err != nil {
		d.judge("login", "", fmt.Errorf("connect: check DATABASE_URL and SESSION_DATABASE_URL: %w", err))
		return
	}

	defer func() { _ = session.Close(context.WithoutCancel(ctx)) }()
	if _, ok := d.login(ctx, db); !ok {
		return
	}

	err = election.CheckPooling(ctx, db.Session)
	d.judge("session", "one connection is one server session", err)
	if errors.Is(err, election.ErrPooled) {
		d.set("SESSION_DATABASE_URL", "postgres://…", "the address of Postgres itself, or of a pool in session mode")
	}

	d.schema(ctx, db)
	d.judge("locks", "advisory locks can be taken", takeLock(ctx, session))
	d.strangers(ctx, db)
	d.judge("notify", "a notification arrived", naming(ctx, db,
		func(ctx context.Context, db *database.Database) error { return notified(ctx, session, db) }))
	d.clock(ctx, db)
	d.durability(ctx, db)
	if d.cfg.SessionProbeInterval > 0 {
		d.connections(ctx, db)
	}
}

// open prepares the connections; nil on an error.
func (d *doctor) open(ctx context.Context) *database.Database {
	db, err := database.Open(ctx, d.cfg)
	if !d.judge("settings", "read", err) {
		return nil
	}

	if redact.Weak(d.cfg.DatabaseURL) || redact.Weak(d.cfg.SessionDatabaseURL) {
		d.say(note, "password", "the database's password can be guessed, or is an ordinary word, which logs can only "+
			"mask where a password stands: make one with `openssl rand -hex 24`")
	}

	return db
}

// login reports the user and the server.
func (d *doctor) login(ctx context.Context, db *database.Database) (user string, ok bool) {
	var version string
	var number int
	err := db.Pool.QueryRow(ctx, `select current_setting('server_version'),
		current_setting('server_version_num')::int, current_user`).Scan(&version, &number, &user)
	if err == nil && number < 140000 {
		err = fmt.Errorf("Postgres %s is too old: 14 is the oldest that is supported", version) //nolint:staticcheck // a name
	}

	return user, d.judge("login", fmt.Sprintf("Postgres %s as %s", version, user), database.Explain(err))
}

// schema examines the version and the rights on every table.
func (d *doctor) schema(ctx context.Context, db *database.Database) {
	// Migrations create their tables in the first schema of the search path that exists.
	var there, create bool
	err := db.Pool.QueryRow(ctx,
		`select to_regclass('escrow_relayer_versions') is not null,
			coalesce(has_schema_privilege(current_schema(), 'create'), false)`).Scan(&there, &create)
	if err != nil {
		d.judge("schema", "", err)
		return
	}

	switch {
	case !there && d.cfg.MigrateOnStart && create:
		d.say(note, "schema", "none yet: the first instance makes it (MIGRATE_ON_START)")
	case !there:
		d.say(wrong, "schema", "none yet: run `escrow-relayer migrate` as a user who may create tables")
	default:
		state, err := migrations.Status(ctx, db.Session)
		if err == nil && state.Current < state.Latest && (!d.cfg.MigrateOnStart || !create) {
			err = fmt.Errorf("it is at version %d of %d: run `escrow-relayer migrate`", state.Current, state.Latest)
		}

		d.judge("schema", fmt.Sprintf("version %d of %d", state.Current, state.Latest), err)
	}

	switch {
	case create:
		d.say(fine, "create", "the user may create tables")
	case d.cfg.MigrateOnStart:
		d.say(wrong, "create",
			"the user may not create tables in the schema: grant usage, create on it, or migrate as somebody else")
		d.set("MIGRATE_ON_START", "false", "unless the user is granted create on the schema")
	default:
		d.say(fine, "create", "not allowed, and not needed")
	}

	if there {
		d.rights(ctx, db)
		d.left(ctx, db)
		d.fleet(ctx, db)
	}
}

// fleet reports what the instances say of the database, as status does: what they meet may not meet doctor. What may
// end within seconds, as what an instance reports that has just started, is a note.
func (d *doctor) fleet(ctx context.Context, db *database.Database) {
	f, err := readFleet(d.cfg, db)(ctx)
	for _, p := range f.Problems {
		switch p.Kind {
		case fleet.DatabaseRefuses, fleet.InstanceFault, fleet.Standing, fleet.ReadOnly:
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
	where l.chain_id <> $1 and exists (select from outbox o where o.chain_id = l.chain_id)
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

// rights reports the missing rights on the tables. A missing table is left to the version check.
// The sequences of identity columns need no separate rights.
func (d *doctor) rights(ctx context.Context, db *database.Database) {
	missing, err := missingRights(ctx, db, d.wanted())
	if err != nil {
		d.judge("rights", "", err)
		return
	}

	privileges := map[string][]string{} // by table
	for _, right := range missing {
		privilege, table, _ := strings.Cut(right, " ")
		privileges[table] = append(privileges[table], privilege)
	}

	for _, table := range slices.Sorted(maps.Keys(privileges)) {
		list := strings.Join(privileges[table], ", ")
		d.say(wrong, "rights", "%s on %s is missing: grant %s on %s to the user of DATABASE_URL", list, table, list, table)
	}

	if len(missing) == 0 {
		d.say(fine, "rights", "select, insert, update, delete on every table")
		d.judge("writes", "every table takes a row (nothing was kept)", naming(ctx, db, d.writes))
		d.judge("commit", "a commit is taken", naming(ctx, db, d.commits))
	}
}

// naming asks the database, and explains an error, or names what the answer waits for.
func naming(ctx context.Context, db *database.Database, ask func(context.Context, *database.Database) error) error {
	return database.Explain(fleet.Naming(ctx, db.Session, func(ctx context.Context) error { return ask(ctx, db) }))
}

// writes changes a row of every table that the instance changes, and adds a megabyte to one, in a
// transaction that is rolled back: a server that answers may be read-only, or its disk full.
func (d *doctor) writes(ctx context.Context, db *database.Database) error {
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}

	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, right := range d.wanted() {
		privilege, table, _ := strings.Cut(right, " ")
		if privilege != "update" {
			continue
		}

		var column string
		err := tx.QueryRow(ctx, anyColumn, table).Scan(&column)
		if errors.Is(err, pgx.ErrNoRows) { // a view, or missing
			continue
		}

		if err == nil {
			_, err = tx.Exec(ctx, fmt.Sprintf(`update %[1]s set %[2]s = %[2]s
				where ctid = (select ctid from %[1]s limit 1 for update skip locked)`, table, column))
		}

		if err != nil {
			return fmt.Errorf("change a row of %s: %w", table, err)
		}
	}

	if _, err := tx.Exec(ctx, addMegabyte); err != nil {
		return fmt.Errorf("add a megabyte: %w", err)
	}

	// What a constraint or a trigger has against the rows at the commit, it has now.
	if _, err := tx.Exec(ctx, `set constraints all immediate`); err != nil {
		return fmt.Errorf("commit the changed rows: %w", err)
	}

	return nil
}

// commits commits a row of its own in the table of the instances' reports, under the unused chain id
// 0, and removes it: only a commit shows that the database takes one.
func (d *doctor) commits(ctx context.Context, db *database.Database) error {
	return database.Within(ctx, commitWithin, func(ctx context.Context) error {
		err := fleet.Report(ctx, db.Pool, 0, &fleet.Self{ID: "doctor"}, time.Now(), d.secrets.Mask)
		if err == nil {
			_, err = db.Pool.Exec(ctx, `delete from instance_health where chain_id = 0`)
		}

		return err
	})
}

// commitWithin bounds a commit, which takes milliseconds.
const commitWithin = 5 * time.Second

// anyColumn names an updatable column of a table.
const anyColumn = `
	select quote_ident(a.attname) from pg_attribute a join pg_class c on c.oid = a.attrelid
	where c.oid = to_regclass($1) and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
	  and a.attidentity = '' and a.attgenerated = ''
	order by a.attnum limit 1`

// addMegabyte extends a table of every chain, under the unused chain id 0.
const addMegabyte = `
	insert into chain_blocks (chain_id, number, hash) select 0, n, repeat('x', 1000) from generate_series(1, 1000) n`

// wanted are the rights that an instance needs, as "privilege table". Every instance reads the
// tables of commands, to show them; only one that accepts commands, acts on them or removes them (RETENTION) writes
// there.
func (d *doctor) wanted() (rights []string) {
	on := func(table string, privileges ...string) {
		for _, p := range privileges {
			rights = append(rights, p+" "+table)
		}
	}
	for _, table := range []string{"factories", "escrows", "late_escrows", "relayer_instances", "cursors",
		"slot_ownership", "leadership", "chain_blocks", "events", "orphaned_events", "outbox", "findings", "endpoint_faults",
		"records", "folded_records", "event_types", "writers", "lock_turns", "ownership_lock", "processed_events",
		"escrow_registry", "escrow_records", "instance_health"} {
		on(table, "delete", "insert", "select", "update")
	}

	on("lock_identity", "select")
	for _, table := range []string{"senders", "commands", "command_claims", "command_attempts", "used_nonces", "replies"} {
		on(table, "select")
		if d.cfg.HasCommands() || d.cfg.Retention > 0 {
			on(table, "delete", "insert", "update")
		}
	}

	return rights
}

// strangers checks for other logins with access: any login that may connect can take an advisory
// lock.
func (d *doctor) strangers(ctx context.Context, db *database.Database) {
	var name string
	var connect, create bool
	err := db.Pool.QueryRow(ctx, `select current_database(), has_database_privilege('public', current_database(), 'connect'),
		coalesce(has_schema_privilege('public', current_schema(), 'create'), false)`).Scan(&name, &connect, &create)
	switch {
	case err != nil:
		d.judge("public", "", err)
		return
	case connect:
		d.say(note, "public", "every login of the server may connect to this database, take locks in it, and fill its disk "+
			"with large objects: revoke connect on database %s from public; grant connect on database %s to the logins of the fleet", name, name)
	default:
		d.say(fine, "public", "only those logins may connect that were granted it")
	}

	if create {
		d.say(note, "public", "every login may create tables in the schema: revoke create on schema public from public")
	}
}

// takeLock takes an unused advisory lock, and releases it.
func takeLock(ctx context.Context, conn *pgx.Conn) error {
	var key int64 // random, hence unused
	var taken, given, seen bool
	err := conn.QueryRow(ctx, `select key, pg_try_advisory_lock(key) from (select
		('x' || encode(substr(uuid_send(gen_random_uuid()), 1, 8), 'hex'))::bit(64)::bigint as key offset 0) k`).Scan(&key, &taken)
	if err == nil && taken {
		err = errors.Join(
			conn.QueryRow(ctx, `select exists (select from pg_locks where locktype = 'advisory'
				and pid = pg_backend_pid())`).Scan(&seen),
			conn.QueryRow(ctx, `select pg_advisory_unlock($1)`, key).Scan(&given),
		)
	}

	switch {
	case err != nil:
		return fmt.Errorf("take an advisory lock: %w", err)
	case !seen || !given:
		return errors.New("an advisory lock that was taken is not to be seen in pg_locks: a proxy in between changes sessions")
	}

	return nil
}

// notified sends a notification through the pool and waits for it on the session.
func notified(ctx context.Context, session *pgx.Conn, db *database.Database) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := session.Exec(ctx, `listen relayer_doctor`); err != nil {
		return fmt.Errorf("listen: %w", err)
	}

	if _, err := db.Pool.Exec(ctx, `notify relayer_doctor`); err != nil {
		return fmt.Errorf("notify: %w", err)
	}

	if _, err := session.WaitForNotification(ctx); err != nil {
		return fmt.Errorf("no notification within 5s: are DATABASE_URL and SESSION_DATABASE_URL the same database: %w", err)
	}

	return nil
}

// clock compares this machine's clock with the database's.
func (d *doctor) clock(ctx context.Context, db *database.Database) {
	var theirs time.Time
	before := time.Now()
	err := db.Pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&theirs)
	took := time.Since(before)
	skew := theirs.Sub(before.Add(took / 2))
	text := fmt.Sprintf("the database is %s ahead of this machine, give or take %s", skew.Round(time.Millisecond),
		(took / 2).Round(time.Millisecond))
	switch {
	case err == nil && skew.Abs() > skewWrong:
		d.say(wrong, "clock", "%s: set the clocks by NTP", text)
	case err == nil && skew.Abs() > skewNoted:
		d.say(note, "clock", "%s", text)
	default:
		d.judge("clock", text, err)
	}
}

// durability reports whether a server remembers its commits after a crash. Lost events are read and
// published again; a command that was sent must not be lost.
func (d *doctor) durability(ctx context.Context, db *database.Database) {
	var set string
	err := db.Pool.QueryRow(ctx, `show synchronous_commit`).Scan(&set)
	switch {
	case err != nil || set != "off":
		d.judge("durability", "synchronous_commit is "+set, err)
	case d.cfg.SendersFile != "":
		d.say(wrong, "durability", "synchronous_commit is off: a crash forgets commands that were sent: set it to on")
	default:
		d.say(note, "durability", "synchronous_commit is off: what a crash forgets is published again, and not "+
			"retracted if a reorganisation deeper than the finality replaces it at that moment")
	}
}

// connections compares the server's limit with the fleet's.
func (d *doctor) connections(ctx context.Context, db *database.Database) {
	var most, used int
	err := db.Pool.QueryRow(ctx, `select current_setting('max_connections')::int
			- current_setting('superuser_reserved_connections')::int,
		(select count(*) from pg_stat_activity where backend_type = 'client backend')`).Scan(&most, &used)
	chains := max(1, d.cfg.Chains)
	want := (int(d.cfg.DBMaxConns) + 1) * d.cfg.Total * chains
	text := fmt.Sprintf("%d in use of %d; the fleet takes up to %d (TOTAL_PARTITIONS times DB_MAX_CONNS and a session, "+
		"for each of %d chains)", used, most, want, chains)
	if err == nil && want > most {
		d.say(wrong, "connections", "%s", text)
		if fit := most/d.cfg.Total/chains - 1; fit >= 4 {
			d.set("DB_MAX_CONNS", fmt.Sprint(fit), "or raise the server's max_connections")
		}

		return
	}

	d.judge("connections", text, err)
}
