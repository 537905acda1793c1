package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// read returns status and text of what an instance serves at a path; 0 while nothing listens there.
func (w *world) read(id, path string) (int, string) {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.fleet[id].URL+path, nil)
	require.NoError(w.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}

	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)

	return resp.StatusCode, string(text)
}

// The database answers and takes no commit, as with a full disk; then it is read-only. Page and /readyz name the
// database, its words and the remedy, and nobody's node; the leader keeps the lock, since another one would have the
// same database. When it takes commits again, all is well and nothing is missing.
func TestADatabaseThatTakesNothingIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.startTwo(map[string]string{"RESIGN_AFTER": "1s"})
	w.blocks(3)
	_, epoch := w.leader()
	exec := func(sql string) {
		_, err := w.DB.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	shown := func(words string) {
		require.Eventually(t, func() bool {
			w.blocks(1)
			for _, id := range []string{"r0", "r1"} {
				status, ready := w.read(id, "/readyz")
				_, page := w.read(id, "/")
				if status != http.StatusServiceUnavailable || !strings.Contains(ready, words) || !strings.Contains(page, words) {
					return false
				}

				require.NotContains(t, page, "this instance's node")
				require.NotContains(t, page, "All well")
			}

			return true
		}, patience, 500*time.Millisecond, words)
	}
	exec(`create function full_disk() returns trigger language plpgsql as $$ begin
		raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
	exec(`create trigger full_disk before insert on chain_blocks for each row execute function full_disk()`)
	shown("the disk of the database is full: make room")
	code, out := w.operator(nil, "doctor")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "the disk of the database is full")
	exec(`drop trigger full_disk on chain_blocks`)
	w.blocks(1)
	w.ready("r0", "r1")
	_, later := w.leader()
	require.Equal(t, epoch, later, "nobody gave the leadership up")
	for _, p := range w.fleet {
		text, err := os.ReadFile(p.LogFile)
		require.NoError(t, err)
		require.NotContains(t, string(text), "the node does not let this leader go on")
	}

	var name string
	require.NoError(t, w.DB.QueryRow(t.Context(), `select quote_ident(current_database())`).Scan(&name))
	exec(`alter database ` + name + ` set default_transaction_read_only = on`)
	exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'escrow-relayer/%'
		and datname = current_database()`)
	require.Eventually(t, func() bool {
		code, out = w.operator(nil, "status")
		return code == 1 && strings.Contains(out, "the database is read-only")
	}, patience, time.Second)
	require.NotContains(t, out, "start an instance")
	code, out = w.operator(nil, "doctor")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "read-only")
	exec(`set default_transaction_read_only = off; alter database ` + name + ` reset default_transaction_read_only`)
	w.until("all is served again", func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 && f.Leader.Valid })
	w.audit(true)
}
