package publish_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func TestOffered(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1, 2, 1)
	rows = append(rows, w.approve(p, 2, 1)...)
	w.same(rows, w.wait(5))
	require.NoError(t, p.stop())
	require.EqualValues(t, 5, w.metric("relayer_events_published"))
	require.EqualValues(t, 5, w.metric("relayer_event_latency_seconds"))
	require.Zero(t, w.metric("relayer_republished_total"))
	require.Equal(t, publish.Stats{}, p.Stats())
}

func TestReadFromTheOutbox(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	rows := w.approve(nil, 1, 2, 3, 1, 2, 3, 1)
	w.Exec(`update slot_ownership set doubt = clock_timestamp() where slot = 1`)
	rows = append(rows, w.approve(nil, 1)...)
	p := w.start(w.config(), publish.Tuning{PageRows: 2})
	w.same(rows, w.wait(8))
	require.NoError(t, p.stop())
	require.EqualValues(t, 3, w.metric("relayer_republished_total"),
		"of slot 1, an earlier process may have sent the first three")
}

func TestTopicsKeysAndKinds(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	cfg.BySlot = true
	w.state(w.commit("Approved", message.Retraction, 2521)[0], "retracted")
	p := w.start(cfg, publish.Tuning{})
	w.approve(p, 2521)
	p.OfferRows(1, w.commit("ArbiterChanged", message.Original, 2521))
	p.OfferRows(1, w.commit("Approved", message.Replay, 2521))
	messages := w.wait(4)
	require.NoError(t, p.stop())
	topics := map[string]int{}
	for _, m := range messages {
		require.Equal(t, "7:1", m.Key)
		topics[m.Topic]++
		decoded, err := message.Decode(m.Data, m.Attributes)
		require.NoError(t, err)
		require.Equal(t, m.Topic == testpubsub.TopicName(project, undone), decoded.Retracted)
	}

	require.Equal(t, map[string]int{testpubsub.TopicName(project, settlement): 2, testpubsub.TopicName(project, extra): 1,
		testpubsub.TopicName(project, undone): 1}, topics)
}

// What was stored while EVENT_NAMES named it never comes to the consumers of the default topic, who may refuse it for
// ever: neither from an instance that has the variable no more, nor from one that has it not yet.
func TestEventsThatEventNamesNamedBefore(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	cfg.Topics.Other = ""
	w.commit("ArbiterChanged", message.Original, 1)
	rows := w.approve(nil, 1)
	p := w.start(cfg, publish.Tuning{})
	w.same(rows, w.wait(1))
	require.NoError(t, p.stop())
}

func TestBadKeyBlocksNoOther(t *testing.T) {
	t.Parallel()
	for _, bySlot := range []bool{false, true} {
		w := setup(t, testpubsub.Options{})
		cfg := w.config()
		cfg.BySlot = bySlot
		key := "7:" + "0xe5c0000000000000000000000000000000000001"
		if bySlot {
			key = "7:1"
		}

		fault := w.server.Inject(testpubsub.Fault{Key: key, Code: codes.PermissionDenied})
		p := w.start(cfg, publish.Tuning{})
		var good, bad []outbox.Pending
		for range 20 {
			rows := w.approve(p, 1, 2, 3)
			bad, good = append(bad, rows[0]), append(good, rows[1:]...)
		}

		require.NoError(t, w.tap.Wait(w.within(), len(good)))
		require.Eventually(t, func() bool { return fault.Hits() > 3 }, patience, tick, "it is tried again and again")
		require.Equal(t, 1, p.Stats().BlockedKeys)
		require.Len(t, w.tap.Messages(), len(good))
		require.Equal(t, 1, w.logs.count("ERROR publish failed"), "said once")
		fault.Remove()
		messages := w.wait(len(good) + len(bad))
		if !bySlot {
			w.same(append(good, bad...), messages)
		}

		require.NoError(t, p.stop())
		require.Zero(t, w.metric("relayer_republished_total"), "refused is not stored")
		require.Equal(t, 1, w.logs.count("publishing recovered"))
	}
}
