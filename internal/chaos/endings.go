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
	"github.com/fusion-prime/escrow-relayer/partition"
)

// Most that an instance may have at rest.
const (
	maxGoroutines = 90 // 60 to 70 are usual, of which a dozen belong to Google's client
	maxPerProcess = 9  // connections: DB_MAX_CONNS and the session
)

// fleets are the processes that should be running, and how many of them share a name in the database:
// the second chain's have the same INSTANCE_IDs.
func (r *run) fleets() (all []*lab.Process, perName map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, perName = slices.Clone(r.procs[:r.total]), map[string]int{}
	if r.second != nil && !r.plan.Shared {
		all = append(all, r.second.procs[:]...)
	}

	for _, p := range all {
		perName[strings.Replace(p.ID, "second", "r", 1)]++
	}

	return all, perName
}

// quiet checks that a fleet at rest has as many locks as it should, and not too many connections and
// goroutines. Each may take a moment to get there. The chains go on meanwhile: whoever leads resigns
// when there has been no block for two minutes, and on a busy machine the comparisons take that long.
func (r *run) quiet(ctx context.Context, v *Verdict) error {
	var wrong string
	for range 150 {
		var err error
		if wrong, err = r.checkAtRest(ctx, v); err != nil {
			return err
		}

		if wrong == "" || !pause(ctx, 200*time.Millisecond) {
			break
		}

		if err := r.chain.Mine(ctx, 1); err != nil {
			return err
		}

		if r.second != nil {
			if err := r.second.chain.Mine(ctx, 1); err != nil {
				return err
			}
		}
	}

	if wrong != "" {
		v.wrong("at rest: %s", wrong)
	}

	return nil
}

// checkAtRest says what is not as it should be at this moment; empty: all is. It puts the number of
// goroutines into the verdict.
func (r *run) checkAtRest(ctx context.Context, v *Verdict) (wrong string, err error) {
	all, perName := r.fleets()

	var locks int
	if err := r.lab.DB.QueryRow(ctx, `select count(*) from pg_locks l join pg_stat_activity a using (pid)
		where l.locktype = 'advisory' and l.granted
			and a.application_name like 'escrow-relayer/%'`).Scan(&locks); err != nil {
		return "", err
	}

	each := r.chainsEach()
	if locks != len(all)*each+r.chains()+r.commandLocks() {
		wrong = fmt.Sprintf("%d advisory locks, for %d instances, %d chains each, and %d leaders, and %d of commands", locks,
			len(all), each, r.chains(), r.commandLocks())
	}

	rows, _ := r.lab.DB.Query(ctx,
		`select substr(application_name, 16), count(*) from pg_stat_activity
		where application_name like 'escrow-relayer/%' group by 1`)
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		if n > maxPerProcess*each*perName[name] {
			wrong = fmt.Sprintf("%d connections of the %d processes called %s", n, perName[name], name)
		}

		return nil
	}); err != nil {
		return "", err
	}

	v.Goroutines = 0
	for _, p := range all {
		n, err := goroutines(ctx, p)
		if err != nil {
			return "", err
		}

		v.Goroutines = max(v.Goroutines, n)
	}

	if v.Goroutines > maxGoroutines*each+r.commandGoroutines() {
		wrong = fmt.Sprintf("%d goroutines in one instance", v.Goroutines)
	}

	return wrong, nil
}

// chains is how many chains the database serves, each with a leader and slots of its own.
func (r *run) chains() int {
	if r.second == nil {
		return 1
	}

	return 2
}

// chainsEach is how many chains a process follows.
func (r *run) chainsEach() int {
	if r.plan.Shared {
		return 2
	}

	return 1
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

// goroutines of an instance, by its own metrics.
func goroutines(ctx context.Context, p *lab.Process) (int, error) {
	m, err := p.Metrics(ctx)
	if err == nil && m["go_goroutines"] == nil {
		err = fmt.Errorf("the metrics of %s have no go_goroutines", p.ID)
	}

	return int(m.Sum("go_goroutines")), err
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
	all, _ := r.fleets()
	for _, p := range all {
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

// attempts is how many there are to stop cleanly: on a busy machine a session may be lost at any time
// where it is probed as often as here.
const attempts = 4

// leftOver checks that there are no locks and no connections, and that every slot was given back. An
// instance that logs the loss of its session while it stops could not give its slots back: it is
// started again, has to get them, and has to give them back then.
func (r *run) leftOver(ctx context.Context, v *Verdict) {
	for attempt := 1; ; attempt++ {
		var locks, connections, free int
		var kept []string // who did not give slots back: chain id, instance id
		var err error
		for range 50 { // the server hears of the end of a connection a moment later
			err = r.lab.DB.QueryRow(ctx, `select (select count(*) from pg_locks l join pg_stat_activity a using (pid)
				where l.locktype = 'advisory' and a.application_name like 'escrow-relayer/%'),
				(select count(*) from pg_stat_activity where application_name like 'escrow-relayer/%'), (select count(*)
					from slot_ownership where owner is null),
				(select coalesce(array_agg(distinct chain_id || ' ' || owner), '{}') from slot_ownership
					where owner is not null)`).Scan(&locks, &connections, &free, &kept)
			if err == nil && locks+connections == 0 || !pause(ctx, 100*time.Millisecond) {
				break
			}
		}

		whole := free == r.chains()*partition.Slots
		if err != nil || locks > 0 || connections > 0 || !whole &&
			(attempt == attempts || len(kept) == 0 || !r.restarted(ctx, kept)) {
			v.wrong("after all have stopped: %d locks, %d connections, %d of %d slots given back, not by %v, %v", locks,
				connections, free, r.chains()*partition.Slots, kept, err)
			return
		}

		if whole {
			return
		}
	}
}

// restarted starts the instances that have kept slots, and stops them again. It is false when one of
// them had no reason to keep them.
func (r *run) restarted(ctx context.Context, kept []string) bool {
	again := map[*lab.Process]bool{} // one that kept slots of both chains is started once
	for _, k := range kept {
		chain, id, _ := strings.Cut(k, " ")
		i, err := strconv.Atoi(strings.TrimPrefix(id, "r"))
		if err != nil || i >= len(r.procs) {
			return false
		}

		start, process := r.start, r.process
		if chain != r.chain.ChainID().String() && !r.plan.Shared {
			start = func(i int) error { return r.second.start(r, i) }
			process = func(i int) *lab.Process { return r.second.procs[i] }
		}

		if again[process(i)] {
			continue
		}

		if !lostAtTheEnd(process(i)) || start(i) != nil || ready(ctx, process(i)) != nil {
			return false
		}

		again[process(i)] = true
		r.stop(ctx, process(i))
	}

	return true
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
