package publish

import (
	"context"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// publishFunc is the client's own Publish. The client's Publisher above it is not used: it delays each message to fill batches by key, keeps
// a goroutine and a queue a key, retries where we cannot see it, and drops a key's queue when it fails.
type publishFunc func(context.Context, *pubsubpb.PublishRequest, ...gax.CallOption) (*pubsubpb.PublishResponse, error)

// flight is a request under way: rows of one lane.
type flight struct {
	lane    *lane
	rows    []row
	started time.Time
	err     error
}

// send hands a request to the client and waits for the answer. It runs in a goroutine of its own.
func (l *loop) send(ctx context.Context, f *flight) (err error) {
	req := &pubsubpb.PublishRequest{Topic: l.topics[f.lane.id.Topic].name, Messages: make([]*pubsubpb.PubsubMessage, len(f.rows))}
	key, now := l.cfg.key(f.lane.id), l.cfg.Now()
	var spans []trace.Span
	var res *pubsubpb.PublishResponse
	defer func() { sent(spans, res.GetMessageIds(), err) }()
	for i := range f.rows {
		r := &f.rows[i].Pending
		body, attributes, err := message.Encode(message.Kind(r.Kind), event(&r.Event), l.cfg.ChainID, now)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error()) // its lane waits for somebody to mend the row; nothing is dropped
		}
		req.Messages[i] = &pubsubpb.PubsubMessage{Data: body, Attributes: attributes, OrderingKey: key}
		if l.cfg.Tracer != nil {
			spans = append(spans, l.cfg.traced(ctx, r, req.Messages[i], req.Topic))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if !l.cfg.Valid() {
		return ErrNoRight
	}
	res, err = l.publish(ctx, req, gax.WithRetry(nil)) // the loop retries
	return err
}

// event is an event as package message takes it.
func event(e *contract.Event) *message.Event {
	return &message.Event{
		Name: e.Name, ContractAddress: string(contract.AppendChecksum(make([]byte, 0, 42), e.Emitter)), Escrow: e.Escrow, BlockNumber: e.BlockNumber,
		BlockHash: e.BlockHash, BlockTime: e.BlockTime, TransactionHash: e.TxHash, LogIndex: e.LogIndex, Args: e.Args,
	}
}
