package testpubsub

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// subscriber is what subscribers and administrators of subscriptions call.
type subscriber struct {
	pubsubpb.UnimplementedSubscriberServer
	server *Server
}

// CreateSubscription refuses what this server has not.
func (s *subscriber) CreateSubscription(_ context.Context, req *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	for what, asked := range map[string]bool{
		"filters":                    req.Filter != "",
		"push":                       req.PushConfig.GetPushEndpoint() != "",
		"export":                     req.BigqueryConfig != nil || req.CloudStorageConfig != nil,
		"exactly-once delivery":      req.EnableExactlyOnceDelivery,
		"transformations of a topic": len(req.MessageTransforms) > 0,
	} {
		if asked {
			return nil, status.Errorf(codes.Unimplemented, "this server has no %s", what)
		}
	}

	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if s.server.subscriptions[req.Name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "subscription %s exists", req.Name)
	}

	t, err := s.server.topic(req.Topic)
	if err != nil {
		return nil, err
	}

	req.AckDeadlineSeconds = cmp.Or(req.AckDeadlineSeconds, defaultDeadlineSeconds)
	if p := req.DeadLetterPolicy; p != nil {
		p.MaxDeliveryAttempts = cmp.Or(p.MaxDeliveryAttempts, defaultAttempts)
		if _, err := s.server.topic(p.DeadLetterTopic); err != nil {
			return nil, err
		}
	}

	sub := newSubscription(s.server, req)
	t.subscriptions = append(t.subscriptions, sub)
	s.server.subscriptions[req.Name] = sub

	return proto.CloneOf(req), nil
}

func (s *subscriber) GetSubscription(_ context.Context, req *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription,
	error) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	sub, err := s.server.subscription(req.Subscription)
	if err != nil {
		return nil, err
	}

	return proto.CloneOf(sub.proto), nil
}

func (s *Server) subscription(name string) (*subscription, error) {
	if sub := s.subscriptions[name]; sub != nil {
		return sub, nil
	}

	return nil, status.Errorf(codes.NotFound, "there is no subscription %s", name)
}

func (s *subscriber) find(name string) (*subscription, error) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()

	return s.server.subscription(name)
}

// with calls f with the lock, for a subscription.
func (s *subscriber) with(name string, f func(*subscription)) (*emptypb.Empty, error) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	sub, err := s.server.subscription(name)
	if err != nil {
		return nil, err
	}

	f(sub)

	return &emptypb.Empty{}, nil
}

func (s *subscriber) Acknowledge(_ context.Context, req *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	if err := s.server.watch(req.Subscription, Acknowledged); err != nil {
		return nil, err
	}

	return s.with(req.Subscription, func(sub *subscription) { sub.acknowledge(req.AckIds) })
}

func (s *subscriber) ModifyAckDeadline(_ context.Context, req *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty,
	error) {
	return s.with(req.Subscription, func(sub *subscription) {
		sub.extend(req.AckIds, seconds(req.AckDeadlineSeconds), time.Now())
	})
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// pullWait bounds the wait for a message.
const pullWait = 500 * time.Millisecond

// Pull answers as soon as there is a message.
func (s *subscriber) Pull(ctx context.Context, req *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	sub, err := s.find(req.Subscription)
	if err != nil {
		return nil, err
	}

	if req.MaxMessages <= 0 {
		return nil, status.Errorf(codes.InvalidArgument, "max_messages is %d, and must be 1 or more", req.MaxMessages)
	}

	ctx, cancel := context.WithTimeout(ctx, pullWait)
	defer cancel()
	if req.ReturnImmediately { //nolint:staticcheck // deprecated for the real service's sake: it may miss messages
		cancel()
	}

	o := &owner{ackTimeout: seconds(sub.proto.AckDeadlineSeconds)}
	received, _ := sub.wait(ctx, o, int(req.MaxMessages), nil) // an error is the end of the wait

	return &pubsubpb.PullResponse{ReceivedMessages: received}, nil
}

// stream is a client's, once it has said which subscription it wants.
type stream struct {
	client pubsubpb.Subscriber_StreamingPullServer
	sub    *subscription
	owner  *owner
	pings  chan struct{} // nil: the client expects no answers
}

// StreamingPull delivers until the client goes.
func (s *subscriber) StreamingPull(client pubsubpb.Subscriber_StreamingPullServer) error {
	req, err := client.Recv()
	if err != nil {
		return err
	}

	sub, err := s.find(req.Subscription)
	if err != nil {
		return err
	}

	st := &stream{client: client, sub: sub,
		owner: &owner{maxMessages: req.MaxOutstandingMessages, maxBytes: req.MaxOutstandingBytes}}
	if req.ProtocolVersion > 0 {
		st.pings = make(chan struct{}, 1)
	}

	if err := st.obey(req); err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(client.Context())
	go func() { cancel(st.hear()) }() // ends with the stream
	defer func() {
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		sub.leave(st.owner)
	}()
	properties := &pubsubpb.StreamingPullResponse_SubscriptionProperties{
		MessageOrderingEnabled: sub.proto.EnableMessageOrdering}
	for {
		received, err := sub.wait(ctx, st.owner, maxDelivered, st.pings)
		switch {
		case errors.Is(context.Cause(ctx), io.EOF): // the client has closed it
			return nil
		case err != nil:
			return context.Cause(ctx)
		}

		if err := client.Send(&pubsubpb.StreamingPullResponse{ReceivedMessages: received,
			SubscriptionProperties: properties}); err != nil {
			return err
		}

		if err := s.server.watch(sub.proto.Name, Delivered); err != nil {
			return err
		}
	}
}

// hear returns why nothing is heard of the client any more.
func (st *stream) hear() error {
	for {
		req, err := st.client.Recv()
		if err == nil {
			err = st.obey(req)
		}

		if err != nil {
			return err
		}
	}
}

// obey does what a client says on its stream.
func (st *stream) obey(req *pubsubpb.StreamingPullRequest) error {
	if len(req.ModifyDeadlineAckIds) != len(req.ModifyDeadlineSeconds) {
		return status.Error(codes.InvalidArgument, "modify_deadline_ack_ids and modify_deadline_seconds differ in length")
	}

	if len(req.AckIds)+len(req.ModifyDeadlineAckIds) == 0 {
		select {
		case st.pings <- struct{}{}:
		default: // an answer is under way, or none is expected
		}
	}

	if len(req.AckIds) > 0 {
		if err := st.sub.server.watch(st.sub.proto.Name, Acknowledged); err != nil {
			return err
		}
	}

	st.sub.server.mu.Lock()
	defer st.sub.server.mu.Unlock()
	if n := req.StreamAckDeadlineSeconds; n > 0 {
		st.owner.ackTimeout = seconds(n)
	}

	st.sub.acknowledge(req.AckIds)
	for i, id := range req.ModifyDeadlineAckIds {
		st.sub.extend([]string{id}, seconds(req.ModifyDeadlineSeconds[i]), time.Now())
	}

	return nil
}

// wait returns messages as soon as there are any, none to answer a ping, or the error of ctx.
func (s *subscription) wait(ctx context.Context, o *owner, n int, pings <-chan struct{}) ([]*pubsubpb.ReceivedMessage,
	error) {
	for {
		s.server.mu.Lock()
		received, next := s.take(o, n, time.Now())
		changed := s.changed
		s.server.mu.Unlock()
		if len(received) > 0 {
			return received, nil
		}

		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}

		select {
		case <-changed:
		case <-timer:
		case <-pings:
			return nil, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}
