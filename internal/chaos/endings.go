package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// Most that an instance may have at rest.
const (
	maxGoroutines = 90 // 60 to 70 are usual, of which a dozen belong to Google's client
	maxPerProcess = 9  // connections: DB_MAX_CONNS and the session
)

// fleet are the processes that should be running.
func (r *run) fleet() []*lab.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.procs[:r.total])
}

// quiet checks that a fleet at rest has as many locks as it should, and not too many connections and
// goroutines. Each may take a moment to get there. The chains go on meanwhile: whoever leads resigns
// when there has been no block for two minutes, and on a busy machine the comparisons take that long.
func (r *run) quiet(ctx context.Context, v *Verdict) error {
	var wrong string
	for range 150 {
		var err error
		if wrong, err = r.checkAtRest(ctx); err != nil {
			return err
		}

		if wrong == "" || !pause(ctx, 200*time.Millisecond) {
			break
		}

		if err := r.chain.Mine(ctx, 1); err != nil {
			return err
		}

		if r.second != nil {
			if err := r.second.lab.Chain.Mine(ctx, 1); err != nil {
				return err
			}
		}
	}

	if wrong != "" {
		v.wrong("at rest: %s", wrong)
	}

	return nil
}

// checkAtRest says what is not as it should be at this moment; empty: all is.
func (r *run) checkAtRest(ctx context.Context) (wrong string, err error) {
	all, chains := r.fleet(), r.chains()

	var locks int
	if err := r.lab.DB.QueryRow(ctx, `select count(*) from pg_locks l join pg_stat_activity a using (pid)
		where l.locktype = 'advisory' and l.granted
			and a.application_name like 'escrow-relayer/%'`).Scan(&locks); err != nil {
		return "", err
	}

	if locks != (len(all)+1)*chains+r.commandLocks() {
		wrong = fmt.Sprintf("%d advisory locks, for %d instances and a leader of each of %d chains, and %d of commands",
			locks, len(all), chains, r.commandLocks())
	}

	rows, _ := r.lab.DB.Query(ctx,
		`select substr(application_name, 16), count(*) from pg_stat_activity
		where application_name like 'escrow-relayer/%' group by 1`)
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		if n > maxPerProcess*chains {
			wrong = fmt.Sprintf("%d connections of %s", n, name)
		}

		return nil
	}); err != nil {
		return "", err
	}

	for _, p := range all {
		m, err := p.Metrics(ctx)
		if err != nil {
			return "", err
		}

		if n := int(m.Sum("go_goroutines")); n == 0 || n > maxGoroutines*chains+r.commandGoroutines() {
			wrong = fmt.Sprintf("%d goroutines in %s", n, p.ID)
		}
	}

	return wrong, nil
}

// chains is how many chains a process follows, each with a leader and slots of its own.
func (r *run) chains() int {
	if r.second == nil {
		return 1
	}

	return 2
}

// commandLocks are those of the senders' owners, of the instance that publishes answers, and of the one that follows
// senders without an owner.
func (r *run) commandLocks() int {
	if r.way == nil {
		return 0
	}

	return len(r.way.senders) + 2
}

// commandGoroutines is how many more an instance may have that takes commands: Google's subscriber has most of them.
func (r *run) commandGoroutines() int {
	if r.way == nil {
		return 0
	}

	return 70
}

// lost is how many sessions were lost, by the logs.
func (r *run) lost() (n int) {
	files, _ := filepath.Glob(filepath.Join(r.lab.Dir, "*.log"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		n += strings.Count(string(b), `"tenure over, joining again"`)
	}

	return n
}

// endings checks that every process stops cleanly, that none has raced or panicked, and that nothing is
// left in the database. It adds what note has kept.
func (r *run) endings(ctx context.Context, v *Verdict) {
	for _, p := range r.fleet() {
		if p.Running() {
			r.stop(ctx, p)
		}
	}

	r.leftOver(ctx, v)
	files, _ := filepath.Glob(filepath.Join(r.lab.Dir, "*.log"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, sign := range []string{"DATA RACE", "panic:", "fatal error:", "WaitGroup misuse"} {
			if strings.Contains(string(b), sign) {
				v.wrong("%s in %s", sign, f)
			}
		}
	}

	for _, s := range r.faulty {
		v.wrong("%s", s)
	}
}

// leftOver checks that there are no locks and no connections, and that every slot was given back. An instance that logs
// the loss of its session while it stops could not give its slots back.
func (r *run) leftOver(ctx context.Context, v *Verdict) {
	var locks, connections int
	var kept []string // who did not give slots back
	var err error
	for range 50 { // the server hears of the end of a connection a moment later
		err = r.lab.DB.QueryRow(ctx, `select (select count(*) from pg_locks l join pg_stat_activity a using (pid)
			where l.locktype = 'advisory' and a.application_name like 'escrow-relayer/%'),
			(select count(*) from pg_stat_activity where application_name like 'escrow-relayer/%'),
			(select coalesce(array_agg(distinct owner), '{}') from slot_ownership where owner is not null)`).Scan(&locks,
			&connections, &kept)
		if err == nil && locks+connections == 0 || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}

	kept = slices.DeleteFunc(kept, func(id string) bool {
		i, err := strconv.Atoi(strings.TrimPrefix(id, "r"))
		return err == nil && i < len(r.procs) && lostAtTheEnd(r.process(i))
	})
	if err != nil || locks+connections+len(kept) > 0 {
		v.wrong("after all have stopped: %d locks, %d connections, slots not given back by %v, %v", locks, connections, kept,
			err)
	}
}

// lostAtTheEnd reports whether an instance had no session when it stopped, or lost it then, or the
// database did not answer in the time that a stop has, or the instance did not go on for so long, on a
// machine without time for it, that the database ended its transaction: a stop has to say so.
func lostAtTheEnd(p *lab.Process) bool {
	b, _ := os.ReadFile(p.LogFile)
	log := string(b)
	last := max(strings.LastIndex(log, `"tenure over, joining again"`), strings.LastIndex(log, `database session lost`))
	if i := strings.LastIndex(log, `"stopped, but not cleanly`); i >= 0 &&
		(strings.Contains(log[i:], "deadline exceeded") || strings.Contains(log[i:], "idle-in-transaction timeout")) {
		last = max(last, i)
	}

	return last > strings.LastIndex(log, `"joined the fleet"`)
}
