// Package logging creates the logger: JSON for Google Cloud Logging, or text for people, both free
// of secrets.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/term"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// New returns a logger. format is json, text, or auto: text if w is a terminal. level is one of
// debug, info, warn, error, in upper or lower case. On a terminal text is coloured, unless NO_COLOR
// is set (https://no-color.org). Every text is masked, as a second safeguard: code that handles a
// secret masks it too.
func New(w io.Writer, format, level string, secrets *redact.Secrets) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}

	if format == "json" || format == "auto" && !Terminal(w) {
		return slog.New(traced{slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l,
			ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
				return cloud(groups, mask(a, secrets))
			}})})
	}

	return slog.New(traced{tint.NewTextHandler(w, &tint.Options{
		Level: l, TimeFormat: "15:04:05.000", NoColor: !Terminal(w) || os.Getenv("NO_COLOR") != "",
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return mask(a, secrets) },
	})})
}

// traced adds trace_id and span_id to a line that is written inside a span, under the names of
// https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context.
type traced struct{ to slog.Handler }

// Enabled implements slog.Handler.
func (t traced) Enabled(ctx context.Context, level slog.Level) bool { return t.to.Enabled(ctx, level) }

// Handle implements slog.Handler.
func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}

	return t.to.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.to.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (t traced) WithGroup(name string) slog.Handler { return traced{t.to.WithGroup(name)} }

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// mask returns an attribute without secrets. Values other than text stay unchanged, unless their
// text has a secret.
func mask(a slog.Attr, secrets *redact.Secrets) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(secrets.Mask(a.Value.String()))
	case slog.KindAny:
		value := a.Value.Any()
		if err, ok := value.(error); ok {
			a.Value = slog.StringValue(secrets.Mask(err.Error()))
		} else if text := fmt.Sprintf("%+v", value); secrets.Mask(text) != text {
			a.Value = slog.StringValue(secrets.Mask(text))
		}
	}

	return a
}

// cloud gives an attribute the name and form that Cloud Logging expects:
// https://cloud.google.com/logging/docs/structured-logging
func cloud(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		// The default is a number of nanoseconds.
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
	}

	if len(groups) > 0 {
		return a
	}

	switch a.Key {
	case slog.LevelKey:
		a.Key = "severity"
		if level, ok := a.Value.Any().(slog.Level); ok && level == slog.LevelWarn {
			a.Value = slog.StringValue("WARNING")
		} else {
			a.Value = slog.StringValue(strings.ToUpper(a.Value.String()))
		}
	case slog.MessageKey:
		a.Key = "message"
	}

	return a
}
