package watch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

func TestABatchIsATrace(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	w := setup(t)
	w.tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)).Tracer("test")
	w.create(2)
	w.mine(5)
	stop := w.run(watch.FilterAuto, true)
	w.expect(w.head())
	require.Eventually(t, func() bool { // the owner does not wait for the leader
		at, err := w.led.FactoryPosition(t.Context(), 1)
		require.NoError(t, err)
		return at.Next > int64(w.d.Block)+1
	}, patience, 5*time.Millisecond)
	stop()

	spans := map[trace.SpanID]sdk.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		spans[s.SpanContext().SpanID()] = s
	}

	reads, watches := 0, map[string]bool{}
	for _, s := range spans {
		attributes := map[string]any{}
		for _, a := range s.Attributes() {
			attributes[string(a.Key)] = a.Value.AsInterface()
		}

		switch s.Name() {
		case "blocks":
			require.False(t, s.Parent().IsValid())
			require.LessOrEqual(t, attributes["relayer.from_block"], attributes["relayer.to_block"])
			watches[attributes["relayer.watch"].(string)] = true
		case "read":
			reads++
			require.Equal(t, "blocks", spans[s.Parent().SpanID()].Name())
		case "commit":
			if parent := spans[s.Parent().SpanID()]; parent != nil {
				require.Equal(t, "blocks", parent.Name())
				require.False(t, s.StartTime().Before(parent.StartTime()))
			}
		}

		require.Less(t, s.EndTime().Sub(s.StartTime()), time.Minute)
	}

	require.Positive(t, reads)
	require.True(t, watches["slots"] && watches["factory"], "%v", watches)
	w.out.mu.Lock()
	defer w.out.mu.Unlock()
	require.NotEmpty(t, w.out.traces)
	for _, sc := range w.out.traces {
		require.NotNil(t, sc, "a row that was offered without its commit's span")
		require.Equal(t, "commit", spans[sc.SpanID()].Name())
	}
}
