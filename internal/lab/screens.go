package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// Fault is what happens to a running fleet, and what every screen says of it.
type Fault struct {
	Name  string
	Says  string // a regular expression
	Ready bool   // an instance that is well says nothing on /readyz
	Alert string // fires: a rule of its own, or the kind of a problem
	Begin func(context.Context) (end func() error, err error)
}

// Screens are the names of what an operator looks at.
var Screens = []string{"page", "/readyz", "status", "doctor"}

// Faults are what may happen to the lab's fleet, whose database and Pub/Sub are behind proxies. leader returns who
// leads.
func (l *Lab) Faults(database, pubsub *faults.TCP, leader func() *Process) []Fault {
	const function = `create or replace function refuse() returns trigger language plpgsql as $$ begin
		raise exception using message = tg_argv[0], errcode = tg_argv[1]; end $$`
	refuse := func(message, code string, tables ...string) func(context.Context) (func() error, error) {
		begin, end := []string{function}, []string(nil)
		for _, table := range tables {
			begin = append(begin, fmt.Sprintf(`create constraint trigger refuse after insert or update or delete on %s
				deferrable initially deferred for each row execute function refuse('%s', '%s')`, table, message, code))
			end = append(end, `drop trigger refuse on `+table)
		}

		return l.statements(begin, end)
	}
	setting := func(name, value string) func(context.Context) (func() error, error) {
		reload := `select pg_reload_conf()`
		return l.statements([]string{`alter system set ` + name + ` = ` + value, reload},
			[]string{`set default_transaction_read_only = off`, `alter system reset ` + name, reload})
	}
	lock := func(table string) func(context.Context) (func() error, error) {
		return l.statements([]string{`begin`, `lock table ` + table}, []string{`rollback`})
	}
	const down = "RelayerDatabaseDown"

	return []Fault{
		{"commits to one table refused", "no cursors today", false, down, refuse("no cursors today", "P0001", "cursors")},
		{"every commit refused", "no commits today|refuses their writes|has taken nothing", false, down,
			refuse("no commits today", "P0001", "cursors", "leadership", "relayer_instances", "events", "outbox",
				"chain_blocks", "instance_health")},
		{"disk full (SQLSTATE 53100)", "No space left|database is full", false, down,
			// One instance alone stores a block's hash.
			refuse("No space left on device", "53100", "chain_blocks", "cursors")},
		{"read-only", "read-only", false, down, setting("default_transaction_read_only", "on")},
		{"commits wait for a standby that is gone", "synchronous standby", false, down,
			setting("synchronous_standby_names", "nobody")},
		{"`LOCK TABLE` of what is stored", `cursors is locked by pid \d+, login`, false, down, lock("cursors")},
		{"`LOCK TABLE` that lets read", `instance_health is locked by pid \d+, login`, false, down,
			lock("instance_health in exclusive mode")},
		{"no connection left", "too many clients|connection slots are reserved", false, down, l.occupy},
		{"server frozen", "does not answer|has not answered|no answer within", false, down,
			func(context.Context) (func() error, error) { return database.Freeze(), nil }},
		{"leader frozen", "has been heard of", true, "",
			func(context.Context) (func() error, error) {
				p := leader()
				p.Signal(syscall.SIGSTOP)
				return func() error { p.Signal(syscall.SIGCONT); return nil }, nil
			}},
		{"Pub/Sub gone", "Pub/Sub|connection refused", true, "old_outbox",
			func(context.Context) (func() error, error) { return pubsub.Cut(), nil }},
	}
}

// statements runs some on a connection of its own, and at the end others there.
func (l *Lab) statements(begin, end []string) func(context.Context) (func() error, error) {
	return func(ctx context.Context) (func() error, error) {
		conn, err := pgx.Connect(ctx, l.URL)
		if err != nil {
			return nil, err
		}

		run := func(all []string) error {
			for _, sql := range all {
				if _, err := conn.Exec(ctx, sql); err != nil {
					return fmt.Errorf("%s: %w", sql, err)
				}
			}

			return nil
		}

		return func() error { return errors.Join(run(end), conn.Close(ctx)) }, run(begin)
	}
}

// occupy takes every connection of the server, those of the fleet too.
func (l *Lab) occupy(ctx context.Context) (end func() error, err error) {
	var held []*pgx.Conn
	end = func() (err error) {
		for _, c := range held {
			err = errors.Join(err, c.Close(ctx))
		}

		return err
	}
	for theirs := true; theirs; {
		c, err := pgx.Connect(ctx, l.URL)
		if full := new(pgconn.PgError); errors.As(err, &full) && full.Code == "53300" {
			tag, err := held[0].Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
				where application_name like 'escrow-relayer/%'`)
			if theirs = tag.RowsAffected() > 0; err != nil {
				return end, err
			}
		} else if err != nil {
			return end, err
		} else {
			held = append(held, c)
		}
	}

	return end, nil
}

// Quiet waits until no screen says what a fault is about to make it say.
func (l *Lab) Quiet(ctx context.Context, p *Process, f *Fault) error {
	says := regexp.MustCompile(f.Says)

	return Until(ctx, 100*time.Millisecond, "the screens, which say before it begins: "+f.Name, func() bool {
		return !slices.ContainsFunc(Screens, func(name string) bool { return says.MatchString(l.screen(ctx, p, name)) })
	})
}

// Told looks at every screen, of an instance and of the commands, until it names a fault that began now; it returns how
// long that took.
func (l *Lab) Told(ctx context.Context, p *Process, f *Fault) map[string]time.Duration {
	begun, says := time.Now(), regexp.MustCompile(f.Says)
	took := map[string]time.Duration{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range Screens {
		if f.Ready && name == "/readyz" {
			continue
		}

		wg.Go(func() {
			look := time.NewTicker(100 * time.Millisecond)
			defer look.Stop()
			for ctx.Err() == nil {
				if says.MatchString(l.screen(ctx, p, name)) {
					mu.Lock()
					defer mu.Unlock()
					took[name] = time.Since(begun)

					return
				}

				<-look.C
			}
		})
	}

	wg.Wait()

	return took
}

// screen is what a screen says now.
func (l *Lab) screen(ctx context.Context, p *Process, name string) string {
	path, asked := map[string]string{"page": "/", "/readyz": "/readyz"}[name]
	if !asked {
		cmd := exec.CommandContext(ctx, l.Bin, name)
		cmd.Env = l.Environ("operator", 0, 2, nil)
		text, _ := cmd.CombinedOutput() // its exit code says that something is wrong

		return string(text)
	}

	code, text, err := p.Get(ctx, path)
	switch {
	case err != nil:
		return err.Error()
	case name == "/readyz" && code == http.StatusOK:
		return ""
	}

	return string(text)
}
