package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// role is whom relayers log in as: the owner of the database, and no superuser.
const role = "relayer"

// holdKey is the advisory lock that deletions from the outbox wait for.
const holdKey = 4242

// instruments are how the database is made to fail, and to tell on those who write what is not theirs. They are put in once the schema is there.
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
	`create trigger chaos_refuse before insert on processed_events for each statement execute function chaos_refuse()`,
	`create trigger chaos_refuse before update on cursors for each statement execute function chaos_refuse()`,
	`create function chaos_hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(` + strconv.Itoa(holdKey) + `); return null; end $$`,
	`create trigger chaos_hold before delete on outbox for each statement execute function chaos_hold()`,
	`create table chaos_foreign (chain_id bigint, slot smallint, event_id text, writer text, owner text)`,
	`create function chaos_writer() returns trigger language plpgsql security definer as $$
		declare o text;
		begin
			select owner into o from slot_ownership where chain_id = new.chain_id and slot = new.slot;
			if current_setting('application_name') is distinct from 'escrow-relayer/' || o then
				insert into chaos_foreign values (new.chain_id, new.slot, new.event_id, current_setting('application_name'), o);
			end if;
			return null;
		end $$`,
	`create trigger chaos_writer after insert on outbox for each row execute function chaos_writer()`,
}

func (r *run) instrument(ctx context.Context) error {
	for _, statement := range instruments {
		if _, err := r.lab.DB.Exec(ctx, statement); err != nil {
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
		leads := fmt.Sprintf(`exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted and (l.classid::bigint << 32 | l.objid::bigint) = %d)`,
			election.LeaderKey(r.chain.ChainID().Int64()))
		r.repeat(ctx, f.For, 250*time.Millisecond, func() { r.terminate(ctx, leads) })
	case DBCancel:
		r.repeat(ctx, f.For, 20*time.Millisecond, func() {
			_, _ = r.lab.DB.Exec(ctx, `select pg_cancel_backend(pid) from pg_stat_activity where application_name like 'escrow-relayer/%' and state = 'active'`)
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
		if _, err := r.lab.DB.Exec(ctx, `insert into chaos_refusal values ($1)`, refusals[f.N]); err != nil {
			return nil
		}
		pause(ctx, f.For)
		return r.surely(ctx, `delete from chaos_refusal`)
	case DBConnections:
		return r.takeConnections(ctx, f)
	case DBLocks:
		return r.lock(ctx, f.For, `select from leadership for update`, `select from cursors order by chain_id, instance_id for update`)
	case DBDeadlock:
		end := time.Now().Add(f.For)
		for time.Now().Before(end) && ctx.Err() == nil {
			// A commit locks its cursor and then remembers a block: here it is the other way round, and it is the commit that Postgres ends.
			if err := r.lock(ctx, 0, `set local deadlock_timeout = '20s'`,
				`insert into chain_blocks select chain_id, n, 'nobody''s' from cursors, generate_series(next_block, next_block + 8) n on conflict do nothing`,
				`select pg_sleep(0.05)`, `select from cursors order by chain_id, instance_id for update`); err != nil {
				return err
			}
		}
	}
	return nil
}

// repeat does something now and then for a time.
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

// lock runs statements in a transaction, keeps it open for a time, and rolls it back. That the database fails meanwhile is no error.
func (r *run) lock(ctx context.Context, held time.Duration, statements ...string) error {
	tx, err := r.lab.DB.Begin(ctx)
	if err != nil {
		pause(ctx, 50*time.Millisecond)
		return nil
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s); err != nil {
			return nil
		}
	}
	pause(ctx, held)
	return nil
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
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "53300" {
			break
		}
		if err != nil {
			return nil // the database is down for another fault
		}
		taken = append(taken, c)
	}
	r.terminate(ctx, `application_name = 'escrow-relayer/r`+strconv.Itoa(f.Who)+`'`)
	pause(ctx, f.For)
	return nil
}

// disturb the network between an instance and Postgres, or between all and Postgres, for a time.
func (r *run) disturb(ctx context.Context, f Fault) error {
	r.mu.Lock()
	hit := []*faults.TCP{r.network[f.Who]}
	if f.Both {
		hit = nil
		for _, t := range r.network {
			hit = append(hit, t)
		}
	}
	r.mu.Unlock()
	var undo []func() error
	for _, t := range hit {
		switch f.Kind {
		case DBCut:
			undo = append(undo, t.Cut())
		case DBFreeze:
			undo = append(undo, t.Freeze())
		case DBSlow:
			undo = append(undo, t.Slow(150*time.Millisecond))
		}
	}
	pause(ctx, f.For)
	var errs []error
	for _, u := range undo {
		errs = append(errs, u())
	}
	return errors.Join(errs...)
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
	_, _ = r.lab.DB.Exec(ctx, `select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid <> pg_backend_pid() and `+where)
}

// killAfterAck keeps deletions from the outbox waiting until one waits that belongs to the process, which has thus been told that its messages
// are stored, and kills it then. Its statement ends with it: a server process that waits would not notice.
func (r *run) killAfterAck(ctx context.Context, p *lab.Process) error {
	defer p.Kill()
	conn, err := pgx.Connect(ctx, r.lab.URL)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, holdKey); err != nil {
		return nil
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
	return nil
}

// holding are the server processes of an instance that wait for the lock.
const holding = `select l.pid from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' and l.objid = $1 and not l.granted and a.application_name = $2`
