package publish

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// Sender hands messages to Pub/Sub, in one request and once: the loop retries. Errors are those of
// package pubsub. The call has a deadline of its own. (Google's Publisher is not used: it delays
// each message to fill batches by key, keeps a goroutine and a queue per key, retries where we
// cannot see it, and drops a key's queue when it fails.)
type Sender interface {
	Publish(ctx context.Context, topic, key string, messages []pubsub.Message) (ids []string, err error)
}

// flight is a request under way: rows of one lane.
type flight struct {
	lane    *lane
	rows    []row
	started time.Time
	cancel  context.CancelFunc
	err     error
}

// send hands a request to the client and waits for the answer. It runs in a goroutine of its own.
func (c *Config) send(ctx context.Context, topic string, f *flight) (err error) {
	key, now := c.key(f.lane.id), c.Now()
	messages := make([]pubsub.Message, len(f.rows))
	var spans []trace.Span
	var ids []string
	defer func() { sent(spans, ids, err) }()
	for i := range f.rows {
		r := &f.rows[i].Pending
		body, attributes, err := message.Encode(message.Kind(r.Kind), event(&r.Event), c.ChainID, now)
		if err != nil {
			// its lane waits for somebody to mend the row; nothing is dropped
			return status.Error(codes.InvalidArgument, err.Error())
		}

		messages[i] = pubsub.Message{Data: body, Attributes: attributes}
		if c.Tracer != nil {
			spans = append(spans, c.traced(ctx, r, &messages[i], topic, key))
		}
	}

	if !c.Valid() {
		return ErrFenced
	}

	ids, err = c.Sender.Publish(ctx, topic, key, messages)

	return err
}

// event is an event as package message takes it.
func event(e *contract.Event) *message.Event {
	return &message.Event{
		Name: e.Name, ContractAddress: string(contract.AppendChecksum(make([]byte, 0, 42), e.Emitter)), Escrow: e.Escrow,
		BlockNumber: e.BlockNumber,
		BlockHash:   e.BlockHash, BlockTime: e.BlockTime, TransactionHash: e.TxHash, LogIndex: e.LogIndex,
		Occurrence: e.Occurrence,
		Args:       e.Args,
	}
}
