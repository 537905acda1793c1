package trace

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

func TestOffUnlessAskedFor(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing set": {},
		"none":        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
		"endpoint":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
		"disabled":    {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}

			tracing, err := Start(t.Context(), slog.New(slog.DiscardHandler), nil)
			require.NoError(t, err)
			require.Nil(t, tracing)
			require.Nil(t, tracing.Tracer())
			tracing.Stop(t.Context())
		})
	}
}

func TestBothProtocolsStart(t *testing.T) {
	for _, protocol := range []string{"", "grpc"} {
		t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		tracing, err := Start(t.Context(), slog.New(slog.DiscardHandler), nil)
		require.NoError(t, err)
		require.NotNil(t, tracing.Tracer())
		tracing.Stop(t.Context())
	}
}

func TestResource(t *testing.T) {
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	memory := &kept{}
	tracing, err := begin(t.Context(), slog.New(slog.DiscardHandler),
		map[string]string{"service.instance.id": "r0"}, memory)
	require.NoError(t, err)
	_, span := tracing.Tracer().Start(t.Context(), "x")
	span.End()
	tracing.Stop(t.Context())
	require.Len(t, memory.spans, 1, "Stop exports what is left")
	about := memory.spans[0].Resource.String()
	for _, part := range []string{"service.name=mine", "deployment.environment.name=test", "service.instance.id=r0"} {
		require.Contains(t, about, part)
	}
}

// kept remembers what was exported after its shutdown too.
type kept struct{ spans tracetest.SpanStubs }

func (k *kept) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	k.spans = append(k.spans, tracetest.SpanStubsFromReadOnlySpans(spans)...)
	return nil
}
func (*kept) Shutdown(context.Context) error { return nil }

// broken is an exporter that fails, or hangs until its context ends.
type broken struct{ hangs bool }

func (b broken) ExportSpans(ctx context.Context, _ []sdk.ReadOnlySpan) error {
	if b.hangs {
		<-ctx.Done()
		return ctx.Err()
	}

	return errors.New("refused")
}
func (broken) Shutdown(context.Context) error { return nil }

func TestFailuresAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		tracing, err := begin(t.Context(), slog.New(slog.NewTextHandler(&out, nil)), nil, broken{})
		require.NoError(t, err)
		for range 150 { // seconds
			_, span := tracing.Tracer().Start(t.Context(), "x")
			span.End()
			require.NoError(t, tracing.provider.ForceFlush(t.Context()))
			<-time.After(time.Second)
		}

		tracing.Stop(t.Context())
		require.Equal(t, 3, strings.Count(out.String(), "traces not exported"), out.String())
		require.Contains(t, out.String(), "spans=60")
	})
}

func TestHangingExporterHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracing, err := begin(t.Context(), slog.New(slog.DiscardHandler), nil, broken{hangs: true})
		require.NoError(t, err)
		begun := time.Now()
		for range 10_000 { // more than the queue takes
			_, span := tracing.Tracer().Start(t.Context(), "x")
			span.End()
		}

		require.Zero(t, time.Since(begun))
		tracing.Stop(t.Context())
		require.LessOrEqual(t, time.Since(begun), flushTimeout+endTimeout)
		select {
		case <-tracing.exporter.ended:
		default:
			require.Fail(t, "the exporter has not ended")
		}
	})
}
