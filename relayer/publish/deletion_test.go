package publish_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
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
	require.Zero(t, w.logs.count("deletion of acknowledged messages from the outbox failed"))
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
	require.Equal(t, 1, w.logs.count("stopped with acknowledged messages that are not noted"))
	require.NoError(t, tx.Rollback(t.Context()))

	w.handover = publish.Handover{} // another process
	again := w.start(w.config(), publish.Tuning{WindowRows: window, PageRows: 100})
	w.wait(events + published)
	require.NoError(t, again.stop())
	require.Equal(t, events+published, w.tap.Len())
}

// forgotten has a publisher acknowledge rows that it cannot delete, and the server forget them and give
// their numbers out again: as after the crash of one backend with synchronous_commit=off (measured: 50
// commits), or a failover to a standby that was behind. It returns how many were published.
func (w *world) forgotten() int {
	w.t.Helper()
	rows := w.commit("Approved", message.Original, 1, 2, 3, 4)
	tx, err := w.DB.Begin(w.t.Context())
	require.NoError(w.t, err)
	_, err = tx.Exec(w.t.Context(), `lock table outbox in share mode`)
	require.NoError(w.t, err)
	p := w.start(w.config(), publish.Tuning{})
	require.Eventually(w.t, func() bool { return p.Stats().Undeleted == len(rows) }, patience, tick)
	require.NoError(w.t, p.stop())
	require.NoError(w.t, tx.Rollback(w.t.Context()))
	w.Exec(`delete from outbox`)
	w.Exec(`delete from events`)
	w.Exec(`select setval('outbox_seq_seq', $1, false)`, rows[0].Seq)

	return len(rows)
}

// What was acknowledged and not deleted is deleted by the next tenure. Rows that have the same numbers
// by then are others: those of another instance stay, and those of this one are published.
func TestNumbersThatWereGivenOutAgain(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]bool{"to another instance": true, "to this one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, testpubsub.Options{})
			published := w.forgotten()
			if others {
				w.Exec(`update slot_ownership set owner = 'other' where slot = any($1)`, []int16{900, 901})
			}

			rows := w.commit("Approved", message.Original, 900, 901, 900, 901)
			again := w.start(w.config(), publish.Tuning{})
			if others {
				w.approve(again, 5)
				require.NoError(t, w.tap.Wait(w.within(), published+1))
				require.NoError(t, again.stop())
				require.Equal(t, published+1, w.tap.Len())
				require.Equal(t, len(rows), w.outbox(), "rows of another instance, which has yet to send them")

				return
			}

			messages := w.wait(published + len(rows))
			require.NoError(t, again.stop())
			w.same(rows, messages[published:])
		})
	}
}
