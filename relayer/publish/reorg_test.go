package publish_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// state takes a stored event back, or puts it back, as a rollback and what follows it do, with the
// outbox rows that are there.
func (w *world) state(row outbox.Pending, state string) {
	w.t.Helper()
	e := &row.Event
	if state == "canonical" {
		require.EqualValues(w.t, 1, w.Exec(`
			with back as (delete from orphaned_events where tx_hash = $1 and log_index = $2 returning *),
			moved as (update outbox o set orphan = null from back b where o.orphan = b.id)
			insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, told, block_hash, tx_hash, escrow, emitter, args)
			select chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, true, block_hash, tx_hash, escrow, emitter, args from back`,
			e.TxHash[:], e.LogIndex))

		return
	}

	w.Exec(`
		with gone as (delete from events where tx_hash = $1 and log_index = $2 returning *),
		kept as (
			insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state,
			                             block_hash, tx_hash, escrow, emitter, args)
			select chain_id, block_number, block_time, 0, processed_at, log_index, writer, type, slot, occurrence, $3, block_hash, tx_hash, escrow, emitter, args from gone
			returning *)
		update outbox o set orphan = k.id from kept k where o.block_number = k.block_number and o.log_index = k.log_index
			and o.orphan is null`,
		e.TxHash[:], e.LogIndex, map[string]int{"orphaned": 1, "retracted": 3, "dropped": 4}[state])
}

// An orphan is not published while its fate is open, and later events of its escrow that are
// published before it are not its concern: they are of another fork. When it reappears it comes in
// its place among what is still in the outbox.
func TestOrphansAreHeld(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	rows := w.approve(nil, 1, 1, 2)
	w.state(rows[0], "orphaned")
	w.state(rows[1], "orphaned")
	p := w.start(w.config(), publish.Tuning{})
	require.NoError(t, w.tap.Wait(w.within(), 1))
	require.Equal(t, []string{"3"}, w.numbers(w.tap.Messages())["7:0xe5c0000000000000000000000000000000000002"])
	w.state(rows[0], "canonical")
	w.state(rows[1], "canonical")
	p.Reload()
	p.Offer(1, w.commit("Approved", message.Original, 1))
	messages := w.wait(4)
	require.Equal(t, []string{"1", "2", "4"}, w.numbers(messages)["7:0xe5c0000000000000000000000000000000000001"])
	require.NoError(t, p.stop())
}

// Rows that wait behind a failing one, in memory or not, are looked at anew after Reload.
func TestReloadForgetsWhatWaits(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Match: one("1"), Delay: time.Hour})
	fault := w.server.Inject(testpubsub.Fault{Match: one("4"), Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1)
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
	rows = append(rows, w.approve(p, 1, 1, 2, 2, 2)...)
	require.Eventually(t, func() bool { return fault.Hits() > 1 }, patience, tick)
	for _, i := range []int{1, 4} { // they wait in memory, and behind the failing one
		w.state(rows[i], "orphaned")
	}

	p.Reload()
	slow.Remove()
	fault.Remove()
	require.NoError(t, w.tap.Wait(w.within(), 4))
	require.Eventually(t, func() bool { return w.outbox() == 2 }, patience, tick)
	got := w.numbers(w.tap.Messages())
	require.Equal(t, []string{"1", "3"}, got["7:0xe5c0000000000000000000000000000000000001"])
	require.Equal(t, []string{"4", "6"}, got["7:0xe5c0000000000000000000000000000000000002"])
	require.NoError(t, p.stop())
}

// What has nothing to tell any more leaves the outbox without being sent.
func TestMootRows(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.commit("Approved", message.Retraction, 1) // of an event that has reappeared
	w.state(w.commit("Approved", message.Replay, 1)[0], "retracted")
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

// After a rollback its owner brings a slot to rest before it judges what was published. A message
// that is under way then is acknowledged and its row gone, or it is in doubt: a row that is there
// and not in doubt was never sent.
func TestRestTellsWhatWasSent(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	slow := w.server.Inject(testpubsub.Fault{Match: one("1", "2"), Delay: time.Hour, Stored: true,
		Code: codes.Unavailable})
	p := w.start(w.config(), publish.Tuning{BatchRows: 2})
	rows := w.approve(p, 1, 1, 1, 2)
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
	require.NoError(t, p.Quiesce(t.Context(), []int16{1}), "although no answer comes")
	require.Equal(t, []int64{rows[0].Seq, rows[1].Seq},
		w.seqs(`select seq from outbox o join slot_ownership s using (chain_id, slot) where seq <= doubt_seq order by seq`))
	require.Equal(t, []int64{rows[2].Seq},
		w.seqs(`select seq from outbox o join slot_ownership s using (chain_id, slot) where seq > doubt_seq order by seq`))
	slow.Remove()
	p.Resume([]int16{1}, 0)
	w.wait(4)
	require.NoError(t, p.stop())
	require.EqualValues(t, 2, w.metric("relayer_republished_total"), "the two that may have been stored")
}

func (w *world) seqs(query string) []int64 {
	rows, _ := w.DB.Query(w.t.Context(), query)
	seqs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(w.t, err)

	return seqs
}

// A retraction waits until its event was acknowledged and its row deleted, and no longer.
func TestRetractionFollowsItsEvent(t *testing.T) {
	t.Parallel()
	for _, bySlot := range []bool{false, true} {
		w := setup(t, testpubsub.Options{})
		cfg := w.config()
		cfg.BySlot = bySlot
		slow := w.server.Inject(testpubsub.Fault{Topic: testpubsub.TopicName(project, settlement), Delay: time.Hour})
		row := w.approve(nil, 1)[0]
		w.state(row, "retracted") // in doubt, else its row would be gone
		w.Exec(`insert into outbox (chain_id, block_number, log_index, orphan, slot, kind, escrow, event_type)
			select chain_id, block_number, log_index, orphan, slot, 1, escrow, event_type from outbox`)
		p := w.start(cfg, publish.Tuning{RereadEvery: time.Hour})
		require.Eventually(t, func() bool { return slow.Hits() == 1 }, patience, tick)
		require.Zero(t, w.tap.Len())
		slow.Remove()
		messages := w.wait(2)
		require.NoError(t, p.stop())
		require.Equal(t, testpubsub.TopicName(project, settlement), messages[0].Topic)
		require.Equal(t, testpubsub.TopicName(project, undone), messages[1].Topic)
		require.Equal(t, messages[0].Key, messages[1].Key)
	}
}
