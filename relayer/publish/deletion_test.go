package publish_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// backlog commits approvals of so many escrows, and offers none.
func (w *world) backlog(events, escrows int) (rows []outbox.Pending) {
	for at := 0; at < events; at += 1000 {
		numbers := make([]int, min(1000, events-at))
		for i := range numbers {
			numbers[i] = (at + i) * 7919 % escrows
		}

		rows = append(rows, w.commit("Approved", message.Original, numbers...)...)
	}

	return rows
}

// Deletions that take long do not make the publisher run ahead of them: what a crash could repeat
// stays within the window.
func TestSlowDeletions(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	const events, window = 6_000, 700
	rows := w.backlog(events, 500)
	w.Exec(`create function slow() returns trigger language plpgsql as $$
		begin perform pg_sleep(0.001); return old; end $$`)
	w.Exec(`create trigger slow before delete on outbox for each row execute function slow()`)
	p := w.start(w.config(), publish.Tuning{WindowRows: window, PageRows: 100})

	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for left := events; left > 0; <-ticker.C {
		published := w.tap.Len() // before the rows are counted: what is published meanwhile is not held against it
		left = w.outbox()
		require.LessOrEqual(t, published-(events-left), window, "published and not deleted")
	}

	w.same(rows, w.wait(events))
	require.NoError(t, p.stop())
	require.Zero(t, w.logs.count("not deleted from the outbox"))
}

// While nothing can be deleted, no more is published than the window holds; a process that dies
// then repeats that and no more.
func TestDeletionsStandStill(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	const events, window = 3_000, 500
	w.backlog(events, 300)
	tx, err := w.DB.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table outbox in share mode`) // reads go on
	require.NoError(t, err)

	p := w.start(w.config(), publish.Tuning{WindowRows: window, PageRows: 100})
	require.Eventually(t, func() bool { return p.Stats().Undeleted > window-100 && p.Stats().InFlight == 0 },
		patience, tick)
	require.NoError(t, p.stop())
	published := w.tap.Len()
	require.LessOrEqual(t, published, window)
	require.Equal(t, events, w.outbox())
	require.Equal(t, 1, w.logs.count("stopped with acknowledged messages in the outbox"))
	require.NoError(t, tx.Rollback(t.Context()))

	w.handover = publish.Handover{} // another process
	again := w.start(w.config(), publish.Tuning{WindowRows: window, PageRows: 100})
	w.wait(events + published)
	require.NoError(t, again.stop())
	require.Equal(t, events+published, w.tap.Len())
}

// What was acknowledged and not deleted stays so after a restart of the database, and after a failover to a server
// that has it; not where that has forgotten rows and given their numbers to others.
func TestAcknowledgedRowsOfAnotherServer(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	cfg.Server = time.Unix(1, 0)
	rows := w.commit("Approved", message.Original, 1, 2, 3, 4)
	tx, err := w.DB.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table outbox in share mode`)
	require.NoError(t, err)
	p := w.start(cfg, publish.Tuning{})
	require.Eventually(t, func() bool { return p.Stats().Undeleted == len(rows) }, patience, tick)
	require.NoError(t, p.stop())
	require.NoError(t, tx.Rollback(t.Context()))
	require.True(t, w.handover.Known(cfg.Server))

	cfg.Server = time.Unix(2, 0)
	require.False(t, w.handover.Known(cfg.Server))
	require.EqualValues(t, 2, w.Exec(`
		update outbox o set slot = p.slot, escrow = p.escrow, block_number = p.block_number, log_index = p.log_index
		from outbox p where o.seq in ($1, $2) and p.seq in ($1, $2) and o.seq <> p.seq`, rows[0].Seq, rows[1].Seq))
	joined, err := publish.New(cfg)
	require.NoError(t, err)
	require.NoError(t, joined.Join(t.Context()))
	require.False(t, w.handover.Known(cfg.Server), "it has published nothing there yet: a tenure may end before that")
	again := w.start(cfg, publish.Tuning{})
	sent := w.wait(len(rows) + 2)
	require.NoError(t, again.stop())
	require.ElementsMatch(t, []string{sent[4].Key, sent[5].Key},
		[]string{"7:" + registry.Text(escrow(1)), "7:" + registry.Text(escrow(2))})
	require.True(t, w.handover.Known(cfg.Server))
}
