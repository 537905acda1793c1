package main

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// receiver is a collector of traces that remembers spans: the name and the parent, by trace and span as in traceparent.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string][2]string
	keys  map[string]bool // that came with requests
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{spans: map[string][2]string{}, keys: map[string]bool{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var export collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &export) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}

		r.mu.Lock()
		defer r.mu.Unlock()
		r.keys[req.Header.Get("Api-Key")] = true
		for _, resource := range export.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					trace := hex.EncodeToString(s.GetTraceId())
					parent := ""
					if len(s.GetParentSpanId()) > 0 {
						parent = trace + "-" + hex.EncodeToString(s.GetParentSpanId())
					}

					r.spans[trace+"-"+hex.EncodeToString(s.GetSpanId())] = [2]string{s.GetName(), parent}
				}
			}
		}

		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)

	return r
}

// One trace goes from the blocks to the subscriber; a collector that fails is nobody's concern.
func TestTraces(t *testing.T) {
	t.Parallel()
	const key = "hush-0-otlp"
	w := newWorld(t, nil)
	traces := newReceiver(t)
	stop := func(id string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, w.fleet[id].Stop(ctx))
		log, err := os.ReadFile(w.fleet[id].LogFile)
		require.NoError(t, err)
		require.NotContains(t, string(log), key)
		require.NotContains(t, string(log), "STOP_TIMEOUT=", "it waited for the collector")
	}
	w.run("r0", 0, 1, map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": traces.URL,
		"OTEL_EXPORTER_OTLP_HEADERS": "api-key=" + key})
	w.ready("r0")
	w.blocks(3)
	w.audit(false)
	stop("r0")
	messages := w.Received.Messages()
	require.NotEmpty(t, messages)
	traces.mu.Lock()
	for _, m := range messages {
		parent := m.Attributes["traceparent"]
		require.Len(t, parent, 55)
		publish := traces.spans[parent[3:52]]
		require.Equal(t, "send "+lab.Topic, publish[0])
		require.Equal(t, parent, m.Attributes["googclient_traceparent"])
		if commit, ok := traces.spans[publish[1]]; ok { // else the row was read from the outbox
			require.Equal(t, "commit", commit[0])
		}
	}

	whole := 0
	for _, s := range traces.spans {
		commit := traces.spans[s[1]]
		if s[0] == "send "+lab.Topic && traces.spans[commit[1]][0] == "blocks" {
			whole++
		}
	}

	require.Positive(t, whole, "no trace goes from blocks to a message: %v", traces.spans)
	require.Equal(t, map[string]bool{key: true}, traces.keys)
	traces.mu.Unlock()

	// A collector that takes the request and never answers.
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
	}))
	t.Cleanup(hangs.Close)
	w.run("r1", 0, 1, map[string]string{
		"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": hangs.URL, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=" +
			key, "LOG_LEVEL": "debug",
	})
	w.ready("r1")
	w.blocks(3)
	w.audit(false)
	stop("r1")

	// Without the variable nothing is added.
	before := len(w.Received.Messages())
	w.run("r2", 0, 1, nil)
	w.ready("r2")
	w.blocks(2)
	w.audit(false)
	for _, m := range w.Received.Messages()[before:] {
		require.NotContains(t, m.Attributes, "traceparent")
	}

	stop("r2")
}
