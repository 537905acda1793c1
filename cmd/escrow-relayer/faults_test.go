package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// A database that stays away ends the process with an error, so that whoever runs it sees that; a
// shorter outage does not.
func TestDatabaseOutageLimit(t *testing.T) {
	t.Parallel()
	const limit = 30 * time.Second // a restart on a busy machine is shorter
	w := newWorld(t, ownServer)
	p := w.run("r0", 0, 1, map[string]string{"DB_OUTAGE_LIMIT": limit.String()})
	w.ready("r0")
	w.blocks(3)
	require.NoError(t, w.PG.Down(t.Context(), testpg.Immediate))
	require.NoError(t, w.PG.Up(t.Context()))
	w.ready("r0")
	w.blocks(2)
	w.audit(true)

	require.NoError(t, w.PG.Down(t.Context(), testpg.Fast))
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, code)
	require.GreaterOrEqual(t, time.Since(begun), limit/2,
		"counted from the last look at the fleet that worked: one per second, fewer on a busy machine")
	t.Logf("exited %s after the database was gone, DB_OUTAGE_LIMIT=%s",
		time.Since(begun).Round(10*time.Millisecond), limit)
	log, err := os.ReadFile(p.LogFile)
	require.NoError(t, err)
	require.Contains(t, string(log), "DB_OUTAGE_LIMIT=30s")

	require.NoError(t, w.PG.Up(t.Context()))
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(2)
	w.audit(true)
}

// What was acknowledged by Pub/Sub and not yet noted as sent when the process died is published once
// more, counted, and nothing else is.
func TestKilledBetweenAcknowledgementAndNote(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(4)
	w.audit(false)
	// A message is received before the relayer hears that it is stored, and notes that.
	emptied := func() bool { return w.count(`select count(*) from waiting`) == 0 }
	require.Eventually(t, emptied, patience, 20*time.Millisecond)
	before := len(w.Received.Messages())

	const hold = 77 // the advisory lock that notes, and deletions from the outbox, wait for
	for _, statement := range []string{
		`create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(77);
			return null; end $$`,
		`create trigger hold after update of sent_block on slot_ownership for each row execute function hold()`,
		`create trigger hold after delete on outbox for each row execute function hold()`,
	} {
		_, err := w.DB.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	conn, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `select pg_advisory_lock($1)`, hold)
	require.NoError(t, err)
	w.blocks(4)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	a, err := w.Audit(t.Context()) // returns when all of it has been received
	require.NoError(t, err)
	require.True(t, a.Clean(), a.String())
	waiting := a.Received - before
	require.Positive(t, waiting)
	require.Equal(t, waiting, w.count(`select count(*) from waiting`), "acknowledged, and not noted")
	w.fleet["r0"].Kill()
	// A server process that waits does not notice that nobody waits for it.
	_, err = conn.Exec(t.Context(),
		`select pg_terminate_backend(pid) from pg_stat_activity
		 where datname = current_database() and application_name = 'escrow-relayer/r0'`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(1)
	w.audit(true)
	require.Eventually(t, emptied, patience, 20*time.Millisecond)
	seen := map[string]int{}
	twice := 0
	for _, m := range w.Received.Messages() {
		id := m.Attributes["event_id"]
		if seen[id]++; seen[id] == 2 {
			twice++
		}

		require.LessOrEqual(t, seen[id], 2)
	}

	require.Equal(t, waiting, twice)
	require.Contains(t, w.metrics("r0"), fmt.Sprintf("\nrelayer_republished_total{chain_id=\"1337\",fleet=\"escrow-relayer\"} %d\n",
		waiting))
}

// A relayer that is started before anything that it needs waits for it.
func TestEverythingComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.blocks(5)
	node, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), 7)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	down := node.Inject(faults.Fault{Mode: faults.Down})
	network, url, err := faults.ProxyURL(w.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	reconnect := network.Cut()

	p := w.run("r0", 0, 1, map[string]string{"RPC_URLS": node.HTTP(), "DATABASE_URL": url})
	logged := func(text string) func() bool {
		return func() bool {
			log, err := os.ReadFile(p.LogFile)
			return err == nil && strings.Contains(string(log), text)
		}
	}
	require.Eventually(t, logged(`"step":"chain"`), patience, 20*time.Millisecond)
	down.Remove()
	require.Eventually(t, logged(`"step":"database"`), patience, 20*time.Millisecond)
	require.NoError(t, reconnect())
	w.ready("r0")
	w.audit(false)
}

// Reorganisations up to CONFIRMATIONS deep leave nothing to take back: what they replace was not published.
func TestReorgsWithinTheConfirmations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *lab.Options) { o.Confirmations = 3 })
	w.run("r0", 0, 2, nil)
	w.run("r1", 1, 2, nil)
	w.ready("r0", "r1")
	for depth := 1; depth <= w.Confirmations; depth++ {
		for _, keep := range []bool{false, true} {
			w.blocks(4)
			w.reorg(depth, testchain.Fate(keep))
		}
	}

	w.audit(false)
	require.Empty(t, w.Retracted.Messages())
	require.Zero(t, w.count(`select count(*) from processed_events where state <> 'canonical'`))
}

func (w *world) count(query string) (n int) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), query).Scan(&n))
	return n
}

// metrics of an instance, as it shows them.
func (w *world) metrics(id string) string {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.fleet[id].URL+"/metrics", nil)
	require.NoError(w.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)

	return string(body)
}
