package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// role is what relayers log in as: the owner of the database, no superuser.
const role = "relayer"

// dbDelay is by how much each answer of the database is delayed under DBSlow.
const dbDelay = 150 * time.Millisecond

// holdKey is the advisory lock that the notes of what is sent wait for, and deletions from the outbox.
const holdKey = 4242

// instruments are triggers that make the database fail, and that record who writes messages of a slot
// that is another's. They are created once the relayers have made the schema.
var instruments = []string{
	`create table chaos_refusal (code text not null)`,
	`create function chaos_refuse() returns trigger language plpgsql security definer as $$
		declare c text;
		begin
			select code into c from chaos_refusal limit 1;
			if found then raise exception 'injected' using errcode = c; end if;
			return null;
		end $$`,
	`create trigger chaos_refuse before insert on outbox for each statement execute function chaos_refuse()`,
	`create trigger chaos_refuse before insert on events for each statement execute function chaos_refuse()`,
	`create trigger chaos_refuse before update on cursors for each statement execute function chaos_refuse()`,
	`create function chaos_hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(` +
		strconv.Itoa(holdKey) + `); return null; end $$`,
	`create trigger chaos_hold before delete on outbox for each statement execute function chaos_hold()`,
	`create trigger chaos_hold before update of sent_block on slot_ownership for each statement
		execute function chaos_hold()`,
	`create table chaos_slow (per_row double precision)`,
	`create function chaos_slow() returns trigger language plpgsql security definer as $$
		begin
			perform pg_sleep((select sum(per_row) from chaos_slow));
			return null;
		end $$`,
	`create trigger chaos_slow after delete on outbox for each row execute function chaos_slow()`,
	`create trigger chaos_slow after update of sent_block on slot_ownership for each row execute function chaos_slow()`,
	`create table chaos_pause (app text, tab text)`,
	`create function chaos_pause() returns trigger language plpgsql security definer as $$
		begin
			while exists (select from chaos_pause where app = current_setting('application_name') and tab = tg_table_name) loop
				perform pg_sleep(0.02);
			end loop;
			return null;
		end $$`,
	`create trigger chaos_pause after insert or update on cursors for each statement execute function chaos_pause()`,
	`create trigger chaos_pause after insert or update on chain_blocks for each statement execute function chaos_pause()`,
	`create trigger chaos_pause after insert on events for each statement execute function chaos_pause()`,
	`create trigger chaos_pause before update on slot_ownership for each statement execute function chaos_pause()`,
	`create trigger chaos_pause before update of seen_at on relayer_instances for each statement
		execute function chaos_pause()`,
	`create table chaos_foreign (chain_id bigint, slot smallint, event text, writer text, owner text)`,
	`create function chaos_writer() returns trigger language plpgsql security definer as $$
		declare o text;
		begin
			select owner into o from slot_ownership where chain_id = new.chain_id and slot = new.slot;
			if current_setting('application_name') is distinct from 'escrow-relayer/' || o then
				insert into chaos_foreign values (new.chain_id, new.slot,
					new.type || ' ' || new.block_number || ':' || new.log_index,
					current_setting('application_name'), o);
			end if;
			return null;
		end $$`,
	`create trigger chaos_writer after insert on events for each row when (new.told) execute function chaos_writer()`,
}

// frozenTables are the tables that a transaction may have written to last when its instance is frozen.
var frozenTables = []string{"cursors", "chain_blocks", "events"}

// paused reports whether a server process of an instance is kept waiting by a trigger.
const paused = `select exists (select from pg_stat_activity where application_name = $1 and wait_event = 'PgSleep')`

// caught waits until a trigger keeps a server process of an instance waiting, which app names, and says
// whether one does.
func (r *run) caught(ctx context.Context, app string) (yes bool) {
	for begun := time.Now(); !yes && time.Since(begun) < stepPatience; {
		if r.lab.DB.QueryRow(ctx, paused, app).Scan(&yes) != nil || !pause(ctx, 5*time.Millisecond) {
			break
		}
	}

	return yes
}

// freezeInCommit stops a process by SIGSTOP while it has a transaction open that has written to a
// table: the rows that it has locked stay locked.
func (r *run) freezeInCommit(ctx context.Context, f Fault) {
	i, p := r.alive(f.Who)
	if p == nil {
		return
	}

	defer r.back(i)
	app, table := "escrow-relayer/"+p.ID, frozenTables[f.N%len(frozenTables)]
	if _, err := r.lab.DB.Exec(ctx, `insert into chaos_pause values ($1, $2)`, app, table); err != nil {
		_ = r.surely(ctx, `delete from chaos_pause`) // the server may have stored it, and gone down before it said so
		return
	}

	caught := r.caught(ctx, app)
	if caught {
		p.Signal(syscall.SIGSTOP)
		defer p.Signal(syscall.SIGCONT)
	}

	// The statement ends now, and the server waits for the next one.
	_ = r.surely(ctx, `delete from chaos_pause`)
	if caught {
		r.endure(ctx, f, p.ID)
	}
}

// hangClaimer makes the slot checks of an instance hang while the rest of it lives. With Keep it cannot
// write from now on that it is alive; else it is started again, and cannot change the owner of a slot.
func (r *run) hangClaimer(ctx context.Context, f Fault) error {
	i, p := r.alive(f.Who)
	if p == nil {
		return nil
	}

	defer r.back(i)
	table := "relayer_instances"
	if !f.Keep {
		table = "slot_ownership"
		p.Kill()
	}

	_, err := r.lab.DB.Exec(ctx, `insert into chaos_pause values ($1, $2)`, "escrow-relayer/"+p.ID, table)
	if !f.Keep {
		if again := r.again(i); again != nil {
			return again
		}
	}

	if err == nil { // else the database is down for another fault; it may have stored the row nevertheless
		r.endure(ctx, f, p.ID)
	}

	return r.surely(ctx, `delete from chaos_pause`)
}

// slowNotes makes each slot whose place is noted, and each row that is deleted from the outbox, take f.N milliseconds.
func (r *run) slowNotes(ctx context.Context, f Fault) error {
	if _, err := r.lab.DB.Exec(ctx, `insert into chaos_slow values ($1)`, float64(f.N)/1000); err == nil {
		pause(ctx, f.For)
	}

	return r.surely(ctx, `delete from chaos_slow`)
}

// instrument creates the triggers.
func (r *run) instrument(ctx context.Context) error {
	all := instruments
	if r.way != nil {
		all = slices.Concat(all, commandInstruments)
	}

	for _, statement := range all { // flushed: a crash that comes at once does not take them away
		if _, err := r.lab.DB.Exec(ctx, `set local synchronous_commit = on; `+statement); err != nil {
			return fmt.Errorf("instrument the database: %w", err)
		}
	}

	return nil
}

// database makes Postgres itself fail. It may be down for another fault: then this one has no effect.
func (r *run) database(ctx context.Context, f Fault) error {
	switch f.Kind {
	case Session:
		r.terminate(ctx, `application_name = 'escrow-relayer/r`+strconv.Itoa(f.Who)+`' and exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory')`)
	case Backends:
		r.terminate(ctx, `application_name like 'escrow-relayer/%'`)
	case Flap:
		r.flap(ctx, f.For)
	case BackendKill:
		return r.killBackend(ctx)
	case DBCancel:
		r.repeat(ctx, f.For, 20*time.Millisecond, func() {
			_, _ = r.lab.DB.Exec(ctx,
				`select pg_cancel_backend(pid) from pg_stat_activity where application_name like 'escrow-relayer/%'
					and state = 'active'`)
		})
	case Restart:
		return r.restart(ctx, testpg.Fast, 0)
	case Crash:
		return r.restart(ctx, testpg.Immediate, 0)
	case DBDown:
		mode := testpg.Immediate
		if f.Keep {
			mode = testpg.Fast
		}

		return r.restart(ctx, mode, f.For)
	case DBRefuse:
		if _, err := r.lab.DB.Exec(ctx, `insert into chaos_refusal values ($1)`, refusals[f.N]); err == nil {
			pause(ctx, f.For)
		}

		return r.surely(ctx, `delete from chaos_refusal`)
	case DBConnections:
		r.takeConnections(ctx, f)
	case DBLocks:
		r.lock(ctx, f.For, `select from leadership for update`,
			`select from cursors order by chain_id, instance_id for update`)
	case DBDeadlock:
		end := time.Now().Add(f.For)
		for time.Now().Before(end) && ctx.Err() == nil {
			// A commit locks its cursor and then remembers a block: here it is the other way round, and it
			// is the commit that Postgres ends.
			r.lock(ctx, 0, `set local deadlock_timeout = '20s'`,
				`insert into chain_blocks select chain_id, n, 'nobody''s' from cursors,
					generate_series(next_block, next_block + 8) n on conflict do nothing`,
				`select pg_sleep(0.05)`, `select from cursors order by chain_id, instance_id for update`)
		}
	}

	return nil
}

// flap ends the session of whichever instance leads, again and again.
func (r *run) flap(ctx context.Context, d time.Duration) {
	leads := fmt.Sprintf(`exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted
		and (l.classid::bigint << 32 | l.objid::bigint) = lock_key('%s', %d, ''))`,
		election.Leader, r.chain.ChainID().Int64())
	r.repeat(ctx, d, 250*time.Millisecond, func() { r.terminate(ctx, leads) })
}

// repeat does something once per interval for a time.
func (r *run) repeat(ctx context.Context, total, every time.Duration, do func()) {
	for end := time.Now().Add(total); time.Now().Before(end); {
		do()
		if !pause(ctx, every) {
			return
		}
	}
}

// surely runs a statement until it has succeeded.
func (r *run) surely(ctx context.Context, statement string) error {
	for {
		_, err := r.lab.DB.Exec(ctx, statement)
		if err == nil || !pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// lock runs statements in a transaction, keeps it open for a time, and rolls it back. That the
// database fails meanwhile is no error.
func (r *run) lock(ctx context.Context, held time.Duration, statements ...string) {
	tx, err := r.lab.DB.Begin(ctx)
	if err != nil {
		pause(ctx, 50*time.Millisecond)
		return
	}

	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s); err != nil {
			return
		}
	}

	pause(ctx, held)
}

// takeConnections opens connections as the relayers' role until there are no more.
func (r *run) takeConnections(ctx context.Context, f Fault) {
	var taken []*pgconn.PgConn
	defer func() {
		for _, c := range taken {
			_ = c.Close(context.WithoutCancel(ctx))
		}
	}()
	for ctx.Err() == nil {
		c, err := pgconn.Connect(ctx, asRole(r.lab)+"&application_name=another+client")
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "53300" {
			break
		}

		if err != nil {
			return // the database is down for another fault
		}

		taken = append(taken, c)
	}

	r.terminate(ctx, `application_name = 'escrow-relayer/r`+strconv.Itoa(f.Who)+`'`)
	pause(ctx, f.For)
}

// restart Postgres, one at a time.
func (r *run) restart(ctx context.Context, mode testpg.Mode, down time.Duration) error {
	r.restarting.Lock()
	defer r.restarting.Unlock()
	if err := r.lab.PG.Down(ctx, mode); err != nil {
		return err
	}

	pause(ctx, down)

	return r.lab.PG.Up(ctx)
}

func (r *run) terminate(ctx context.Context, where string) {
	// The database may be down: then there is nothing to terminate.
	_, _ = r.lab.DB.Exec(ctx,
		`select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid <> pg_backend_pid() and `+where)
}

// killAfterAck makes notes of what is sent wait until one of the process waits: then Pub/Sub has
// acknowledged its messages. It kills the process at that moment, and ends its statement: the server
// process that waits would not notice that its client is gone.
func (r *run) killAfterAck(ctx context.Context, p *lab.Process) {
	defer p.Kill()
	conn, err := pgx.Connect(ctx, r.lab.URL)
	if err != nil {
		return
	}

	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, holdKey); err != nil {
		return
	}

	for range 50 {
		var waits bool
		err := conn.QueryRow(ctx, `select exists (`+holding+`)`, holdKey, "escrow-relayer/"+p.ID).Scan(&waits)
		if err != nil || waits || !pause(ctx, 20*time.Millisecond) {
			break
		}
	}

	p.Kill()
	_, _ = conn.Exec(ctx, `select pg_terminate_backend(w.pid) from (`+holding+`) w`, holdKey, "escrow-relayer/"+p.ID)
}

// holding finds the server processes of an instance that wait for the lock.
const holding = `select l.pid from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory'
	and l.objid = $1 and not l.granted and a.application_name = $2`
