package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Whatever the database has against the fleet, page, /readyz, status and doctor say the same cause, while the
// instances run and hold their locks. The table in deploy/watching.md is what this test logs.
func TestEveryScreenNamesTheFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ownServer)
	w.startTwo(nil)
	w.blocks(3)
	must := func(_ pgconn.CommandTag, err error) { require.NoError(t, err) }
	exec := func(sql string) { must(w.DB.Exec(t.Context(), sql)) }
	exec(`create function refuse() returns trigger language plpgsql as $$ begin
		raise exception using message = tg_argv[0], errcode = tg_argv[1]; end $$`)
	refuse := func(table, message, code string) {
		exec(fmt.Sprintf(`create constraint trigger refuse after insert or update or delete on %s deferrable initially
			deferred for each row execute function refuse('%s', '%s')`, table, message, code))
	}
	setting := func(change string) {
		exec(`set default_transaction_read_only = off`)
		exec(`alter system ` + change)
		exec(`select pg_reload_conf()`)
	}
	person, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, person.Close(context.Background())) })
	lock := func(table string) func() {
		return func() { must(person.Exec(t.Context(), `begin; lock table `+table)) }
	}
	rollback := func() { must(person.Exec(t.Context(), `rollback`)) }
	all := []string{"cursors", "leadership", "relayer_instances", "events", "outbox", "chain_blocks", "instance_health"}
	for _, f := range []struct {
		name, says string
		begin, end func()
	}{
		{"commits to one table refused", "no cursors today", func() { refuse("cursors", "no cursors today", "P0001") },
			func() { exec(`drop trigger refuse on cursors`) }},
		{"every commit refused", "no commits today|refuses their writes|has taken nothing", func() {
			for _, table := range all {
				refuse(table, "no commits today", "P0001")
			}
		}, func() {
			for _, table := range all {
				exec(`drop trigger refuse on ` + table)
			}
		}},
		{"disk full", "No space left|database is full", func() { refuse("chain_blocks", "No space left on device", "53100") },
			func() { exec(`drop trigger refuse on chain_blocks`) }},
		{"read-only", "read-only", func() { setting(`set default_transaction_read_only = on`) },
			func() { setting(`reset default_transaction_read_only`) }},
		{"commits hang", "synchronous standby", func() { setting(`set synchronous_standby_names = 'nobody'`) },
			func() { setting(`reset synchronous_standby_names`) }},
		{"`LOCK TABLE` of what is stored", `cursors is locked by pid \d+, login`, lock("cursors"), rollback},
		{"`LOCK TABLE` that lets read", `instance_health is locked by pid \d+, login`,
			lock("instance_health in exclusive mode"), rollback},
	} {
		says := regexp.MustCompile(f.says)
		begun := time.Now()
		f.begin()
		w.blocks(1)
		took := map[string]time.Duration{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for name, screen := range map[string]func() string{
			"page": func() string { _, text := w.read("r0", "/"); return text },
			"/readyz": func() string {
				code, text := w.read("r0", "/readyz")
				if code != http.StatusServiceUnavailable {
					return ""
				}

				return text
			},
			"status": func() string { _, text := w.operator(nil, "status"); return text },
			"doctor": func() string { _, text := w.operator(nil, "doctor"); return text },
		} {
			wg.Go(func() {
				look := time.NewTicker(100 * time.Millisecond)
				defer look.Stop()
				for ; time.Since(begun) < 2*time.Minute; <-look.C {
					text := screen()
					require.NotContains(t, text, "instances died", name)
					if says.MatchString(text) {
						mu.Lock()
						defer mu.Unlock()
						took[name] = time.Since(begun)

						return
					}
				}
			})
		}

		wg.Wait()
		t.Logf("FAULT | %s | %.1f | %.1f | %.1f | %.1f", f.name, took["page"].Seconds(), took["/readyz"].Seconds(),
			took["status"].Seconds(), took["doctor"].Seconds())
		f.end()
		w.blocks(1)
		require.Len(t, took, 4, "%s: %v", f.name, took)
		w.until("all is served again", func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 && f.Leader.Valid })
		w.ready("r0", "r1")
	}

	w.audit(true)
}
