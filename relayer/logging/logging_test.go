package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

const endpoint = "https://node/v2/abcdef123456"

func TestCloudLogging(t *testing.T) {
	for level, severity := range map[slog.Level]string{slog.LevelDebug: "DEBUG", slog.LevelInfo: "INFO",
		slog.LevelWarn: "WARNING", slog.LevelError: "ERROR"} {
		var b bytes.Buffer
		New(&b, "auto", "debug", nil).With("component", "source").LogAttrs(t.Context(), level, "asked",
			slog.Duration("in", 1500*time.Millisecond), slog.Int("block", 7))
		var line map[string]any
		require.NoError(t, json.Unmarshal(b.Bytes(), &line))
		_, err := time.Parse(time.RFC3339Nano, line["time"].(string))
		require.NoError(t, err)
		delete(line, "time")
		require.Equal(t, map[string]any{"severity": severity, "message": "asked", "component": "source", "in": "1.5s",
			"block": 7.0}, line)
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	New(&b, "text", "Warn", nil).Error("bad", slog.Any("err", errors.New("why")), slog.Duration("in", time.Second))
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} ERR bad err=why in=1s\n$`, b.String(),
		"no colour where there is no terminal")
}

// A line that is written inside a span names it, with the attributes of its logger before.
func TestLinesNameTheirSpan(t *testing.T) {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}})
	var b bytes.Buffer
	log := New(&b, "json", "info", nil).With("component", "watch")
	log.InfoContext(trace.ContextWithSpanContext(t.Context(), span), "committed")
	require.Contains(t, b.String(),
		`"component":"watch","trace_id":"01020000000000000000000000000000","span_id":"0300000000000000"`)
	b.Reset()
	log.InfoContext(t.Context(), "committed")
	require.NotContains(t, b.String(), "trace_id")
}

func TestLevel(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var b bytes.Buffer
		log := New(&b, format, "warn", nil)
		log.Info("not shown")
		require.Empty(t, b.String())
		log.Warn("shown")
		require.Contains(t, b.String(), "shown")
	}
}

// address is a value whose text is made by a method.
type address struct{ url string }

func (a address) String() string { return a.url }

func TestNoSecretGetsOut(t *testing.T) {
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	for _, format := range []string{"json", "text"} {
		for name, log := range map[string]func(*slog.Logger){
			"message": func(l *slog.Logger) { l.Info("asked " + endpoint) },
			"text":    func(l *slog.Logger) { l.Info("asked", "url", endpoint) },
			"error":   func(l *slog.Logger) { l.Info("asked", slog.Any("err", errors.New("no abcdef123456 here"))) },
			"group":   func(l *slog.Logger) { l.Info("asked", slog.Group("g", "k", "abcdef123456")) },
			"with": func(l *slog.Logger) {
				l.With("k", "abcdef123456").WithGroup("g").Info("asked", "key",
					"abcdef123456")
			},
			"stringer":  func(l *slog.Logger) { l.Info("asked", "k", address{endpoint}) },
			"pointer":   func(l *slog.Logger) { l.Info("asked", "k", u) },
			"list":      func(l *slog.Logger) { l.Info("asked", "k", []string{endpoint}) },
			"structure": func(l *slog.Logger) { l.Info("asked", "k", struct{ Key string }{"abcdef123456"}) },
		} {
			t.Run(format+" "+name, func(t *testing.T) {
				var b bytes.Buffer
				log(New(&b, format, "info", redact.New(endpoint)))
				require.Contains(t, b.String(), "asked")
				require.NotContains(t, b.String(), "abcdef123456")
			})
		}
	}
}

func TestOtherValuesStayAsTheyAre(t *testing.T) {
	var b bytes.Buffer
	New(&b, "json", "info", redact.New(endpoint)).Info("migrated", "versions", []int64{1, 2}, "fine", true)
	require.Contains(t, b.String(), `"versions":[1,2],"fine":true`)
}
