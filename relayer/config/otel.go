package config

import (
	"net/url"
	"slices"
	"strings"
)

// samplers are the names shared by the specification of OTEL_TRACES_SAMPLER and OpenTelemetry's
// SDK.
var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off",
	"parentbased_traceidratio"}

// otelHeaders and otelURLs are the variables of OpenTelemetry's exporter that may hold keys.
var (
	otelHeaders = []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}
	otelURLs    = []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}
)

// otel checks the variables of OpenTelemetry. Its SDK reads them too, and silently ignores an
// invalid one, or writes it to stderr with the key in it.
func (l *loader) otel() {
	one := func(name string, of ...string) {
		if v, set := l.environ[name]; set && !slices.Contains(of, strings.ToLower(v)) {
			l.note(name, "must be one of "+strings.Join(of, ", "))
		}
	}
	one("OTEL_TRACES_EXPORTER", "otlp", "console", "none")
	one("OTEL_TRACES_SAMPLER", samplers...)
	one("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "grpc")
	one("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf", "grpc")
	for _, name := range otelURLs {
		if v, set := l.environ[name]; set && !isHTTP(v) {
			l.problems = append(l.problems, Problem{name, "***",
				"must be a URL: http://host:4318, or with grpc http://host:4317"})
		}
	}

	for _, name := range otelHeaders {
		if _, ok := headers(l.environ[name]); !ok {
			l.problems = append(l.problems, Problem{name, "***", "must be name=value,name=value, with values percent-encoded"})
		}
	}
}

// otelSecrets returns the possible keys in the variables of OpenTelemetry.
func otelSecrets(environ map[string]string) (secrets []string) {
	const short = 6 // bytes: names of tenants and the like; masking them would make texts unreadable
	add := func(s string) {
		if len(s) >= short {
			secrets = append(secrets, s)
		}
	}
	for _, name := range otelHeaders {
		values, _ := headers(environ[name])
		for _, v := range values {
			add(v)
			add(url.PathEscape(v))
			if _, credential, ok := strings.Cut(v, " "); ok { // Bearer …
				add(credential)
			}
		}
	}

	for _, name := range otelURLs {
		add(environ[name])
	}

	return secrets
}

// headers returns the values of a list of headers, and whether it is one.
func headers(list string) (values []string, ok bool) {
	if list == "" {
		return nil, true
	}

	ok = true
	for pair := range strings.SplitSeq(list, ",") {
		name, raw, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(raw))
		if !found || err != nil || strings.TrimSpace(name) == "" || strings.ContainsAny(strings.TrimSpace(name), " \t:") {
			ok = false
			continue
		}

		values = append(values, value)
	}

	return values, ok
}
