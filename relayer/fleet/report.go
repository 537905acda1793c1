package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/election"
)

// Watchdog tells how long one watch has stored no block while there are blocks to store, whatever the cause; or, of
// something without blocks, since when it has been wrong. The zero value is ready, and safe for concurrent use.
type Watchdog struct {
	mu    sync.Mutex
	next  int64
	since time.Time // zero: it goes on, or has nothing to do
}

// Standing takes the next block of the watch, and whether it may be stored already. It returns since
// when the watch has stood still; zero: it goes on.
func (w *Watchdog) Standing(now time.Time, next int64, due bool) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !due:
		w.since = time.Time{}
	case w.since.IsZero() || next > w.next:
		w.since = now
	}

	w.next = next

	return w.since
}

// Report commits what an instance says of itself, which shows that the database takes what is
// written. mask removes secrets from texts.
func Report(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, chainID int64, i *Self, now time.Time, mask func(string) string) error {
	ago := func(since time.Time) *time.Duration {
		if since.IsZero() {
			return nil
		}

		return new(now.Sub(since))
	}
	fault := mask(i.fault())
	_, err := db.Exec(ctx, report, chainID, i.ID, ago(i.StandingSince), fault, ago(i.faultSince(now)))
	if err != nil {
		return fmt.Errorf("commit the report of %s: %w", i.ID, err)
	}

	return nil
}

const report = `
	insert into instance_health (chain_id, instance_id, reported_at, standing_since, fault, fault_since)
	values ($1, $2, clock_timestamp(), clock_timestamp() - $3::interval, $4, clock_timestamp() - $5::interval)
	on conflict (chain_id, instance_id) do update set reported_at = excluded.reported_at,
		standing_since = excluded.standing_since, fault = excluded.fault, fault_since = excluded.fault_since`

// faultSince is when the first of what is wrong began; zero: nothing is wrong.
func (i *Self) faultSince(now time.Time) (first time.Time) {
	if i.Stuck != nil {
		first = now
	}

	for _, since := range []time.Time{i.SessionSince, i.DatabaseSince, i.NodeSince} {
		if !since.IsZero() && (first.IsZero() || since.Before(first)) {
			first = since
		}
	}

	return first
}

// fault is what is wrong, in one line.
func (i *Self) fault() string {
	var all []string
	told, checks := map[string]bool{}, i.Checks()
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name]; err != nil {
			what, _ := Advice(err)
			if !told[what] { // what the database refuses is why nothing is stored
				all = append(all, name+": "+what)
			}

			told[what] = true
		}
	}

	return strings.Join(all, "; ")
}

// waitsEvery is how long the database may take until somebody asks what it waits for.
const waitsEvery = time.Second

// Naming asks the database, and gives up with a LockedError where the answer waits for somebody outside the fleet.
func Naming(ctx context.Context, own *pgx.ConnConfig, ask func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- ask(ctx) }()
	look := time.NewTicker(waitsEvery)
	defer look.Stop()
	for {
		select {
		case err := <-answer:
			return err
		case <-look.C:
			if len(answer) > 0 { // a look at a frozen server takes until the next tick, and may come first again and again
				continue
			}

			if locked, found := errors.AsType[*LockedError](Waits(ctx, own)); found {
				cancel()
				<-answer

				return locked
			}
		}
	}
}

// Waits returns what connections of the fleet wait for that somebody outside of it has locked; nil: they wait for
// nobody. It asks by a connection of its own, since all others may wait.
func Waits(ctx context.Context, own *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, waitsEvery)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, own)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}

	defer func() { _ = conn.Close(ctx) }()
	rows, _ := conn.Query(ctx, selectWaits, election.ApplicationName(""))
	w, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[LockedError])
	if err != nil || len(w) == 0 {
		return err
	}

	return w[0]
}

// LockedError is a lock that somebody outside the fleet holds and the fleet waits for, or a standby for which
// commits wait.
type LockedError struct {
	Table              string // what is locked; empty: a row or a transaction
	PID                int32  // of the server process that holds it; 0: commits wait for a synchronous standby
	Login, Application string
	For                time.Duration // how long its transaction has lasted
}

func (e *LockedError) Error() string {
	what, remedy := e.Advice()
	return what + ": " + remedy
}

// Advice is what is wrong, and the first step.
func (e *LockedError) Advice() (what, remedy string) {
	if e.PID == 0 {
		return "commits wait for a synchronous standby that does not answer",
			"start the standby, or take it out of synchronous_standby_names"
	}

	locked := "what the fleet writes"
	if e.Table != "" {
		locked = "the table " + e.Table
	}

	return fmt.Sprintf("%s is locked by pid %d, login %s, application %q, in a transaction of %s", locked, e.PID,
			e.Login, e.Application, e.For.Round(time.Second)),
		fmt.Sprintf("let it end, or `select pg_terminate_backend(%d)`", e.PID)
}

// waitsFor is longer than a busy database, a standby that is there, or a statement of a person takes.
const waitsFor = `clock_timestamp() - interval '1500 milliseconds'`

// selectWaits lists the foreign holders of locks that connections of the fleet wait for, the longest transaction
// first, and whether a commit waits for a standby.
const selectWaits = `
	select case when l.locktype = 'relation' then l.relation::regclass::text else '' end, b.pid,
	       coalesce(b.usename::text, ''), coalesce(b.application_name, ''),
	       coalesce(clock_timestamp() - b.xact_start, interval '0')
	from pg_locks l join pg_stat_activity w using (pid)
	cross join lateral unnest(pg_blocking_pids(l.pid)) blocker(pid)
	join pg_stat_activity b on b.pid = blocker.pid
	where l.waitstart < ` + waitsFor + ` and w.datname = current_database() and starts_with(w.application_name, $1)
	  and not starts_with(coalesce(b.application_name, ''), $1)
	union all select '', 0, '', '', interval '0' where exists (select from pg_stat_activity s
		where s.datname = current_database() and s.wait_event = 'SyncRep' and s.query_start < ` + waitsFor + `)
	order by 5 desc limit 1`
