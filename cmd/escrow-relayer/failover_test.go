package main

import (
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// The database fails over to a standby, under one address; it is synchronous unless a case says otherwise. Where
// the old primary stays, whoever is connected to it still gets answers, and commits there wait for ever: it has no
// standby any more. One that is told to wait no longer answers that it is done, with a warning (SyncRepWaitForLSN of
// Postgres), and is forgotten.
func TestDatabaseFailsOver(t *testing.T) {
	t.Parallel()
	// The last two of these come to the first two as well.
	short := []string{"the old primary stays and forgets", "the standby was behind"}
	for name, fail := range map[string]func(w *world, standby *testpg.Server){
		"the old primary is gone": func(w *world, standby *testpg.Server) {
			require.NoError(w.t, w.PG.Down(w.t.Context(), testpg.Immediate))
			require.NoError(w.t, standby.Promote(w.t.Context()))
		},
		"the old primary stays": func(w *world, standby *testpg.Server) {
			require.NoError(w.t, standby.Promote(w.t.Context()))
		},
		"the old primary stays and forgets": func(w *world, standby *testpg.Server) {
			require.NoError(w.t, standby.Promote(w.t.Context()))
			w.blocks(3)
			for told := 0; told < 20; { // of them some are slot checks and heartbeats
				var n int
				require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `with waiting as materialized (
					select pid from pg_stat_activity where wait_event = 'SyncRep')
					select count(*) from waiting where pg_cancel_backend(pid)`).Scan(&n))
				told += n
			}
		},
		"the standby was behind": func(w *world, standby *testpg.Server) {
			for url, setting := range map[string]string{w.URL: "synchronous_standby_names",
				standby.URL("relayer"): "primary_conninfo"} {
				conn, err := pgx.Connect(w.t.Context(), url)
				require.NoError(w.t, err)
				for _, statement := range []string{"alter system set " + setting + " = ''", "select pg_reload_conf()"} {
					_, err := conn.Exec(w.t.Context(), statement)
					require.NoError(w.t, err)
				}

				require.NoError(w.t, conn.Close(w.t.Context()))
			}

			w.blocks(3)
			w.audit(false) // published, acknowledged, deleted: and forgotten
			w.blocks(3)
			require.NoError(w.t, w.PG.Down(w.t.Context(), testpg.Immediate))
			require.NoError(w.t, standby.Promote(w.t.Context()))
		},
	} {
		if !long.Tables && !slices.Contains(short, name) {
			continue
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, ownServer)
			standby, err := w.PG.Standby(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, standby.Stop(t.Context())) })
			proxy, behind, err := faults.ProxyURL(w.URL)
			require.NoError(t, err)
			t.Cleanup(func() { _ = proxy.Close() })
			w.startTwo(map[string]string{"DATABASE_URL": behind})
			w.blocks(6)
			w.audit(false)

			w.blocks(3)
			fail(w, standby)
			began := time.Now()
			w.moveTo(standby, proxy)
			w.blocks(6)
			w.audit(true) // whoever is cut off between an acknowledgement and its commit leaves the message to be sent again
			t.Log("everything was published after", time.Since(began))
			w.ready("r0", "r1")
			w.until("r0 serves its half", slotsOf("r0", 1260))
			w.until("r1 serves its half", slotsOf("r1", 1260))
		})
	}
}

// moveTo has whoever connects from now on reach another server, the test included.
func (w *world) moveTo(to *testpg.Server, proxy *faults.TCP) {
	w.URL = to.URL("relayer")
	u, err := url.Parse(w.URL)
	require.NoError(w.t, err)
	db, err := pgxpool.New(w.t.Context(), w.URL)
	require.NoError(w.t, err)
	w.t.Cleanup(db.Close)
	w.DB.Close()
	w.DB = db
	proxy.Move(u.Host)
}
