package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
)

const (
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
	Parameter string `json:"parameter,omitempty"` // of the path, when one is to blame
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
