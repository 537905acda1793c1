package watch

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// spans makes a trace a batch: "blocks", from when it was waited for to its commit, and in it
// "read" and "commit". What passes between these two is the wait for the factory watch. Without a
// tracer it makes none.
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

// blocks begins the trace of a batch that was read since. The caller ends the span.
func (s spans) blocks(ctx context.Context, since time.Time, b *source.Batch) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, "blocks", trace.WithNewRoot(), trace.WithTimestamp(since))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("relayer.watch", s.watch), attribute.Int64("relayer.from_block", int64(b.From)),
			attribute.Int64("relayer.to_block", int64(b.To)), attribute.Int("relayer.logs", len(b.Logs)))
		_, read := s.tracer.Start(ctx, "read", trace.WithTimestamp(since))
		read.End()
	}

	return ctx, span
}

// commit begins the span of a commit, in the batch's trace; escrows that are admitted between
// batches have a trace of their own.
func (s spans) commit(ctx context.Context, events int) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, "commit")
	if span.IsRecording() {
		span.SetAttributes(attribute.String("relayer.watch", s.watch), attribute.Int("relayer.events", events))
	}

	return ctx, span
}

// ended ends a span. Of an error it says of which kind it is, since its text may have anything in it.
func ended(span trace.Span, err error) {
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
