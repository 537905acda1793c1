package testpubsub_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

const (
	leased = "leased" // a subscription with dead letters and an acknowledgement deadline
	dead   = "dead"   // topic, and its subscription
)

// leases has a server with the subscription leased, and a client.
type leases struct {
	t *testing.T
	*testpubsub.Server
	pubsubpb.SubscriberClient
	publisher pubsubpb.PublisherClient
}

func newLeases(t *testing.T, change func(*pubsubpb.Subscription)) *leases {
	t.Helper()
	s := testpubsub.New(t, testpubsub.Options{}, project, topic, dead)
	require.NoError(t, s.SubscribeInOrder(project, dead, dead))
	l := &leases{t: t, Server: s}
	conn := l.connect()
	l.SubscriberClient, l.publisher = pubsubpb.NewSubscriberClient(conn), pubsubpb.NewPublisherClient(conn)
	sub := &pubsubpb.Subscription{
		Name: testpubsub.SubscriptionName(project, leased), Topic: testpubsub.TopicName(project, topic),
		AckDeadlineSeconds: 600, EnableMessageOrdering: true,
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: testpubsub.TopicName(project, dead)},
	}
	if change != nil {
		change(sub)
	}

	_, err := l.CreateSubscription(t.Context(), sub)
	require.NoError(t, err)

	return l
}

func (l *leases) connect() *grpc.ClientConn {
	conn, err := grpc.NewClient(l.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = conn.Close() })

	return conn
}

func (l *leases) publish(key string, bodies ...string) {
	for _, body := range bodies {
		_, err := l.publisher.Publish(within(l.t), &pubsubpb.PublishRequest{Topic: testpubsub.TopicName(project, topic),
			Messages: []*pubsubpb.PubsubMessage{{OrderingKey: key, Data: []byte(body)}}})
		require.NoError(l.t, err)
	}
}

// client is a stream on a connection of its own.
type client struct {
	*leases
	conn   *grpc.ClientConn
	stream pubsubpb.Subscriber_StreamingPullClient
	more   []*pubsubpb.ReceivedMessage // received, and not returned yet
}

func (l *leases) open() *client {
	conn := l.connect()
	stream, err := pubsubpb.NewSubscriberClient(conn).StreamingPull(within(l.t))
	require.NoError(l.t, err)
	require.NoError(l.t, stream.Send(&pubsubpb.StreamingPullRequest{
		Subscription: testpubsub.SubscriptionName(project, leased), StreamAckDeadlineSeconds: 600}))

	return &client{leases: l, conn: conn, stream: stream}
}

// next returns n messages as "body/attempt", and how to acknowledge them.
func (c *client) next(n int) (bodies, ids []string) {
	for len(bodies) < n {
		if len(c.more) == 0 {
			resp, err := c.stream.Recv()
			require.NoError(c.t, err, "after %s", bodies)
			c.more = resp.ReceivedMessages
			continue
		}

		m := c.more[0]
		c.more = c.more[1:]
		bodies, ids = append(bodies, fmt.Sprintf("%s/%d", m.Message.Data, m.DeliveryAttempt)), append(ids, m.AckId)
	}

	return bodies, ids
}

func (c *client) gets(bodies ...string) (ids []string) {
	c.t.Helper()
	got, ids := c.next(len(bodies))
	require.Equal(c.t, bodies, got)

	return ids
}

func (c *client) ack(ids ...string) {
	_, err := c.Acknowledge(within(c.t), &pubsubpb.AcknowledgeRequest{
		Subscription: testpubsub.SubscriptionName(project, leased), AckIds: ids})
	require.NoError(c.t, err)
}

func (c *client) nack(id string) {
	require.NoError(c.t, c.stream.Send(&pubsubpb.StreamingPullRequest{ModifyDeadlineAckIds: []string{id},
		ModifyDeadlineSeconds: []int32{0}}))
}

// Pub/Sub delivers what a closed stream had not acknowledged to another one, whatever its deadline
// (googleapis/nodejs-pubsub#10), and with it what came later of the key.
func TestAStreamThatDiesReleasesItsMessages(t *testing.T) {
	t.Parallel()
	l := newLeases(t, nil)
	l.publish("k", "1", "2", "3", "4")
	l.publish("other", "a")
	first := l.open()
	got, ids := first.next(5)
	require.ElementsMatch(t, []string{"1/1", "2/1", "3/1", "4/1", "a/1"}, got)
	first.ack(ids[slices.Index(got, "1/1")], ids[slices.Index(got, "3/1")])
	second := l.open() // has nothing as long as the first lives
	require.NoError(t, first.conn.Close())

	again, ids := second.next(4)
	require.ElementsMatch(t, []string{"2/1", "3/1", "4/1", "a/1"}, again)
	require.IsIncreasing(t, slices.DeleteFunc(again, func(body string) bool { return body == "a/1" }))
	second.ack(ids...)
	l.publish("k", "5")
	second.gets("5/1")
}

// What a connection that never ended holds comes again when the deadline has passed.
func TestALeaseEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	l := newLeases(t, func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 10 })
	l.publish("k", "1", "2")
	pull := &pubsubpb.PullRequest{Subscription: testpubsub.SubscriptionName(project, leased), MaxMessages: 1}
	resp, err := l.Pull(within(t), pull)
	require.NoError(t, err)
	require.Len(t, resp.ReceivedMessages, 1)
	_, err = l.ModifyAckDeadline(within(t), &pubsubpb.ModifyAckDeadlineRequest{Subscription: pull.Subscription,
		AckIds: []string{resp.ReceivedMessages[0].AckId}, AckDeadlineSeconds: 1})
	require.NoError(t, err)

	ids := l.open().gets("1/2", "2/1")
	_, err = l.Acknowledge(within(t), &pubsubpb.AcknowledgeRequest{Subscription: pull.Subscription, AckIds: ids})
	require.NoError(t, err)
}

// Messages of a key go to one client at a time.
func TestAKeyHasOneClient(t *testing.T) {
	t.Parallel()
	l := newLeases(t, nil)
	first := l.open()
	l.publish("k", "1")
	held := first.gets("1/1")
	second := l.open()
	l.publish("k", "2")
	held = append(held, first.gets("2/1")...)
	first.ack(held[0])
	require.NoError(t, first.conn.Close())
	second.ack(second.gets("2/1")...)
	l.publish("k", "3")
	second.gets("3/1")
}

// A refused message comes again with all that came after it of its key, and after five attempts goes to the
// dead-letter topic; the key goes on.
func TestDeadLettersAfterFiveAttempts(t *testing.T) {
	t.Parallel()
	l := newLeases(t, nil)
	letters := l.Tap(testpubsub.TopicName(project, dead))
	l.publish("k", "good", "bad", "later")
	c := l.open()
	ids := c.gets("good/1", "bad/1", "later/1")
	c.ack(ids[0], ids[2])
	c.nack(ids[1])
	for attempt := 2; attempt <= 5; attempt++ {
		ids = c.gets(fmt.Sprintf("bad/%d", attempt), "later/1")
		c.nack(ids[0])
	}

	c.ack(c.gets("later/1")...)
	l.publish("k", "last")
	c.ack(c.gets("last/1")...)

	defer func() { require.NoError(t, letters.Stop()) }()
	require.NoError(t, letters.Wait(within(t), 1))
	m := letters.Messages()[0]
	require.Equal(t, "bad", string(m.Data))
	require.Equal(t, "k", m.Key)
	require.Equal(t, leased, m.Attributes["CloudPubSubDeadLetterSourceSubscription"])
	require.Equal(t, "5", m.Attributes["CloudPubSubDeadLetterSourceDeliveryCount"])
}

// With a retry policy a refused message waits, so that an outage of a consumer's database leaves no dead letters.
func TestRetryPolicyDelays(t *testing.T) {
	t.Parallel()
	l := newLeases(t, func(s *pubsubpb.Subscription) {
		s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second),
			MaximumBackoff: durationpb.New(time.Minute)}
	})
	l.publish("k", "1")
	c := l.open()
	refused := time.Now()
	c.nack(c.gets("1/1")[0])
	ids := c.gets("1/2")
	require.GreaterOrEqual(t, time.Since(refused), time.Second)
	refused = time.Now()
	c.nack(ids[0])
	c.gets("1/3")
	require.GreaterOrEqual(t, time.Since(refused), 2*time.Second)
}

// A client's flow control bounds what it holds.
func TestFlowControl(t *testing.T) {
	t.Parallel()
	l := newLeases(t, nil)
	stream, err := l.StreamingPull(within(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pubsubpb.StreamingPullRequest{MaxOutstandingMessages: 2,
		Subscription: testpubsub.SubscriptionName(project, leased), StreamAckDeadlineSeconds: 600}))
	c := &client{leases: l, stream: stream}
	l.publish("k", "1", "2", "3")
	ids := c.gets("1/1", "2/1")
	c.ack(ids...)
	c.gets("3/1")
}

func TestServerRefusesSubscriptionsThatItCannotServe(t *testing.T) {
	t.Parallel()
	l := newLeases(t, nil)
	for what, s := range map[string]*pubsubpb.Subscription{
		"filters":      {Filter: `attributes.a = "b"`},
		"push":         {PushConfig: &pubsubpb.PushConfig{PushEndpoint: "http://127.0.0.1"}},
		"exactly-once": {EnableExactlyOnceDelivery: true},
	} {
		s.Name, s.Topic = testpubsub.SubscriptionName(project, what), testpubsub.TopicName(project, topic)
		_, err := l.CreateSubscription(context.Background(), s)
		require.ErrorContains(t, err, what)
	}
}
