package watch

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// spans creates a trace of each commit: "blocks", from the wait for its first batch, and in it
// "read" of that batch and "commit". The time between these two is the wait for the factory watch
// and for the previous commit. Without a tracer it creates none.
type spans struct {
	tracer trace.Tracer
	watch  string
}

func newSpans(tracer trace.Tracer, watch string) spans {
	if tracer == nil {
		tracer = noop.Tracer{}
	}

	return spans{tracer, watch}
}

// blocks begins the trace of blocks that were read together. The caller ends the span.
func (s spans) blocks(ctx context.Context, b *blocks) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, "blocks", trace.WithNewRoot(), trace.WithTimestamp(b.since))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("relayer.watch", s.watch), attribute.Int64("relayer.from_block", b.from.Next),
			attribute.Int64("relayer.to_block", b.to.Next-1), attribute.Int("relayer.logs", b.logs))
		_, read := s.tracer.Start(ctx, "read", trace.WithTimestamp(b.since))
		read.End(trace.WithTimestamp(b.read))
	}

	return ctx, span
}

// commit begins the span of a commit, in the trace of its blocks; escrows admitted between batches
// have separate traces.
func (s spans) commit(ctx context.Context, events int) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, "commit")
	if span.IsRecording() {
		span.SetAttributes(attribute.String("relayer.watch", s.watch), attribute.Int("relayer.events", events))
	}

	return ctx, span
}

// endSpan ends a span. It records only the kind of an error, since its text is arbitrary.
func endSpan(span trace.Span, err error) {
	switch {
	case errors.Is(err, ledger.ErrMoved):
		span.SetStatus(codes.Error, "moved")
	case errors.Is(err, ledger.ErrFenced):
		span.SetStatus(codes.Error, "fenced")
	case err != nil:
		span.SetStatus(codes.Error, "error")
	}

	span.End()
}
