package publish

import (
	"context"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// send sends a request and waits for the answer. It runs in a separate goroutine.
func (s *shared) send(ctx context.Context, topic string, f *request) (err error) {
	c, key, now := &s.cfg, s.store.Key(f.lane.id), time.Now()
	messages := make([]pubsub.Message, len(f.rows))
	var spans []trace.Span
	var ids []string
	defer func() { sent(spans, ids, err) }()
	for i := range f.rows {
		r := &f.rows[i].Pending
		if a := r.Answer; a != nil {
			messages[i] = pubsub.Message{Data: a.Body, Attributes: a.Attributes}
			continue
		}

		e := event(&r.Event)
		body, attributes, err := message.Encode(message.Kind(r.Kind), e, c.ChainID, now)
		if err != nil {
			// its lane waits until a person repairs the row; nothing is dropped
			return status.Error(codes.InvalidArgument, err.Error())
		}

		if c.CloudEvents {
			message.AddCloudEvents(attributes, message.Kind(r.Kind), e)
		}

		messages[i] = pubsub.Message{Data: body, Attributes: attributes}
		if c.Tracer != nil {
			spans = append(spans, traced(ctx, c.Tracer, r, &messages[i], topic, key))
		}
	}

	if !c.Valid() {
		return ErrFenced
	}

	ids, err = c.Sender.Publish(ctx, topic, key, messages)

	return err
}

// event converts an event for package message.
func event(e *contract.Event) *message.Event {
	text := func(a common.Address) string { return string(contract.AppendChecksum(make([]byte, 0, 42), a)) }
	emitter, factory := text(e.Emitter), ""
	escrow := emitter
	if e.Escrow != e.Emitter {
		escrow = text(e.Escrow)
	}

	if e.Factory != (common.Address{}) {
		factory = text(e.Factory)
	}

	return &message.Event{
		Name: e.Name, ContractAddress: emitter, Escrow: escrow, Factory: factory, BlockNumber: e.BlockNumber,
		BlockHash: e.BlockHash, BlockTime: e.BlockTime, TransactionHash: e.TxHash, LogIndex: e.LogIndex,
		Occurrence: e.Occurrence,
		Args:       e.Args,
	}
}
