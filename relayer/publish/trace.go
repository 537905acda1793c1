package publish

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// traced is the span of a message about to be sent; the message carries its context. It is a child
// of the commit's span if this process offered the row and still has it in memory: rows read from
// the outbox begin a new trace. The row's Trace becomes that of the span, if it is sampled.
func traced(ctx context.Context, tracer trace.Tracer, p *outbox.Pending, m *pubsub.Message,
	topic, key string) trace.Span {
	if p.Trace != nil {
		ctx = trace.ContextWithSpanContext(ctx, *p.Trace)
	}

	// Name and attributes are those of OpenTelemetry's semantic conventions for messaging.
	ctx, span := tracer.Start(ctx, "send "+topic, trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("messaging.system", "gcp_pubsub"),
			attribute.String("messaging.operation.name", "send"), attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", topic),
			attribute.String("messaging.gcp_pubsub.message.ordering_key", key),
			attribute.String("relayer.event_id", m.Attributes[message.AttrEventID]),
			attribute.String("relayer.event_name", p.Event.Name),
			attribute.String("relayer.escrow", m.Attributes[message.AttrEscrow]),
			attribute.Int64("relayer.block", int64(p.Event.BlockNumber)),
		)
	}

	p.Trace = nil
	if c := span.SpanContext(); c.IsSampled() {
		p.Trace = &c
	}

	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(m.Attributes))
	m.Attributes[message.AttrGoogleTraceParent] = m.Attributes[message.AttrTraceParent]

	return span
}

// sent ends the spans of a request's messages. They get only the code of an error: its text is
// arbitrary.
func sent(spans []trace.Span, ids []string, err error) {
	for i, span := range spans {
		if err != nil {
			span.SetStatus(codes.Error, pubsub.Code(err).String())
		} else if i < len(ids) {
			span.SetAttributes(attribute.String("messaging.message.id", ids[i]))
		}

		span.End()
	}
}
