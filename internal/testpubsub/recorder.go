package testpubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	events "github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Message as it was stored. Whoever reads it must not change it.
type Message struct {
	ID         string // the server's; the same event published twice has two
	Topic      string // full name
	Key        string // ordering key
	Data       []byte
	Attributes map[string]string
	Received   time.Time // when the server stored it
}

// Recorder holds messages in the order in which the server stored them, in which those of a key come to a consumer. Its
// methods may be called concurrently.
type Recorder struct {
	server *Server
	topics []string // full names; empty: every topic
	raw    bool     // of messages that nobody decodes

	mu       sync.Mutex
	messages []Message
	total    int
	changed  chan struct{} // closed and replaced when a message comes or the recorder fails
	err      error
}

// Stop ends the recording and returns what had made it fail, if anything. What was recorded stays readable.
func (r *Recorder) Stop() error {
	r.server.mu.Lock()
	delete(r.server.taps, r)
	r.server.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.err
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
	if len(r.topics) > 0 && !slices.Contains(r.topics, m.Topic) {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.raw && m.Attributes[events.AttrEventID] != "" {
		_, err := events.Decode(m.Data, m.Attributes)
		r.err = errors.Join(r.err, err)
	}

	r.messages = append(r.messages, m)
	r.total++
	close(r.changed)
	r.changed = make(chan struct{})
}

func message(topic string, m *pubsubpb.PubsubMessage, received time.Time) Message {
	return Message{ID: m.MessageId, Topic: topic, Key: m.OrderingKey, Data: m.Data, Attributes: m.Attributes,
		Received: received}
}
