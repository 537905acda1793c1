package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// role is what relayers log in as: the owner of the database, no superuser.
const role = "relayer"

// dbDelay is by how much each answer of the database is delayed under DBSlow.
const dbDelay = 150 * time.Millisecond

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
	`create table chaos_slow (per_row double precision)`,
	`create function chaos_slow() returns trigger language plpgsql security definer as $$
		begin
			perform pg_sleep((select sum(per_row) from chaos_slow));
			return null;
		end $$`,
	`create trigger chaos_slow after delete on outbox for each row execute function chaos_slow()`,
	`create trigger chaos_slow after update of sent_block on slot_ownership for each row execute function chaos_slow()`,
	`create table chaos_steps (app text, step text)`,
	`create function chaos_step() returns trigger language plpgsql security definer as $$
		begin
			while exists (select from chaos_steps where app = current_setting('application_name') and step = tg_argv[0]) loop
				perform pg_sleep(0.02);
			end loop;
			return null;
		end $$`,
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

// Steps of the way of an event in which an instance can be stopped, beside commandSteps.
const (
	claims   = "claims"   // it changes the owner of slots, or their places
	isAlive  = "is alive" // it writes that it is alive
	sentNote = "sent"     // it notes what Pub/Sub has acknowledged
)

// frozenTables are the tables that a transaction may have written to last when its instance is frozen: steps, too.
var frozenTables = []string{"cursors", "chain_blocks", "events"}

// steps are the triggers that stop an instance inside a step: in a statement, or in the commit of a transaction that
// has made it.
var steps = func() (triggers []string) {
	trigger := func(step, when string) {
		triggers = append(triggers, fmt.Sprintf(`create trigger "chaos %s" %s for each statement
			execute function chaos_step('%s')`, step, when, step))
	}
	for _, table := range frozenTables {
		trigger(table, "after insert or update on "+table)
	}

	trigger(claims, "before update on slot_ownership")
	trigger(isAlive, "before update of seen_at on relayer_instances")
	trigger(sentNote, "before delete on outbox")
	trigger(sentNote, "before update of sent_block on slot_ownership")
	for _, step := range commandSteps {
		table, event, _ := strings.Cut(step, " ")
		if event, atCommit := strings.CutSuffix(event, " commit"); atCommit {
			triggers = append(triggers, fmt.Sprintf(`create constraint trigger "chaos %s" after %s on %s
				deferrable initially deferred for each row execute function chaos_step('%s')`, step, event, table, step))
		} else {
			trigger(step, "after "+event+" on "+table)
		}
	}

	return triggers
}()

// paused reports whether a server process of an instance is kept waiting by a trigger.
const paused = `select exists (select from pg_stat_activity where application_name = $1 and wait_event = 'PgSleep')`

// stepPatience is how long a fault waits for somebody to come to its step.
const stepPatience = 3 * time.Second

// inStep waits until an instance is inside a step, does something there, and lets the step go on, if it does. It
// reports whether the instance came to it. The database may be down for another fault.
func (r *run) inStep(ctx context.Context, p *lab.Process, step string, do func()) (came bool, err error) {
	if r.stopAt(ctx, p, step) == nil {
		for begun := time.Now(); !came && time.Since(begun) < stepPatience; {
			if r.lab.DB.QueryRow(ctx, paused, application(p)).Scan(&came) != nil || !pause(ctx, 5*time.Millisecond) {
				break
			}
		}
	}

	if came {
		do()
	}

	return came, r.goOn(ctx, p)
}

// stopAt has an instance stop in a step until goOn. After an error the server may have stored that.
func (r *run) stopAt(ctx context.Context, p *lab.Process, step string) error {
	_, err := r.lab.DB.Exec(ctx, `insert into chaos_steps values ($1, $2)`, application(p), step)
	return err
}

func (r *run) goOn(ctx context.Context, p *lab.Process) error {
	return r.surely(ctx, `delete from chaos_steps where app = $1`, application(p))
}

// application is the name of an instance's connections.
func application(p *lab.Process) string { return "escrow-relayer/" + p.ID }

// freezeInCommit stops a process by SIGSTOP while it has a transaction open that has written to a
// table: the rows that it has locked stay locked.
func (r *run) freezeInCommit(ctx context.Context, f Fault) error {
	i, p := r.alive(f.Who)
	if p == nil {
		return nil
	}

	defer r.back(i)
	// The statement ends then, and the server waits for the next one.
	came, err := r.inStep(ctx, p, frozenTables[f.N%len(frozenTables)], func() { p.Signal(syscall.SIGSTOP) })
	defer p.Signal(syscall.SIGCONT)
	if came {
		r.endure(ctx, f, p.ID)
	}

	return err
}

// hangClaimer makes the slot checks of an instance hang while the rest of it lives. With Keep it cannot
// write from now on that it is alive; else it is started again, and cannot change the owner of a slot.
func (r *run) hangClaimer(ctx context.Context, f Fault) error {
	i, p := r.alive(f.Who)
	if p == nil {
		return nil
	}

	defer r.back(i)
	step := isAlive
	if !f.Keep {
		step = claims
		p.Kill()
	}

	err := r.stopAt(ctx, p, step)
	if !f.Keep {
		if again := r.again(i); again != nil {
			return again
		}
	}

	if err == nil { // else the database is down for another fault
		r.endure(ctx, f, p.ID)
	}

	return r.goOn(ctx, p)
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
	// Flushed: a crash that comes at once does not take them away.
	for _, statement := range slices.Concat(instruments, steps) {
		if _, err := r.lab.DB.Exec(ctx, `set local synchronous_commit = on; `+statement); err != nil {
			return fmt.Errorf("instrument the database: %w", err)
		}
	}

	return nil
}

// Connections, in the words of pg_stat_activity; {who} is the number of an instance.
const (
	ofFleet    = `application_name like 'escrow-relayer/%'`
	ofInstance = `application_name = 'escrow-relayer/r{who}'`
)

// terminates ends connections. Postgres may be down for another fault, here and in those below: then this one has no
// effect.
func terminates(where string) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error {
		r.terminate(ctx, strings.ReplaceAll(where, "{who}", strconv.Itoa(f.Who)))
		return nil
	}
}

// flap ends the session of whichever instance leads, again and again.
func (r *run) flap(ctx context.Context, f Fault) error {
	leads := fmt.Sprintf(`exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted
		and (l.classid::bigint << 32 | l.objid::bigint) = lock_key('%s', %d, ''))`,
		election.Leader, r.chain.ChainID().Int64())
	r.repeat(ctx, f.For, 250*time.Millisecond, func() { r.terminate(ctx, leads) })

	return nil
}

func (r *run) cancelStatements(ctx context.Context, f Fault) error {
	r.repeat(ctx, f.For, 20*time.Millisecond, func() {
		_, _ = r.lab.DB.Exec(ctx, `select pg_cancel_backend(pid) from pg_stat_activity where state = 'active' and `+ofFleet)
	})

	return nil
}

func (r *run) refuse(ctx context.Context, f Fault) error {
	if _, err := r.lab.DB.Exec(ctx, `insert into chaos_refusal values ($1)`, refusals[f.N]); err == nil {
		pause(ctx, f.For)
	}

	return r.surely(ctx, `delete from chaos_refusal`)
}

// lockCursors locks the rows that commits need.
const lockCursors = `select from cursors order by chain_id, instance_id for update`

func (r *run) lockRows(ctx context.Context, f Fault) error {
	r.lock(ctx, f.For, `select from leadership for update`, lockCursors)
	return nil
}

// deadlock makes that of a commit, which locks its cursor and then remembers a block: here it is the other way round,
// and it is the commit that Postgres ends.
func (r *run) deadlock(ctx context.Context, f Fault) error {
	r.repeat(ctx, f.For, 0, func() {
		r.lock(ctx, 0, `set local deadlock_timeout = '20s'`,
			`insert into chain_blocks select chain_id, n, 'nobody''s' from cursors,
				generate_series(next_block, next_block + 8) n on conflict do nothing`, `select pg_sleep(0.05)`, lockCursors)
	})

	return nil
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
func (r *run) surely(ctx context.Context, statement string, args ...any) error {
	for {
		_, err := r.lab.DB.Exec(ctx, statement, args...)
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
func (r *run) takeConnections(ctx context.Context, f Fault) error {
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
			return nil // the database is down for another fault
		}

		taken = append(taken, c)
	}

	defer pause(ctx, f.For)

	return terminates(ofInstance)(r, ctx, f)
}

// restarts Postgres, one at a time, at once or later; with Keep the later one follows an orderly end.
func restarts(mode testpg.Mode, later bool) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error {
		r.restarting.Lock()
		defer r.restarting.Unlock()
		how := mode
		if later && f.Keep {
			how = testpg.Fast
		}

		if err := r.lab.PG.Down(ctx, how); err != nil {
			return err
		}

		if later {
			pause(ctx, f.For)
		}

		return r.lab.PG.Up(ctx)
	}
}

func (r *run) terminate(ctx context.Context, where string) {
	// The database may be down: then there is nothing to terminate.
	_, _ = r.lab.DB.Exec(ctx,
		`select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid <> pg_backend_pid() and `+where)
}

// killAfterAck kills an instance when Pub/Sub has acknowledged messages, and it is about to note that. It ends the
// statement, too: the server process would not notice that its client is gone.
func (r *run) killAfterAck(ctx context.Context, p *lab.Process) error {
	_, err := r.inStep(ctx, p, sentNote, func() {
		p.Kill()
		r.terminate(ctx, `application_name = '`+application(p)+`'`)
	})
	p.Kill()

	return err
}
