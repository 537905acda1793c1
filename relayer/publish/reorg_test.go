package publish_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// state takes a stored event back, as a rollback and what follows it do, with the outbox rows that are there.
func (w *world) state(row outbox.Pending, state string) {
	w.t.Helper()
	e := &row.Event
	w.Exec(`
		with gone as (delete from events where tx_hash = $1 and log_index = $2 returning *),
		kept as (
			insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
			                             block_hash, tx_hash, escrow, emitter, args)
			select chain_id, block_number, block_time, 0, processed_at, log_index, writer, type, slot, occurrence, $3, block_hash, tx_hash, escrow, emitter, args from gone
			returning *)
		update outbox o set orphan = k.id from kept k where o.block_number = k.block_number and o.log_index = k.log_index
			and o.orphan is null`,
		e.TxHash[:], e.LogIndex, map[string]int{"orphaned": 1, "lost": 2, "retracted": 3}[state])
}

// What was told of is sent, in its place, while its fate is open and when it is lost: its retraction is
// queued when its row is gone.
func TestOrphansAreSentInTheirPlace(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	rows := w.approve(nil, 1, 1, 1, 2)
	w.state(rows[0], "orphaned")
	w.state(rows[1], "lost")
	p := w.start(w.config(), publish.Tuning{})
	w.same(rows, w.wait(4))
	require.NoError(t, p.stop())
}

// A row whose event is gone leaves the outbox without being sent.
func TestRowsWithoutAnEvent(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.commit("Approved", message.Original, 1)
	w.Exec(`delete from events`)
	rows := w.approve(nil, 1)
	p := w.start(w.config(), publish.Tuning{})
	w.same(rows, w.wait(1))
	require.NoError(t, p.stop())
}

func TestRetractionsWithoutATopic(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	cfg.Topics.Retractions = ""
	w.state(w.commit("Approved", message.Retraction, 1)[0], "retracted")
	rows := w.approve(nil, 1)
	p := w.start(cfg, publish.Tuning{})
	w.same(rows, w.wait(1))
	require.NoError(t, p.stop())
}
