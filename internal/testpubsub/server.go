package testpubsub

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Options of a server. The zero value is a server that listens on a free loopback port and stores messages.
type Options struct {
	// Addr to listen on, host:port. Zero: a free port of 127.0.0.1.
	Addr string
	// Forget makes the server acknowledge messages and show them to taps, and neither store nor
	// deliver them: a sink whose memory does not grow and that is not the bottleneck of a benchmark.
	// Topics need not exist.
	Forget bool
}

// Server accepts messages until Stop. Its methods may be called concurrently.
type Server struct {
	addr   string
	forget bool
	grpc   *grpc.Server
	served sync.WaitGroup

	mu            sync.Mutex
	topics        map[string]*topic // by full name
	subscriptions map[string]*subscription
	nextID        int // of messages
	taps          map[*Recorder]struct{}
	watcher       Watcher // nil: none

	faults faults
}

type topic struct {
	proto         *pubsubpb.Topic
	subscriptions []*subscription
}

// goneClients is how the server notices that a client is gone whose connection never ended.
var goneClients = grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second})

// pings are allowed as often as by Google's front ends, every 30 s (googleapis/java-bigtable#528), and a little.
var pings = grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 25 * time.Second})

// Start starts a server. It listens when Start returns.
func Start(ctx context.Context, o Options) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(o.Addr, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("listen for Pub/Sub clients: %w", err)
	}

	s := &Server{
		addr:   listener.Addr().String(),
		forget: o.Forget,
		grpc: grpc.NewServer(grpc.MaxRecvMsgSize(2*maxRequestBytes), grpc.MaxSendMsgSize(2*maxRequestBytes), goneClients,
			pings),
		topics: map[string]*topic{}, subscriptions: map[string]*subscription{}, taps: map[*Recorder]struct{}{},
	}
	pubsubpb.RegisterPublisherServer(s.grpc, &publisher{server: s})
	pubsubpb.RegisterSubscriberServer(s.grpc, &subscriber{server: s})
	s.served.Go(func() { _ = s.grpc.Serve(listener) }) // ends with Stop only; clients see the rest

	return s, nil
}

// Addr is what clients put into PUBSUB_EMULATOR_HOST.
func (s *Server) Addr() string { return s.addr }

// ClientOptions connect a client to a server or a proxy at addr, without credentials.
func ClientOptions(addr string) []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

// Stop ends the server and every request in flight. What it stored is gone.
func (s *Server) Stop() error {
	s.grpc.Stop()
	s.served.Wait()

	return nil
}

// Moment is one in the life of a message on its way to a consumer.
type Moment string

// Moments that a Watcher is told of.
const (
	Delivered    Moment = "delivered"    // messages were sent on a stream
	Acknowledged Moment = "acknowledged" // an acknowledgement has come, and not taken effect
)

// Watcher is told of moments. If it returns an error, that is the answer, and an acknowledgement has no
// effect: the request was lost on its way. It may be called concurrently.
type Watcher func(subscription string, what Moment) error

// Watch replaces the watcher.
func (s *Server) Watch(w Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watcher = w
}

func (s *Server) watch(subscription string, what Moment) error {
	s.mu.Lock()
	w := s.watcher
	s.mu.Unlock()
	if w == nil {
		return nil
	}

	return w(subscription, what)
}

// Unacknowledged is how many messages a subscription, by its full name, has yet to deliver or hear of.
func (s *Server) Unacknowledged(subscription string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subscriptions[subscription]; sub != nil {
		for _, q := range sub.keys {
			n += len(q.items)
		}
	}

	return n
}

// Tap records the messages of topics, by their full names, or all, from now on, until the recorder is stopped.
func (s *Server) Tap(topics ...string) *Recorder { return s.tap(&Recorder{topics: topics}) }

// TapRaw is Tap of messages that are not decoded: a benchmark's, which would measure that too, an older release's, and
// those of whoever develops a consumer.
func (s *Server) TapRaw() *Recorder { return s.tap(&Recorder{raw: true}) }

func (s *Server) tap(r *Recorder) *Recorder {
	r.server, r.changed = s, make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taps[r] = struct{}{}

	return r
}

// publisher is what publishers and administrators of topics call.
type publisher struct {
	pubsubpb.UnimplementedPublisherServer
	server *Server
}

func (p *publisher) CreateTopic(_ context.Context, req *pubsubpb.Topic) (*pubsubpb.Topic, error) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	if p.server.topics[req.Name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "topic %s exists", req.Name)
	}

	p.server.topics[req.Name] = &topic{proto: req}

	return req, nil
}

func (p *publisher) GetTopic(_ context.Context, req *pubsubpb.GetTopicRequest) (*pubsubpb.Topic, error) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	t, err := p.server.topic(req.Topic)
	if err != nil {
		return nil, err
	}

	return t.proto, nil
}

// DeleteTopic leaves the subscriptions without a topic.
func (p *publisher) DeleteTopic(_ context.Context, req *pubsubpb.DeleteTopicRequest) (*emptypb.Empty, error) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	t, err := p.server.topic(req.Topic)
	if err != nil {
		return nil, err
	}

	for _, s := range t.subscriptions {
		s.proto.Topic = "_deleted-topic_"
	}

	delete(p.server.topics, req.Topic)

	return &emptypb.Empty{}, nil
}

func (s *Server) topic(name string) (*topic, error) {
	if t := s.topics[name]; t != nil {
		return t, nil
	}

	return nil, status.Errorf(codes.NotFound, "there is no topic %s", name)
}

func (p *publisher) Publish(ctx context.Context, req *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	if err := check(req); err != nil {
		return nil, err
	}

	fault := p.server.faults.take(req)
	if err := fault.wait(ctx); err != nil {
		return nil, err
	}

	if fault != nil && fault.Code != codes.OK && !fault.Stored {
		return nil, fault.status()
	}

	resp, err := p.server.store(req)
	if err == nil && fault != nil && fault.Code != codes.OK {
		return nil, fault.status()
	}

	return resp, err
}

// Publish is a request with one message, from this process.
func (s *Server) Publish(ctx context.Context, topic string, body []byte) error {
	_, err := (&publisher{server: s}).Publish(ctx, &pubsubpb.PublishRequest{Topic: topic,
		Messages: []*pubsubpb.PubsubMessage{{Data: body}}})
	return err
}

func (s *Server) store(req *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.topic(req.Topic)
	switch {
	case s.forget:
		t = &topic{proto: &pubsubpb.Topic{Name: req.Topic}}
	case err != nil:
		return nil, err
	}

	return &pubsubpb.PublishResponse{MessageIds: s.keep(t, req.Messages)}, nil
}

// keep gives messages their ids, and passes them to subscriptions and taps in the same order.
func (s *Server) keep(t *topic, messages []*pubsubpb.PubsubMessage) (ids []string) {
	now := time.Now()
	for _, m := range messages {
		s.nextID++
		m.MessageId, m.PublishTime = fmt.Sprintf("m%d", s.nextID), timestamppb.New(now)
		ids = append(ids, m.MessageId)
		for _, sub := range t.subscriptions {
			sub.add(m)
		}

		for tap := range s.taps {
			tap.add(message(t.proto.Name, m, now))
		}
	}

	return ids
}

// Limits of the real service, from its page on quotas and limits.
const (
	maxRequestBytes    = 10_000_000
	maxRequestMessages = 1000
	maxAttributes      = 100
	maxAttributeKey    = 256
	maxAttributeValue  = 1024
	maxOrderingKey     = 1024
)

// check refuses what the real service refuses.
func check(req *pubsubpb.PublishRequest) error {
	size := 0
	refuse := func(format string, args ...any) error { return status.Errorf(codes.InvalidArgument, format, args...) }
	if n := len(req.Messages); n == 0 || n > maxRequestMessages {
		return refuse("a request has 1 to %d messages, this one %d", maxRequestMessages, n)
	}

	for _, m := range req.Messages {
		size += len(m.Data) + len(m.OrderingKey)
		switch {
		case len(m.Data) == 0 && len(m.Attributes) == 0:
			return refuse("a message has data or an attribute")
		case m.OrderingKey != req.Messages[0].OrderingKey:
			// The real service's code: yoshidan/google-cloud-rust#226.
			return status.Errorf(codes.FailedPrecondition, "all messages of a request have the same ordering key, not %q and %q",
				req.Messages[0].OrderingKey, m.OrderingKey)
		case len(m.OrderingKey) > maxOrderingKey:
			return refuse("an ordering key has up to %d bytes", maxOrderingKey)
		case len(m.Attributes) > maxAttributes:
			return refuse("a message has up to %d attributes", maxAttributes)
		}

		for key, value := range m.Attributes {
			size += len(key) + len(value)
			if key == "" || len(key) > maxAttributeKey || len(value) > maxAttributeValue {
				return refuse("attribute %q: a key has 1 to %d bytes, a value up to %d", key, maxAttributeKey, maxAttributeValue)
			}
		}
	}

	if size > maxRequestBytes {
		return refuse("a request has up to %d bytes, this one %d", maxRequestBytes, size)
	}

	return nil
}

// TopicName and SubscriptionName are the full names that the service knows things by.
func TopicName(project, topic string) string {
	return fmt.Sprintf("projects/%s/topics/%s", project, topic)
}

// SubscriptionName is the full name that the API uses.
func SubscriptionName(project, subscription string) string {
	return fmt.Sprintf("projects/%s/subscriptions/%s", project, subscription)
}

// ackDeadlineSeconds is how long the server waits for an acknowledgement before it delivers again: the longest there
// is, since a stalled test is no reason for duplicates.
const ackDeadlineSeconds = 600

// CreateTopic creates a topic; one that exists is fine.
func (s *Server) CreateTopic(project, topic string) {
	// AlreadyExists is the only error.
	_, _ = (&publisher{server: s}).CreateTopic(context.Background(), &pubsubpb.Topic{Name: TopicName(project, topic)})
}

// DeleteTopic deletes a topic; its subscriptions stay, and get nothing any more.
func (s *Server) DeleteTopic(project, topic string) error {
	_, err := (&publisher{server: s}).DeleteTopic(context.Background(),
		&pubsubpb.DeleteTopicRequest{Topic: TopicName(project, topic)})
	return err
}

// SubscribeInOrder creates a subscription with message ordering; one that exists is fine.
func (s *Server) SubscribeInOrder(project, topic, subscription string) error {
	return s.Subscribe(&pubsubpb.Subscription{
		Name:                  SubscriptionName(project, subscription),
		Topic:                 TopicName(project, topic),
		AckDeadlineSeconds:    ackDeadlineSeconds,
		EnableMessageOrdering: true,
	})
}

// Subscribe creates any subscription; one that exists is fine.
func (s *Server) Subscribe(sub *pubsubpb.Subscription) error {
	_, err := (&subscriber{server: s}).CreateSubscription(context.Background(), sub)
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}

	return err
}
