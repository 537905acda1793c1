package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/caarlos0/env/v11"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

func load(environ map[string]string, check func(*loader)) (*Config, error) {
	l := &loader{c: &Config{}, environ: map[string]string{}, unread: map[string]bool{}}
	for k, v := range environ { // an empty variable is an unset one; a secret from a file often ends with a line break
		if v = strings.TrimSpace(v); v != "" {
			l.environ[k] = v
		}
	}

	l.c.otelSecrets = otelSecrets(l.environ)
	l.parse()
	check(l)
	if len(l.problems) == 0 {
		l.c.settings = l.settings()
		return l.c, nil
	}

	slices.SortStableFunc(l.problems, func(a, b Problem) int { return strings.Compare(a.Variable, b.Variable) })

	return nil, l.problems
}

type loader struct {
	c        *Config
	environ  map[string]string
	problems Problems
	unread   map[string]bool // variables whose value has the wrong type: further checks skip them
}

// shownBytes is how much of a value is shown.
const shownBytes = 100

// say records a problem of a variable with a value of the right type.
func (l *loader) say(variable, format string, args ...any) {
	if !l.unread[variable] {
		l.note(variable, fmt.Sprintf(format, args...))
	}
}

func (l *loader) note(variable, remedy string) {
	l.problems = append(l.problems, l.problem(variable, remedy))
}

// problem describes a variable's mistake and shows its value, without secrets.
func (l *loader) problem(variable, remedy string) Problem {
	_, set := l.environ[variable]
	value := l.shown(variable, l.environ[variable])
	switch {
	case !set:
		value = "(not set)"
	case strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }):
		value = strconv.Quote(value)
	}

	return Problem{variable, value, l.mask(remedy)}
}

// shown is the printable value of a variable: without secrets, and cut off after shownBytes.
func (l *loader) shown(variable, value string) string {
	if v := byName[variable]; v.Secret {
		value = redacted(v, value)
	}

	if len(value) > shownBytes {
		value = strings.ToValidUTF8(value[:shownBytes], "") + "…"
	}

	return value
}

// redacted shows only the hosts of a secret value. A comma in a password looks like the end of a
// URL, so unless every part is a URL, all of it is hidden.
func redacted(v Variable, value string) string {
	if v.Type != "list" {
		return redact.URL(value)
	}

	parts := strings.Split(value, ",")
	for i, raw := range parts {
		if parts[i] = redact.URL(raw); !strings.Contains(raw, "://") {
			return redact.URL("")
		}
	}

	return strings.Join(parts, ",")
}

// mask removes the environment's secrets from a remedy, which may quote a parser's error.
func (l *loader) mask(text string) string {
	var raw []string
	for name, v := range byName {
		if v.Secret {
			raw = append(raw, l.environ[name])
			if v.Type == "list" {
				raw = append(raw, strings.Split(l.environ[name], ",")...)
			}
		}
	}

	return redact.New(raw...).Mask(text)
}

// parse fills the fields. A value of the wrong type is recorded, and its field stays zero.
func (l *loader) parse() {
	err := env.ParseWithOptions(l.c, env.Options{Environment: l.environ})
	if err == nil {
		return
	}

	all := []error{err}
	if a, ok := errors.AsType[env.AggregateError](err); ok {
		all = a.Errors
	}

	for _, e := range all {
		p, ok := errors.AsType[env.ParseError](e)
		f, known := reflect.TypeFor[Config]().FieldByName(p.Name)
		if !ok || !known {
			l.note("environment", e.Error())
			continue
		}

		variable := f.Tag.Get("env")
		_, must := kind(f)
		l.note(variable, "must be "+must)
		l.unread[variable] = true
	}
}
