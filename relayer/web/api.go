package web

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	// defaultLimit and maxLimit are rows of one page of a list.
	defaultLimit, maxLimit = 100, 1000
	// queries bounds the requests that use the database at once: people must not take the
	// connections that commits need.
	queries = 3
	// retryAfter is the wait, in seconds, told to a client that found no free query, or no
	// database.
	retryAfter = "2"
)

// api answers from the tables. Its methods may be called concurrently.
type api struct {
	cfg      Config
	board    *board
	querying chan struct{} // has an element for each request that uses the database
}

// problem is an error in the form of RFC 9457.
type problem struct {
	Title     string `json:"title"` // of the status
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Parameter string `json:"parameter,omitempty"` // of the query or the path, when one is to blame
}

func (p problem) Error() string { return p.Detail }

func writeProblem(w http.ResponseWriter, p problem) {
	p.Title = http.StatusText(p.Status)
	w.Header().Set("Content-Type", "application/problem+json")
	writeBody(w, p.Status, p)
}

// bad is an unintelligible parameter.
func bad(parameter, value, remedy string) problem {
	const most = 80 // characters of the value that are repeated
	if len(value) > most {
		value = value[:most] + "…"
	}

	return problem{Status: http.StatusBadRequest, Detail: fmt.Sprintf("%s=%q: %s", parameter, value, remedy),
		Parameter: parameter}
}

// handle creates the handler of a method that returns an answer or an error; an error other than a
// problem is the database's.
func (a *api) handle(answer func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := a.limited(r, answer)
		var p problem
		switch {
		case err == nil:
			writeJSON(w, http.StatusOK, v)
		case errors.As(err, &p):
			if p.Status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", retryAfter)
			}

			writeProblem(w, p)
		case r.Context().Err() != nil: // the client hung up
		default:
			a.cfg.Log.WarnContext(r.Context(), "request not answered", slog.String("path", r.URL.Path),
				slog.String("err", a.cfg.Mask(err.Error())))
			w.Header().Set("Retry-After", retryAfter)
			writeProblem(w, problem{Status: http.StatusServiceUnavailable, Detail: "the database does not answer: try again"})
		}
	}
}

// limited runs a database query, when its turn comes, under queryTimeout.
func (a *api) limited(r *http.Request, answer func(*http.Request) (any, error)) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	select {
	case a.querying <- struct{}{}:
		defer func() { <-a.querying }()
		return answer(r)
	case <-r.Context().Done():
		return nil, problem{Status: http.StatusServiceUnavailable, Detail: "too many requests at once: try again"}
	}
}

// params reads a query: each parameter at most once, and only known ones, so that a misspelt filter
// is an error. err is the first problem.
type params struct {
	values url.Values
	err    error
}

func parse(r *http.Request, known ...string) *params {
	p := &params{}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		p.err = problem{Status: http.StatusBadRequest, Detail: "the query cannot be read: check its percent-encoding"}
	}

	p.values = values
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			p.fail(bad(name, v[0], "no such parameter; there are "+strings.Join(known, ", ")))
		case len(v) > 1:
			p.fail(bad(name, v[1], "given more than once"))
		}
	}

	return p
}

func (p *params) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *params) block(name string, absent int64) int64 {
	return p.number(name, absent, 0, math.MaxInt64, "must be a block number")
}

func (p *params) limit() int {
	return int(p.number("limit", defaultLimit, 1, maxLimit, fmt.Sprintf("must be 1 to %d", maxLimit)))
}

func (p *params) number(name string, absent, least, most int64, remedy string) int64 {
	v := p.values.Get(name)
	if v == "" {
		return absent
	}

	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		p.fail(bad(name, v, remedy))
	}

	return n
}

func (p *params) oneOf(name string, values ...string) string {
	v := p.values.Get(name)
	if v != "" && !slices.Contains(values, v) {
		p.fail(bad(name, v, "must be one of "+strings.Join(values, ", ")))
	}

	return v
}

// address returns an address in lower case, or "" without one.
func (p *params) address(name string) string {
	v := p.values.Get(name)
	if v == "" {
		return ""
	}

	address, ok := normalize(v)
	if !ok {
		p.fail(bad(name, v, notAnAddress))
	}

	return address
}

const notAnAddress = "must be 0x and 40 hexadecimal digits"

// normalize returns an address in lower case, as in the tables.
func normalize(v string) (address string, ok bool) {
	v = strings.ToLower(v)
	digits, prefixed := strings.CutPrefix(v, "0x")
	if !prefixed || len(digits) != 40 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", false
	}

	return v, true
}

// cursor reads the fields of a position that encodeCursor wrote; nil without one. A cursor belongs
// to one list, by its kind.
func (p *params) cursor(kind string, fields int) []string {
	v := p.values.Get("cursor")
	if v == "" {
		return nil
	}

	text, err := base64.RawURLEncoding.DecodeString(v)
	got := strings.Split(string(text), ",")
	if err != nil || got[0] != kind || len(got) != fields+1 {
		p.badCursor()
		return nil
	}

	return got[1:]
}

// badCursor records an invalid cursor.
func (p *params) badCursor() {
	p.fail(bad("cursor", p.values.Get("cursor"), `must be the "next" of the page before`))
}

// encodeCursor makes the position in a list opaque, so that clients do not compute one.
func encodeCursor(kind string, fields ...string) *string {
	s := base64.RawURLEncoding.EncodeToString([]byte(kind + "," + strings.Join(fields, ",")))
	return &s
}
