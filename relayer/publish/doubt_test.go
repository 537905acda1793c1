package publish_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

func (w *world) doubted(slot int16) (is bool) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(),
		`select doubt is not null from slot_ownership where chain_id = $1 and slot = $2`, chainID, slot).Scan(&is))
	return is
}

// Doubt is a statement about rows: it goes with its slot to the next owner, and concerns no row
// that is written later, nor another slot.
func TestDoubtGoesWithItsSlot(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{Delay: time.Hour})
	lost := w.server.Inject(testpubsub.Fault{Match: one("1"), Stored: true, Code: codes.Unavailable})
	w.approve(p, 1)
	require.Eventually(t, func() bool { return lost.Hits() == 1 }, patience, tick)
	require.NoError(t, p.Quiesce(t.Context(), []int16{1}))
	require.True(t, w.doubted(1))
	w.Exec(`update slot_ownership set owner = 'r1' where slot = 1`)
	w.Exec(`update cursors set epoch = 2`)
	p.Resume([]int16{1}, 2)
	w.epoch = 2
	w.approve(p, 2, 2)
	require.NoError(t, w.tap.Wait(w.within(), 3))
	require.NoError(t, p.stop())
	require.Zero(t, w.metric("relayer_republished_total"), "what is in doubt is not of this owner's slots")
	require.False(t, w.doubted(2))

	lost.Remove()
	cfg := w.config()
	cfg.Owner, cfg.Handover = "r1", nil
	w.Join("r1", 0)
	other := w.start(cfg, publish.Tuning{})
	w.wait(4)
	w.epoch = 1
	w.approve(other, 1)
	w.wait(5)
	require.NoError(t, other.stop())
	require.EqualValues(t, 1, w.metric("relayer_republished_total"), "the row that was in doubt, and not the one after it")
}

// A publisher that ends with rows acknowledged and not deleted leaves their doubt behind, for
// whoever has the slots then. Where it cannot, it says so.
func TestEndLeavesDoubtBehind(t *testing.T) {
	t.Parallel()
	for _, writable := range []bool{true, false} {
		w := setup(t, testpubsub.Options{})
		w.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
			create trigger refuse before delete on outbox execute function refuse()`)
		if !writable {
			w.Exec(`create trigger refuse before update on slot_ownership execute function refuse()`)
		}

		p := w.start(w.config(), publish.Tuning{})
		w.approve(p, 1, 1, 2)
		require.NoError(t, w.tap.Wait(w.within(), 3))
		require.NoError(t, p.stop())
		require.Equal(t, writable, p.Settled())
		require.Equal(t, writable, w.doubted(1) && w.doubted(2))
	}
}

// Slots come to rest although Pub/Sub answers nothing: else a rollback could not be followed as long as it hangs.
func TestQuiesceWhileHanging(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Delay: time.Hour})
	rows := w.backlog(1_000, 100)
	p := w.start(w.config(), publish.Tuning{Delay: 100 * time.Millisecond})
	require.Eventually(t, func() bool { return fault.Hits() == 100 }, patience, tick)
	slots := make([]int16, 2520)
	for i := range slots {
		slots[i] = int16(i)
	}

	require.NoError(t, p.Quiesce(t.Context(), slots))
	require.Zero(t, p.Stats().InFlight)
	require.Eventually(t, func() bool { return fault.Waiting() == 0 }, patience, tick,
		"else the server stores what was given up as well")
	p.Resume(slots, 0)
	fault.Remove()
	w.same(rows, w.wait(len(rows)))
	require.NoError(t, p.stop())
}

// Stats and the last failure say what stands in the way, for the page.
func TestStatsSayWhatStandsInTheWay(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	fault := w.server.Inject(testpubsub.Fault{Topic: testpubsub.TopicName(project, settlement),
		Code: codes.PermissionDenied})
	p := w.start(cfg, publish.Tuning{})
	w.approve(p, 1, 2)
	require.Eventually(t, func() bool { return p.Stats().BlockedKeys == 2 }, patience, tick)
	last := cfg.Metrics.LastFailure()
	require.Equal(t, codes.PermissionDenied, pubsub.Code(last.Err))
	require.ErrorContains(t, last.Err, "injected fault")
	require.False(t, last.At.IsZero())
	fault.Remove()
	w.wait(2)
	require.Eventually(t, func() bool { return p.Stats().BlockedKeys == 0 }, patience, tick)
	require.NotNil(t, cfg.Metrics.LastFailure(), "it is the last one, not one that goes on")
	require.NoError(t, p.stop())
}
