package publish_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/race"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// one is a fault's condition by the number of a message, whatever else is in its request.
func one(numbers ...string) func(*pubsubpb.PubsubMessage) bool {
	return func(m *pubsubpb.PubsubMessage) bool {
		decoded, err := message.Decode(m.Data, m.Attributes)
		for _, n := range numbers {
			if err == nil && decoded.Args["n"] == n {
				return true
			}
		}

		return false
	}
}

func TestOrderAcrossFailures(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	// Each of these hits some messages in the middle of a key's rows, once or a few times.
	w.server.Inject(testpubsub.Fault{Match: one("3", "50", "91"), Times: 9, Code: codes.PermissionDenied})
	w.server.Inject(testpubsub.Fault{Match: one("17", "64"), Times: 5, Code: codes.ResourceExhausted})
	w.server.Inject(testpubsub.Fault{Match: one("33"), Times: 3, Code: codes.NotFound, Delay: 20 * time.Millisecond})
	p := w.start(w.config(), publish.Tuning{BatchRows: 4, PageRows: 16})
	var rows []outbox.Pending
	for range 40 {
		rows = append(rows, w.approve(p, 1, 2, 1, 3, 1)...)
	}

	w.same(rows, w.wait(len(rows)))
	require.NoError(t, p.stop())
	require.Zero(t, w.metric("relayer_republished_total"))
	require.EqualValues(t, 17, w.metric("relayer_publish_errors_total"))
}

// Where the answer is lost, the messages of that request come twice and are counted, and their
// order is such that whoever drops what it has seen is left with the right one.
func TestAcknowledgementLost(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.server.Inject(testpubsub.Fault{Match: one("2"), Times: 1, Stored: true, Code: codes.Unavailable})
	rows := w.approve(nil, 1, 1, 1, 2)
	w.handover = publish.Handover{}
	p := w.start(w.config(), publish.Tuning{})
	messages := w.wait(7)
	require.NoError(t, p.stop())
	key := "7:0xe5c0000000000000000000000000000000000001"
	require.Equal(t, []string{"1", "2", "3", "1", "2", "3"}, w.numbers(messages)[key])
	require.Len(t, messages, len(rows)+3)
}

func TestAcknowledgementLostIsCounted(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{})
	w.approve(p, 9)
	w.wait(1)
	fault := w.server.Inject(testpubsub.Fault{Match: one("3"), Times: 1, Stored: true, Code: codes.Internal})
	w.approve(p, 1, 1, 1, 2)
	require.Eventually(t, func() bool { return fault.Hits() == 1 }, patience, tick)
	w.approve(p, 1)
	w.wait(9)
	require.NoError(t, p.stop())
	require.EqualValues(t, 3, w.metric("relayer_republished_total"), "the three of the request, and not what came after")
}

func TestTopicDeletedAndRecreated(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1, 2)
	w.wait(2)
	client, err := pubsub.NewClient(t.Context(), project, testpubsub.ClientOptions(w.server.Addr())...)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(),
		&pubsubpb.DeleteTopicRequest{Topic: testpubsub.TopicName(project, settlement)}))
	for range 10 {
		rows = append(rows, w.approve(p, 1, 2)...)
	}

	changed := w.commit("ArbiterChanged", message.Original, 1)
	p.OfferRows(1, changed)
	require.NoError(t, w.tap.Wait(w.within(), 3), "the same key on another topic")
	require.Eventually(t, func() bool { return p.Stats().BlockedKeys == 2 }, patience, tick)
	w.server.CreateTopic(project, settlement)
	var settled []testpubsub.Message
	for _, m := range w.wait(23) {
		if m.Topic == testpubsub.TopicName(project, settlement) {
			settled = append(settled, m)
		}
	}

	w.same(rows, settled)
	require.NoError(t, p.stop())
	require.Equal(t, 1, w.logs.count("ERROR publish failed"))
}

// With everything failing and a backlog larger than the window, memory does not grow and nothing
// spins; when the trouble is over, all of it flows, in order.
func TestOutageWithBacklog(t *testing.T) { // alone: it looks at the heap
	w := setup(t, testpubsub.Options{})
	const events, batch = 50_000, 2_000
	var rows []outbox.Pending
	numbers := make([]int, batch)
	for at := 0; at < events; at += batch {
		for i := range numbers {
			numbers[i] = (at + i) * 7919 % 10_000
		}

		rows = append(rows, w.approve(nil, numbers...)...)
	}

	fault := w.server.Inject(testpubsub.Fault{Code: codes.Unavailable})
	before := heap()
	p := w.start(w.config(), publish.Tuning{Delay: 100 * time.Millisecond})
	require.Eventually(t, func() bool { return p.Stats().BlockedKeys >= 2000 }, patience, tick)
	hits := fault.Hits()
	time.AfterFunc(time.Second, fault.Remove)
	for range rows[:10] {
		w.approve(p, 10_000) // its key waits for the others: it cannot be told from them
	}

	grown := heap() - before
	t.Logf("%d kB of heap, %d blocked keys", grown>>10, p.Stats().BlockedKeys)
	limit := int64(40 << 20)
	if race.Detector {
		limit *= 2
	}

	require.Less(t, grown, limit)
	require.LessOrEqual(t, p.Stats().BlockedKeys, 2000+16_384, "the limit, and what was in memory when it was reached")
	require.NoError(t, w.tap.Wait(w.within(), events+10))
	t.Logf("%d requests in the second before the end of the outage", fault.Hits()-hits)
	require.Less(t, fault.Hits()-hits, 2000*12)
	w.emptied()
	w.same(append(rows, w.tail(10)...), w.tap.Messages())
	require.NoError(t, p.stop())
}

// heap is the least of some looks: requests that are under way come and go.
func heap() (least int64) {
	least = math.MaxInt64
	for range 8 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int64(m.HeapAlloc))
	}

	return least
}

// A key that fails for ever costs no memory however much is committed for it, and reading on does
// not read its rows again and again.
func TestLongQueueOfOneKey(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	key := "7:0xe5c0000000000000000000000000000000000001"
	fault := w.server.Inject(testpubsub.Fault{Key: key, Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{WindowRows: 64, PageRows: 16})
	var rows []outbox.Pending
	many := make([]int, 500)
	for i := range many {
		many[i] = 1
	}

	good := 0
	for range 10 {
		rows = append(rows, w.approve(p, many...)...)
		rows = append(rows, w.approve(p, 2, 3)...)
		good += 2
	}

	require.NoError(t, w.tap.Wait(w.within(), good))
	require.Equal(t, good, w.tap.Len())
	fault.Remove()
	w.same(rows, w.wait(len(rows)))
	require.NoError(t, p.stop())
}

// An answer that does not come holds up its own key only.
func TestSlowKey(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Key: "7:0xe5c0000000000000000000000000000000000001", Delay: time.Hour})
	p := w.start(w.config(), publish.Tuning{WindowRows: 64, PageRows: 16})
	var rows []outbox.Pending
	for range 50 {
		rows = append(rows, w.approve(p, 1, 1, 2)...)
	}

	require.NoError(t, w.tap.Wait(w.within(), 50))
	fault.Remove()
	w.same(rows, w.wait(150))
	require.NoError(t, p.stop())
}

// More blocked keys than are kept: their topic's other keys wait, other topics do not, and nothing
// is lost or turned round.
func TestTooManyBlockedKeys(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Topic: testpubsub.TopicName(project, settlement),
		Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{MaxBlocked: 8, Requests: 4, WindowRows: 64, PageRows: 16,
		RereadEvery: 50 * time.Millisecond})
	var rows []outbox.Pending
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		rows = append(rows, w.approve(p, r.IntN(60), r.IntN(60), r.IntN(60))...)
	}

	p.OfferRows(1, w.commit("ArbiterChanged", message.Original, 61, 62))
	require.NoError(t, w.tap.Wait(w.within(), 2))
	require.LessOrEqual(t, p.Stats().BlockedKeys, 8+64, "the limit, and what was in memory when it was reached")
	fault.Remove()
	messages := w.wait(len(rows) + 2)
	w.same(rows, messages[2:])
	require.NoError(t, p.stop())
}

// tail returns the last rows that were committed under approve's numbering.
func (w *world) tail(n int) (rows []outbox.Pending) {
	for i := range n {
		number := strconv.FormatInt(w.commits-int64(n)+1+int64(i), 10)
		row := outbox.Pending{}
		row.Event.Escrow = escrow(10_000)
		row.Event.Args = []byte(`{"n":"` + number + `"}`)
		rows = append(rows, row)
	}

	return rows
}
