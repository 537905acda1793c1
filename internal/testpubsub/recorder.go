package testpubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	events "github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Message as it was stored or delivered. Whoever reads it must not change it.
type Message struct {
	ID         string // the server's; the same event published twice has two
	Topic      string // full name; empty when subscribed
	Key        string // ordering key
	Data       []byte
	Attributes map[string]string
	Published  time.Time // the server's clock
	Received   time.Time // when it was recorded
}

// Recorder holds messages in the order in which they came. Its methods may be called concurrently.
type Recorder struct {
	mu       sync.Mutex
	messages []Message
	total    int
	changed  chan struct{} // closed and replaced when a message comes or the recorder fails
	err      error
	stop     func() error
	raw      bool // of messages that nobody decodes
}

func newRecorder() *Recorder { return &Recorder{changed: make(chan struct{})} }

// retryEvery is the pause while the server is away.
const retryEvery = 5 * time.Millisecond

// pullMessages is the most that one pull asks for: the real service's limit.
const pullMessages = 1000

// Record subscribes at the server at addr and records what is delivered, acknowledging it, until
// Stop. A message that the server delivers twice under the same id is recorded once. ctx bounds
// nothing but this call.
func Record(ctx context.Context, addr, project, subscription string) (*Recorder, error) {
	conn, err := dial(addr)
	if err != nil {
		return nil, err
	}

	client, name := pubsubpb.NewSubscriberClient(conn), SubscriptionName(project, subscription)
	if _, err := client.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name}); err != nil {
		return nil, errors.Join(fmt.Errorf("find subscription %s: %w", subscription, err), conn.Close())
	}

	r := newRecorder()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	done.Go(func() { r.fail(r.pull(ctx, client, name)) })
	r.stop = func() error {
		cancel()
		done.Wait()
		return conn.Close()
	}

	return r, nil
}

// pull returns nil when ctx ends. While the server is away it goes on trying.
func (r *Recorder) pull(ctx context.Context, client pubsubpb.SubscriberClient, name string) error {
	seen := map[string]bool{}
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		resp, err := client.Pull(ctx, &pubsubpb.PullRequest{Subscription: name, MaxMessages: pullMessages})
		switch {
		case ctx.Err() != nil:
			return nil
		case status.Code(err) == codes.Unavailable:
			select {
			case <-tick.C:
			case <-ctx.Done():
			}

			continue
		case err != nil:
			return fmt.Errorf("pull from %s: %w", name, err)
		case len(resp.ReceivedMessages) == 0:
			continue
		}

		now := time.Now()
		ack := &pubsubpb.AcknowledgeRequest{Subscription: name}
		for _, m := range resp.ReceivedMessages {
			ack.AckIds = append(ack.AckIds, m.AckId)
			if !seen[m.Message.MessageId] {
				seen[m.Message.MessageId] = true
				r.add(message("", m.Message, now))
			}
		}

		if _, err := client.Acknowledge(ctx, ack); err != nil && ctx.Err() == nil && status.Code(err) != codes.Unavailable {
			return fmt.Errorf("acknowledge to %s: %w", name, err)
		}
	}
}

// Stop ends the recording and returns what had made it fail, if anything. What was recorded stays readable.
func (r *Recorder) Stop() error {
	err := r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()

	return errors.Join(r.err, err)
}

// Messages returns what is held, in order.
func (r *Recorder) Messages() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.messages)
}

// Len is the number of messages recorded so far, those that were drained included.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// Drain returns what is held and lets go of it: for long runs that check as they go.
func (r *Recorder) Drain() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.messages
	r.messages = nil

	return held
}

// Wait returns once n messages have come since the start of the recording.
func (r *Recorder) Wait(ctx context.Context, n int) error {
	return r.wait(ctx, func() bool { return r.total >= n })
}

// WaitFor returns once the condition holds for what is held. The condition is asked after each
// arrival, and must not call the recorder.
func (r *Recorder) WaitFor(ctx context.Context, condition func([]Message) bool) error {
	return r.wait(ctx, func() bool { return condition(r.messages) })
}

func (r *Recorder) wait(ctx context.Context, condition func() bool) error {
	for {
		r.mu.Lock()
		ok, err, total, changed := condition(), r.err, r.total, r.changed
		r.mu.Unlock()
		if ok || err != nil {
			return err
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for messages, of which %d have come: %w", total, context.Cause(ctx))
		}
	}
}

// add records a message. One of the relayer's that does not decode fails the recorder.
func (r *Recorder) add(m Message) {
	if !r.raw && m.Attributes[events.AttrEventID] != "" {
		_, err := events.Decode(m.Data, m.Attributes)
		r.fail(err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, m)
	r.total++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Recorder) fail(err error) {
	if err == nil {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func message(topic string, m *pubsubpb.PubsubMessage, received time.Time) Message {
	return Message{ID: m.MessageId, Topic: topic, Key: m.OrderingKey, Data: m.Data, Attributes: m.Attributes,
		Published: m.PublishTime.AsTime(), Received: received}
}

// dial does not connect yet: the first call does.
func dial(addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4*maxRequestBytes)))
	if err != nil {
		return nil, fmt.Errorf("reach the Pub/Sub server: %w", err)
	}

	return conn, nil
}
