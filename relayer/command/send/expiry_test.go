package send_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// gate makes statements wait that a trigger of the database catches, until it is opened.
type gate struct {
	w    *world
	lock *pgxpool.Conn
}

// closeGate makes the first change of a kind wait. The trigger is of each row, `before` or `after`.
func (w *world) closeGate(trigger string) *gate {
	w.t.Helper()
	lock, err := w.db.Acquire(w.t.Context())
	require.NoError(w.t, err)
	_, err = lock.Exec(w.t.Context(), `select pg_advisory_lock(42)`)
	require.NoError(w.t, err)
	w.exec(`create function wait() returns trigger language plpgsql as $$ begin
		perform pg_advisory_xact_lock_shared(42); return new; end $$`)
	w.exec(`create trigger gate ` + trigger + ` execute function wait()`)
	g := &gate{w: w, lock: lock}
	w.t.Cleanup(g.open)

	return g
}

// awaitWaiting waits until so many sessions wait for a lock.
func (g *gate) awaitWaiting(n int) {
	g.w.t.Helper()
	require.Eventually(g.w.t, func() bool {
		return g.w.int(`select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`) >= n
	}, patience, 10*time.Millisecond)
}

func (g *gate) open() {
	if g.lock == nil {
		return
	}

	_, err := g.lock.Exec(context.Background(), `select pg_advisory_unlock(42)`)
	g.lock.Release()
	g.lock = nil
	require.NoError(g.w.t, err)
}

// late is the database with a clock by which everything has expired.
func (w *world) late() *pgxpool.Pool {
	w.t.Helper()
	w.exec(`create schema late`)
	w.exec(`create function late.now() returns timestamptz language sql stable as $$ select pg_catalog.now() + interval '30 days' $$`)

	return testpg.Open(w.t, w.db.Config().ConnString()+"&search_path=late,pg_catalog,public")
}

func (w *world) dismiss(db *pgxpool.Pool) []command.Answer {
	w.t.Helper()
	answers, err := send.Dismiss(w.t.Context(), db, w.node.ChainID().Int64())
	require.NoError(w.t, err)

	return answers
}

// C1, C4: what was dismissed gets no nonce, whatever its sender's owner had in mind, and no second answer.
func TestDismissedGetsNoNonce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	var dismissed []command.Answer
	late := w.late()
	w.start(func(c *send.Config) {
		c.Chain = &lateChain{Nodes: w.nodes, happen: func(ctx context.Context) (err error) {
			dismissed, err = send.Dismiss(ctx, late, c.ChainID)
			return err
		}}
	})
	require.Equal(t, command.Expired, w.await(id, true, command.Expired, command.Voided, command.Done).State)

	next := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(next, true, command.Done) // the sender goes on, after the round that was disturbed
	require.Len(t, dismissed, 1)
	require.Equal(t, []command.State{command.Expired}, w.replies(id))
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce is not null`))
	require.Len(t, w.sent(), 1)
}

// C1: what is getting its nonce is not dismissed, and nobody waits for it; nor is what has one.
func TestWhatGetsItsNonceIsNotDismissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	late := w.late()
	g := w.closeGate(`after update on commands for each row when (new.state = 'sent')`)
	w.start(nil)
	g.awaitWaiting(1) // T1 holds the command's row
	require.Empty(t, w.dismiss(late))
	g.open()
	w.awaitBroadcast(id)
	require.Empty(t, w.dismiss(late))
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C4: two who dismiss the same command at the same time answer it once; neither the second nor its sender's owner
// waits.
func TestDismissedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.exec(`update commands set expires_at = now() - interval '1 hour'`)
	g := w.closeGate(`before insert on replies for each row`)
	first := make(chan []command.Answer, 1)
	go func() {
		answers, err := send.Dismiss(context.Background(), w.db, w.node.ChainID().Int64())
		if err != nil {
			t.Errorf("dismiss: %v", err)
		}

		first <- answers
	}()
	g.awaitWaiting(1)
	require.Empty(t, w.dismiss(w.db))
	w.start(nil)
	w.awaitBroadcast(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
	g.open()
	require.Len(t, <-first, 1)
	require.Equal(t, command.CodeExpired, w.answer(id).Code)
	next := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(next, true, command.Done)
	require.Equal(t, []command.State{command.Expired}, w.replies(id))
}

// Looking for what has expired reads as little as there is of it, however much waits, and whether or not
// the table was analyzed.
func TestDismissingReadsNoMore(t *testing.T) {
	t.Parallel()
	db, read := testpg.Counted(t, testpg.New(t))
	exec := func(sql string) {
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	const waiting, senders, expired = 100_000, 5, 7 // as in the statement
	exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee,
		       expires_at, state)
		select 1, '0x' || lpad(to_hex(n), 64, '0'), 'sender ' || n % 5, 'approve', '0x' || lpad(to_hex(n), 40, '0'), 'settle',
		       'x', '{}', 1, now() + case when n <= 7 then interval '-1 hour' else interval '1 hour' end,
		       case when n % 2 = 1 then 'accepted' else 'held' end
		  from generate_series(1, 100000) n`)
	dismiss := func(want int) {
		before := read("commands")
		answers, err := send.Dismiss(t.Context(), db, 1)
		require.NoError(t, err)
		require.Len(t, answers, want)
		require.Less(t, read("commands")-before, 10*(want+senders+1))
	}
	dismiss(expired)
	exec(`analyze commands`)
	for range 10 { // also with the plan that a prepared statement gets later
		dismiss(0)
	}

	require.Equal(t, waiting-expired, intOf(t, db, `select count(*) from commands where state in ('accepted', 'held')`))
}

func intOf(t *testing.T, db *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&n))

	return n
}
