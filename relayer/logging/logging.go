// Package logging makes the logger: JSON as Google Cloud Logging reads it, or text for a person, without secrets either way.
package logging

import (
	"io"
	"log/slog"
	"strings"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// New returns a logger. format is json or text, level one of debug, info, warn, error. Every text that goes out is masked: the second line of
// defence, after the places that know what is secret.
func New(w io.Writer, format, level string, secrets *redact.Secrets) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	replace := func(groups []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindAny {
			if err, ok := a.Value.Any().(error); ok {
				a.Value = slog.StringValue(err.Error())
			}
		}
		if a.Value.Kind() == slog.KindString {
			a.Value = slog.StringValue(secrets.Mask(a.Value.String()))
		}
		if format != "json" || len(groups) > 0 {
			return a
		}
		switch a.Key { // https://cloud.google.com/logging/docs/structured-logging
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
	opts := &slog.HandlerOptions{Level: l, ReplaceAttr: replace}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
