package testpubsub_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

func TestMain(m *testing.M) {
	// started by an init of the client's
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const (
	project = "test-project"
	topic   = "test-topic"
)

type fixture struct {
	*testpubsub.Server
	publisher *pubsub.Publisher
	tap       *testpubsub.Recorder
}

func setup(t testing.TB, o testpubsub.Options) *fixture {
	t.Helper()
	ctx := t.Context()
	s, err := testpubsub.Start(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	for range 2 { // the second time it exists
		s.CreateTopic(project, topic)
		require.NoError(t, s.SubscribeInOrder(project, topic, "all"))
	}

	tap := s.Tap()
	t.Cleanup(func() { require.NoError(t, tap.Stop()) })

	client, err := pubsub.NewClient(ctx, project, testpubsub.ClientOptions(s.Addr())...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	p := client.Publisher(topic)
	p.EnableMessageOrdering = true
	p.PublishSettings.DelayThreshold = time.Millisecond
	t.Cleanup(p.Stop)

	return &fixture{Server: s, publisher: p, tap: tap}
}

// publish returns the answers in the order of the messages.
func (f *fixture) publish(ctx context.Context, key string, bodies ...string) (errs []error) {
	var results []*pubsub.PublishResult
	for _, body := range bodies {
		results = append(results, f.publisher.Publish(ctx, &pubsub.Message{Data: []byte(body), OrderingKey: key}))
	}

	for _, r := range results {
		_, err := r.Get(ctx)
		errs = append(errs, err)
	}

	return errs
}

func byKey(messages []testpubsub.Message) map[string][]string {
	out := map[string][]string{}
	for _, m := range messages {
		out[m.Key] = append(out[m.Key], string(m.Data))
	}

	return out
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestMessagesAreRecordedInOrderPerKey(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	other := f.Tap(testpubsub.TopicName(project, "another"))
	before := time.Now()
	want := map[string][]string{}
	var senders sync.WaitGroup
	for k := range 5 {
		key := fmt.Sprint("key", k)
		for n := range 40 {
			want[key] = append(want[key], fmt.Sprint(key, "-", n))
		}

		bodies := want[key]
		senders.Go(func() { f.publish(ctx, key, bodies...) })
	}

	senders.Wait()

	got := f.tap.Messages()
	require.Equal(t, want, byKey(got))
	ids := map[string]bool{}
	for _, m := range got {
		ids[m.ID] = true
		require.WithinRange(t, m.Received, before, time.Now())
	}

	require.Len(t, ids, 200)
	require.Len(t, f.tap.Drain(), 200)
	require.Empty(t, f.tap.Messages())
	require.Equal(t, 200, f.tap.Len())
	require.Zero(t, other.Len())
}

func TestWait(t *testing.T) {
	t.Parallel()
	f := setup(t, testpubsub.Options{})
	waited := make(chan error, 1)
	go func() {
		waited <- f.tap.WaitFor(within(t), func(m []testpubsub.Message) bool { return len(byKey(m)["k"]) == 2 })
	}()
	f.publish(t.Context(), "other", "1", "2", "3")
	require.NoError(t, f.tap.Wait(within(t), 3))
	require.Empty(t, waited)
	f.publish(t.Context(), "k", "1", "2")
	require.NoError(t, <-waited)

	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("too slow"))
	defer cancel()
	require.ErrorContains(t, f.tap.Wait(ctx, 100), "of which 5 have come: too slow")
}

func TestFaultRefusesAKey(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	fault := f.Inject(testpubsub.Fault{Key: "bad", Topic: testpubsub.TopicName(project, topic),
		Code: codes.PermissionDenied})
	require.Equal(t, codes.PermissionDenied, status.Code(f.publish(ctx, "bad", "1")[0]))
	require.NoError(t, f.publish(ctx, "good", "1")[0])
	require.Equal(t, 1, fault.Hits())

	fault.Remove()
	fault.Remove()
	f.publisher.ResumePublish("bad")
	require.NoError(t, f.publish(ctx, "bad", "2")[0])
	require.Equal(t, map[string][]string{"good": {"1"}, "bad": {"2"}}, byKey(f.tap.Messages()))
}

func TestFaultHitsSoManyTimes(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	fault := f.Inject(testpubsub.Fault{Times: 2, Code: codes.Unavailable,
		Match: func(m *pubsubpb.PubsubMessage) bool { return string(m.Data) == "hit" }})
	require.NoError(t, f.publish(ctx, "k", "pass")[0])
	require.Zero(t, fault.Hits())
	require.NoError(t, f.publish(ctx, "k", "hit")[0], "the client itself tries again")
	require.Equal(t, 2, fault.Hits())
	require.Equal(t, 2, f.tap.Len())
}

func TestFaultLosesTheAcknowledgement(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	f.Inject(testpubsub.Fault{Code: codes.Unavailable, Stored: true, Times: 1})
	require.NoError(t, f.publish(ctx, "k", "1")[0])
	require.NoError(t, f.tap.Wait(ctx, 2))
	got := f.tap.Messages()
	require.Equal(t, []string{"1", "1"}, byKey(got)["k"], "stored twice, since the client tried again")
	require.NotEqual(t, got[0].ID, got[1].ID)
}

// A reactor of the fake's would stall every other request.
func TestFaultDelaysOnlyItsOwnRequest(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	fault := f.Inject(testpubsub.Fault{Key: "slow", Delay: time.Hour})
	slow := make(chan error, 1)
	go func() { slow <- f.publish(ctx, "slow", "1")[0] }()
	require.NoError(t, f.publish(ctx, "fast", "1")[0])
	require.NoError(t, f.tap.Wait(ctx, 1))
	require.Empty(t, slow)
	require.Eventually(t, func() bool { return fault.Hits() == 1 }, 10*time.Minute, time.Millisecond)
	fault.Remove()
	require.NoError(t, <-slow)
	require.Equal(t, []string{"1"}, byKey(f.tap.Messages())["slow"])
}

func TestServerRefusesWhatTheServiceRefuses(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{}), within(t)
	conn, err := grpc.NewClient(f.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	client := pubsubpb.NewPublisherClient(conn)
	body := []byte("x")
	const anotherKey = "the same ordering key"
	for name, messages := range map[string][]*pubsubpb.PubsubMessage{
		"1 to 1000 messages":   nil,
		"this one 1001":        make([]*pubsubpb.PubsubMessage, 1001),
		"data or an attribute": {{OrderingKey: "k"}},
		anotherKey:             {{Data: body, OrderingKey: "a"}, {Data: body, OrderingKey: "b"}},
		"up to 1024 bytes":     {{Data: body, OrderingKey: strings.Repeat("k", 1025)}},
		"a value up to 1024":   {{Data: body, Attributes: map[string]string{"a": strings.Repeat("v", 1025)}}},
		"up to 10000000 bytes": {{Data: make([]byte, 10_000_001)}},
	} {
		for i, m := range messages {
			if m == nil {
				messages[i] = &pubsubpb.PubsubMessage{Data: body}
			}
		}

		_, err := client.Publish(ctx, &pubsubpb.PublishRequest{Topic: testpubsub.TopicName(project, topic),
			Messages: messages})
		code := codes.InvalidArgument
		if name == anotherKey {
			code = codes.FailedPrecondition
		}

		require.Equal(t, code, status.Code(err), name)
		require.ErrorContains(t, err, name)
	}

	require.Zero(t, f.tap.Len())
}

func TestForgetKeepsNothing(t *testing.T) {
	t.Parallel()
	f, ctx := setup(t, testpubsub.Options{Forget: true}), within(t)
	require.NoError(t, f.publish(ctx, "k", "1", "2")[1])
	require.Equal(t, []string{"1", "2"}, byKey(f.tap.Messages())["k"])
	require.Zero(t, f.Unacknowledged(testpubsub.SubscriptionName(project, "all")))
}

func TestAddressIsReused(t *testing.T) {
	t.Parallel()
	reserved, err := port.Reserve()
	require.NoError(t, err)
	defer reserved.Close()
	s, err := testpubsub.Start(t.Context(), testpubsub.Options{Addr: reserved.Addr()})
	require.NoError(t, err)
	_, err = testpubsub.Start(t.Context(), testpubsub.Options{Addr: s.Addr()})
	require.ErrorContains(t, err, "listen for Pub/Sub clients")
	require.NoError(t, s.Stop())
	again, err := testpubsub.Start(t.Context(), testpubsub.Options{Addr: s.Addr()})
	require.NoError(t, err)
	require.Equal(t, s.Addr(), again.Addr())
	require.NoError(t, again.Stop())
}
