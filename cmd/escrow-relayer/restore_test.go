package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// runbookSQL is the statement of a runbook that has the given words in it.
func (w *world) runbookSQL(page, with string) string {
	text, err := os.ReadFile("../../deploy/runbooks/" + page)
	require.NoError(w.t, err)
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(m[1], with) {
			return strings.ReplaceAll(m[1], ":chain", w.Chain.ChainID().String())
		}
	}

	require.Fail(w.t, "no such statement", "%s: %s", page, with)

	return ""
}

func (w *world) stopAll() {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for id, p := range w.fleet {
		require.NoError(w.t, p.Stop(ctx), id)
		delete(w.fleet, id)
	}
}

func (w *world) startTwo(env map[string]string) {
	w.run("r0", 0, 2, env)
	w.run("r1", 1, 2, env)
	w.ready("r0", "r1")
}

// copyDatabase is a backup and its restore at once.
func (w *world) copyDatabase(from, to string) {
	require.Eventually(w.t, func() bool {
		w.DB.Reset() // nobody may be connected
		return w.PG.CreateDatabase(w.t.Context(), to, from) == nil
	}, patience, 50*time.Millisecond)
}

// deploy/runbooks/restore.md, its commands and statements, on a real fleet: for consumers that
// cannot dedupe, who receive nothing twice, and then for those that do.
func TestRestoreRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ownServer)
	w.startTwo(nil)
	w.blocks(6)
	w.audit(false)
	w.stopAll()
	w.copyDatabase("relayer", "restored")
	w.copyDatabase("relayer", "restored_too")
	w.startTwo(nil)
	w.blocks(6)
	w.audit(false)
	w.stopAll()

	var readBelow, unpublished int64
	var from *int64
	noted := func() {
		require.NoError(t, w.DB.QueryRow(t.Context(), w.runbookSQL("restore.md", "read_below")).Scan(&readBelow, &unpublished,
			&from))
	}
	_, err := w.DB.Exec(t.Context(), `insert into late_escrows (chain_id, address, slot, deployed_block, log_index, monitored)
		select chain_id, address, slot, discovered_block_number, log_index, 1 from escrows limit 1`)
	require.NoError(t, err)
	noted()
	require.EqualValues(t, 2, *from, "an escrow that was being caught up")
	_, err = w.DB.Exec(t.Context(), `delete from late_escrows`)
	require.NoError(t, err)
	noted()
	require.Zero(t, unpublished)
	w.blocks(3) // while nothing runs

	// A subscriber that cannot dedupe: one instance makes up leeway into a topic that nobody reads.
	w.PubSub.CreateTopic("lab-project", "drain")
	restored := w.PG.URL("restored")
	drain := map[string]string{"DATABASE_URL": restored, "PUBSUB_TOPIC_ID": "drain"}
	w.run("r0", 0, 1, drain)
	w.ready("r0")
	pool, err := pgxpool.New(t.Context(), restored)
	require.NoError(t, err)
	defer pool.Close()
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		f, err := fleet.Read(t.Context(), pool, w.Chain.ChainID().Int64())
		return err == nil && f.Chain.LowestCursor > int64(head)-int64(w.Confirmations) && f.Outbox.Messages == 0 &&
			f.Late.Escrows == 0
	}, patience, 50*time.Millisecond)
	w.stopAll()
	var goesOn, owned int64
	require.NoError(t, pool.QueryRow(t.Context(), w.runbookSQL("restore.md", "goes_on_at")).Scan(&goesOn, &owned))
	require.Zero(t, owned)
	require.Greater(t, goesOn, readBelow)
	span := []string{"replay", "--from", strconv.FormatInt(readBelow, 10), "--to", strconv.FormatInt(goesOn-1, 10),
		"--single-events"}
	operator := w.Environ("operator", 0, 1, map[string]string{"DATABASE_URL": restored})
	code, out := call(t, operator, append(span, "--dry-run")...)
	require.Zero(t, code, out)
	require.Contains(t, out, "match")
	code, out = call(t, operator, span...)
	require.Zero(t, code, out)
	t.Log(out)
	w.startTwo(map[string]string{"DATABASE_URL": restored})
	w.blocks(3)
	w.audit(false)
	code, out = call(t, operator, "audit", "--from", fmt.Sprint(w.Contracts.Block))
	require.Zero(t, code, out)
	w.stopAll()

	// Subscribers that dedupe: everything since comes once more, with the event ids it had.
	before := w.Received.Len()
	w.startTwo(map[string]string{"DATABASE_URL": w.PG.URL("restored_too")})
	w.blocks(2)
	w.audit(true)
	require.Greater(t, w.Received.Len(), before)
}
