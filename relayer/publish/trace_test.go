package publish_test

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func TestMessagesCarryTheirSpan(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	cfg := w.config()
	cfg.Tracer = provider.Tracer("test")
	reg := prometheus.NewRegistry()
	cfg.Metrics = publish.NewMetrics(reg)
	_, commit := cfg.Tracer.Start(t.Context(), "commit")
	commit.End()
	sc := commit.SpanContext()

	old := w.commit("Approved", message.Original, 1) // it is in the outbox before this process begins
	fault := w.server.Inject(testpubsub.Fault{Code: codes.PermissionDenied})
	p := w.start(cfg, publish.Tuning{})
	require.Eventually(t, func() bool { return len(recorder.Ended()) > 1 }, patience, tick)
	fault.Remove()
	w.wait(1)
	rows := w.commit("Approved", message.Original, 2, 3)
	for i := range rows {
		rows[i].Trace = &sc
	}

	p.OfferRows(w.epoch, rows)
	messages := w.wait(3)
	require.NoError(t, p.stop())

	carried := map[string]string{} // event id by traceparent
	for _, m := range messages {
		require.Equal(t, m.Attributes[message.AttrTraceParent], m.Attributes[message.AttrGoogleTraceParent])
		carried[m.Attributes[message.AttrTraceParent]] = m.Attributes[message.AttrEventID]
	}

	parents, failed := map[string]trace.SpanContext{}, 0
	for _, s := range recorder.Ended()[1:] {
		require.Equal(t, "send "+settlement, s.Name())
		require.Contains(t, s.Attributes(), attribute.String("messaging.operation.name", "send"))
		require.Contains(t, s.Attributes(), attribute.String("messaging.destination.name", settlement))
		id, ok := carried["00-"+s.SpanContext().TraceID().String()+"-"+s.SpanContext().SpanID().String()+"-01"]
		if !ok {
			require.Equal(t, codes.PermissionDenied.String(), s.Status().Description)
			failed++
			continue
		}

		parents[id] = s.Parent()
	}

	require.Positive(t, failed)
	require.Len(t, parents, 3)
	require.False(t, parents[old[0].Event.ID()].IsValid(), "a row of the outbox begins a trace")
	for i := range rows {
		require.Equal(t, sc.SpanID(), parents[rows[i].Event.ID()].SpanID())
		require.Equal(t, sc.TraceID(), parents[rows[i].Event.ID()].TraceID())
	}

	// The latency names a trace of a message.
	body := httptest.NewRecorder()
	ask := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	ask.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	metrics.Handler(reg, slog.New(slog.DiscardHandler)).ServeHTTP(body, ask)
	named := regexp.MustCompile(`relayer_event_latency_seconds_bucket.* # \{trace_id="([0-9a-f]{32})"\}`).
		FindStringSubmatch(body.Body.String())
	require.NotNil(t, named, "%s", body.Body)
	require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(carried)), func(parent string) bool {
		return strings.Contains(parent, named[1])
	}), named[1])
}

func TestWithoutTracingMessagesAreAsTheyWere(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{})
	rows := w.approve(p, 1)
	got := w.wait(1)[0].Attributes
	require.NoError(t, p.stop())
	require.Len(t, got, 7, "%v", got)
	require.NotContains(t, got, message.AttrTraceParent)
	require.Equal(t, rows[0].Event.ID(), got[message.AttrEventID])
}

func TestMessagesAreCloudEventsOnRequest(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	cfg := w.config()
	cfg.CloudEvents = true
	p := w.start(cfg, publish.Tuning{})
	rows := w.approve(p, 1)
	got := w.wait(1)[0].Attributes
	require.NoError(t, p.stop())
	require.Len(t, got, 15, "%v", got)
	require.Equal(t, rows[0].Event.ID(), got["ce-id"])
}
