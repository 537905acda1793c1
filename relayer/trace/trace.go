// Package trace exports spans of an instance's work on blocks: reading, committing and publishing
// them.
//
// The variables of OpenTelemetry's specification configure the export; without OTEL_TRACES_EXPORTER
// tracing is off, spans are not created and messages carry no trace context. relayer/config has
// checked them when Start is called.
//
// Exports run in the background. Spans that the exporter cannot take in time are dropped, and its
// errors are logged once a minute.
package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

// Scope is the name of the instrumentation.
const Scope = "github.com/fusion-prime/escrow-relayer"

const (
	// flushTimeout bounds the export of the last spans: the last step of the 10 s that Cloud Run
	// leaves after SIGTERM.
	flushTimeout = time.Second
	// endTimeout bounds the wait for a cancelled exporter.
	endTimeout = 250 * time.Millisecond
	// quiet is the pause between two logged errors.
	quiet = time.Minute
)

// Tracing exports spans until Stop. Nil means that tracing is off.
type Tracing struct {
	provider *sdk.TracerProvider
	exporter *exporter
}

// Start begins to export if the environment asks for it, else it returns nil. Attributes describe
// the instance; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override them.
func Start(ctx context.Context, log *slog.Logger, attributes map[string]string) (*Tracing, error) {
	if disabled, _ := strconv.ParseBool(env("OTEL_SDK_DISABLED")); disabled {
		return nil, nil
	}

	// The SDK's log may contain a header, so it is discarded. Its errors are handled as the
	// exporter's.
	otel.SetLogger(logr.Discard())
	var to sdk.SpanExporter
	var err error
	switch env("OTEL_TRACES_EXPORTER") {
	case "otlp":
		if env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" {
			to, err = otlptracegrpc.New(ctx)
		} else {
			to, err = otlptracehttp.New(ctx)
		}
	case "console":
		to, err = stdouttrace.New()
	default:
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("export traces: check OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}

	return begin(ctx, log, attributes, to)
}

func begin(ctx context.Context, log *slog.Logger, attributes map[string]string, to sdk.SpanExporter) (*Tracing, error) {
	own := []attribute.KeyValue{attribute.String("service.name", "escrow-relayer")}
	for k, v := range attributes {
		own = append(own, attribute.String(k, v))
	}

	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(own...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: write key=value,key=value: %w", err)
	}

	e := newExporter(to, log)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { e.complain(context.WithoutCancel(ctx), err) }))

	return &Tracing{exporter: e, provider: sdk.NewTracerProvider(sdk.WithBatcher(e), sdk.WithResource(about))}, nil
}

// Tracer creates spans; nil when tracing is off.
func (t *Tracing) Tracer() api.Tracer {
	if t == nil {
		return nil
	}

	return t.provider.Tracer(Scope)
}

// Stop exports the remaining spans, for flushTimeout at most, and ends.
func (t *Tracing) Stop(ctx context.Context) {
	if t == nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.exporter.complain(ctx, err)
	}

	t.exporter.giveUp()
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-t.exporter.ended:
	case <-timer.C: // a blocked write to a console cannot be cancelled
	}
}

// exporter forwards spans to another exporter, logs its errors, at most one per minute, and can be
// cancelled.
type exporter struct {
	to     sdk.SpanExporter
	log    *slog.Logger
	life   context.Context //nolint:containedctx // it ends the exports that are under way
	giveUp context.CancelFunc
	ended  chan struct{}
	said   atomic.Int64 // when it last logged an error, unix nanoseconds
	failed atomic.Int64 // spans lost since
}

func newExporter(to sdk.SpanExporter, log *slog.Logger) *exporter {
	e := &exporter{to: to, log: log, ended: make(chan struct{})}
	e.life, e.giveUp = context.WithCancel(context.Background())
	return e
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	if err := e.to.ExportSpans(ctx, spans); err != nil {
		e.failed.Add(int64(len(spans)))
		e.complain(ctx, err)
	}

	return nil
}

func (e *exporter) Shutdown(ctx context.Context) error {
	defer close(e.ended) // the processor's last step, and it comes once
	return e.to.Shutdown(ctx)
}

func (e *exporter) complain(ctx context.Context, err error) {
	now, last := time.Now().UnixNano(), e.said.Load()
	if last != 0 && now-last < int64(quiet) || !e.said.CompareAndSwap(last, now) {
		return
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %w", err)
	}

	e.log.WarnContext(ctx, "traces not exported", slog.Int64("spans", e.failed.Swap(0)), slog.Any("err", err))
}

// env is the first set variable of some.
func env(names ...string) string {
	for _, name := range names {
		if v := strings.ToLower(strings.TrimSpace(os.Getenv(name))); v != "" {
			return v
		}
	}

	return ""
}
