package testpubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
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
	fake   *pstest.Server
	grpc   *grpc.Server
	served sync.WaitGroup

	mu     sync.Mutex // held while a request is stored, so that taps see the order of storage
	nextID int
	taps   map[*Recorder]struct{}
	stored chan struct{} // closed and replaced when a request is stored
	clock  clock

	faults faults
}

// goneClients is how the server notices that a client is gone whose connection never ended. The fake hands a
// message that nobody acknowledged to the same stream again and again; the real service does not.
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
		fake:   pstest.NewServerWithAddress("127.0.0.1:0"), // nobody is told of that port: clients use ours
		grpc: grpc.NewServer(grpc.MaxRecvMsgSize(2*maxRequestBytes), grpc.MaxSendMsgSize(2*maxRequestBytes), goneClients,
			pings),
		taps: map[*Recorder]struct{}{}, stored: make(chan struct{}),
	}
	s.fake.SetTimeNowFunc(s.clock.now)
	pubsubpb.RegisterPublisherServer(s.grpc, &publisher{PublisherServer: &s.fake.GServer, server: s})
	pubsubpb.RegisterSubscriberServer(s.grpc, &subscriber{SubscriberServer: &s.fake.GServer, server: s})
	pubsubpb.RegisterSchemaServiceServer(s.grpc, &s.fake.GServer)
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
	err := s.fake.Close()
	s.fake.Wait()

	return err
}

// ClearMessages frees what the fake keeps of every message it ever stored (1.1 kB each), the ones
// that no subscriber has acknowledged yet included. What was tapped or recorded stays.
func (s *Server) ClearMessages() { s.fake.ClearMessages() }

// Tap records every message from now on, in the order of storage, until the recorder is stopped.
func (s *Server) Tap() *Recorder {
	r := newRecorder()
	r.stop = func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.taps, r)

		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taps[r] = struct{}{}

	return r
}

// publisher is pstest's, but for Publish.
type publisher struct {
	pubsubpb.PublisherServer
	server *Server
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

	resp, err := p.server.store(ctx, p.PublisherServer, req)
	if err == nil && fault != nil && fault.Code != codes.OK {
		return nil, fault.status()
	}

	return resp, err
}

func (s *Server) store(ctx context.Context, fake pubsubpb.PublisherServer,
	req *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &pubsubpb.PublishResponse{}
	if s.forget {
		for _, m := range req.Messages {
			s.nextID++
			m.MessageId, m.PublishTime = fmt.Sprintf("m%d", s.nextID), timestamppb.New(s.clock.now())
			resp.MessageIds = append(resp.MessageIds, m.MessageId)
		}
	} else {
		var err error
		if resp, err = fake.Publish(ctx, req); err != nil {
			return nil, err
		}
	}

	now := time.Now()
	for tap := range s.taps {
		for _, m := range req.Messages {
			tap.add(message(req.Topic, m, now))
		}
	}

	close(s.stored)
	s.stored = make(chan struct{})

	return resp, nil
}

// subscriber is pstest's, but for Pull.
type subscriber struct {
	pubsubpb.SubscriberServer
	server *Server
}

// pullWait bounds the wait for a message. What is delivered again, since nobody acknowledged it, comes by then.
const pullWait = 500 * time.Millisecond

// Pull answers as soon as a message is stored, as the real service does; the fake looks once more after 500 ms.
func (s *subscriber) Pull(ctx context.Context, req *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	wait := !req.ReturnImmediately //nolint:staticcheck // deprecated for the real service's sake: it may miss messages
	req.ReturnImmediately = true   //nolint:staticcheck // the wait is here
	for end := time.After(pullWait); ; {
		s.server.mu.Lock()
		stored := s.server.stored
		s.server.mu.Unlock()
		resp, err := s.SubscriberServer.Pull(ctx, req)
		if err != nil || len(resp.ReceivedMessages) > 0 || !wait {
			return resp, err
		}

		select {
		case <-stored:
		case <-end:
			wait = false
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
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

// check refuses what the real service refuses and the fake does not.
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

// clock never gives a time twice: the fake orders the messages of a key by publish time, and equal ones at random.
type clock struct {
	mu   sync.Mutex
	last time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now()
	if !t.After(c.last) {
		t = c.last.Add(1)
	}

	c.last = t

	return t
}

// TopicName and SubscriptionName are the full names that the service knows things by.
func TopicName(project, topic string) string {
	return fmt.Sprintf("projects/%s/topics/%s", project, topic)
}

// SubscriptionName is the full name that the API uses.
func SubscriptionName(project, subscription string) string {
	return fmt.Sprintf("projects/%s/subscriptions/%s", project, subscription)
}

// ackDeadlineSeconds is how long the server waits for a recorder's acknowledgement before it
// delivers again: the longest there is, since a stalled test is no reason for duplicates.
const ackDeadlineSeconds = 600

// CreateTopic creates a topic at the server at addr; one that exists is fine.
func CreateTopic(ctx context.Context, addr, project, topic string) error {
	return with(addr, func(conn *grpc.ClientConn) error {
		_, err := pubsubpb.NewPublisherClient(conn).CreateTopic(ctx, &pubsubpb.Topic{Name: TopicName(project, topic)})
		return ignoreExisting(fmt.Sprintf("create topic %s", topic), err)
	})
}

// DeleteTopic deletes a topic at the server at addr; its subscriptions stay, and get nothing any more.
func DeleteTopic(ctx context.Context, addr, project, topic string) error {
	return with(addr, func(conn *grpc.ClientConn) error {
		if _, err := pubsubpb.NewPublisherClient(conn).DeleteTopic(ctx,
			&pubsubpb.DeleteTopicRequest{Topic: TopicName(project, topic)}); err != nil {
			return fmt.Errorf("delete topic %s: %w", topic, err)
		}

		return nil
	})
}

// CreateSubscription creates a subscription with message ordering at the server at addr; one that exists is fine.
func CreateSubscription(ctx context.Context, addr, project, topic, subscription string) error {
	return with(addr, func(conn *grpc.ClientConn) error {
		_, err := pubsubpb.NewSubscriberClient(conn).CreateSubscription(ctx, &pubsubpb.Subscription{
			Name:                  SubscriptionName(project, subscription),
			Topic:                 TopicName(project, topic),
			AckDeadlineSeconds:    ackDeadlineSeconds,
			EnableMessageOrdering: true,
		})

		return ignoreExisting(fmt.Sprintf("create subscription %s", subscription), err)
	})
}

func ignoreExisting(what string, err error) error {
	if err == nil || status.Code(err) == codes.AlreadyExists {
		return nil
	}

	return fmt.Errorf("%s: %w", what, err)
}

func with(addr string, f func(*grpc.ClientConn) error) (err error) {
	conn, err := dial(addr)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, conn.Close()) }()

	return f(conn)
}
