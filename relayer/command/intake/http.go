package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"syscall"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Bounds of the HTTP interface.
const (
	maxAtOnce = 256 // requests of each method that need the database; more are told to come back

	maxCancellation = 1 << 10 // bytes of the body of a cancellation: a signature has 132 characters
)

// problem is a refusal, as the client reads it.
type problem = command.RefusedError

// result is one command's in the answer to an array.
type result struct {
	Status int `json:"status"`
	command.Answer
}

// Handler serves POST /commands and GET /commands/{id}.
func (i *Intake) Handler() http.Handler {
	posts, gets := semaphore.NewWeighted(maxAtOnce), semaphore.NewWeighted(maxAtOnce)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /commands", func(w http.ResponseWriter, r *http.Request) {
		readBody(w, r, command.MaxBytes, func(body []byte) {
			serve(posts, w, "too many requests at once; send up to 100 commands in one", func() { i.post(w, r, body) })
		})
	})
	mux.HandleFunc("POST /commands/{id}/cancel", func(w http.ResponseWriter, r *http.Request) {
		readBody(w, r, maxCancellation, func(body []byte) {
			serve(posts, w, "too many requests at once", func() { i.cancel(w, r, body) })
		})
	})
	mux.HandleFunc("GET /commands/{id}", func(w http.ResponseWriter, r *http.Request) {
		serve(gets, w, "too many requests at once", func() { i.get(w, r) })
	})

	return mux
}

// serve calls f in one of the places for requests that wait for the database, or says at once that none is free.
func serve(places *semaphore.Weighted, w http.ResponseWriter, none string, f func()) {
	if !places.TryAcquire(1) {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, problem{Status: http.StatusTooManyRequests, Detail: none})
		return
	}
	defer places.Release(1)

	f()
}

// readBody calls f with what was posted, or answers why it is not taken. It comes before a place is taken, so one that
// comes slowly takes none from the others. How long that may take, and how much is held of all, is web.Gate's.
func readBody(w http.ResponseWriter, r *http.Request, most int64, f func(body []byte)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		writeProblem(w, problem{Status: http.StatusRequestEntityTooLarge, Code: command.CodeTooLarge,
			Detail: fmt.Sprintf("this message may have %d bytes", most)})
	case errors.Is(err, syscall.ENOBUFS): // as web.Gate says it
		w.Header().Set("Retry-After", "1")
		writeProblem(w, problem{Status: http.StatusServiceUnavailable, Detail: "too many bodies at once"})
	case err != nil:
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: command.CodeMalformed,
			Detail: "the body could not be read"})
	default:
		f(body)
	}
}

func (i *Intake) post(w http.ResponseWriter, r *http.Request, body []byte) {
	ctx, cancel := context.WithTimeout(r.Context(), takeTimeout)
	defer cancel()
	verdicts, err := i.Take(ctx, body, false)
	if err != nil {
		i.unavailable(w, r, "the commands could not be stored now; send them again: what was stored is known by its id", err)
		return
	}

	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) && !verdicts[0].Whole {
		writeMany(w, verdicts)
		return
	}

	a := verdicts[0].Answer
	if status := status(verdicts[0]); status != http.StatusAccepted {
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "2")
		}

		writeProblem(w, problem{Status: status, Code: a.Code, Detail: a.Detail, CommandID: a.CommandID, Winner: a.Winner,
			Problems: a.Problems})
		return
	}

	writeJSON(w, http.StatusAccepted, a)
}

// unavailable tells the client to come back, and the log why.
func (i *Intake) unavailable(w http.ResponseWriter, r *http.Request, detail string, err error) {
	i.cfg.Log.WarnContext(r.Context(), "request not served", slog.String("reason", detail), slog.Any("err", err))
	w.Header().Set("Retry-After", "2")
	writeProblem(w, problem{Status: http.StatusServiceUnavailable, Detail: detail})
}

// writeMany answers an array by an array, also of one: with the status that all have in common, or 207.
func writeMany(w http.ResponseWriter, verdicts []Verdict) {
	results := make([]result, len(verdicts))
	overall := status(verdicts[0])
	for n, v := range verdicts {
		results[n] = result{Status: status(v), Answer: v.Answer}
		if results[n].Status != overall {
			overall = http.StatusMultiStatus
		}
	}

	writeJSON(w, overall, results)
}

// status is what a verdict is in HTTP's terms. What was known already is accepted, unless it had been refused.
func status(v Verdict) int {
	switch v.Answer.State {
	case command.Refused:
	case command.Expired:
		return http.StatusRequestTimeout
	default:
		return http.StatusAccepted
	}

	switch v.Answer.Code {
	case command.CodeMalformed:
		return http.StatusBadRequest
	case command.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case command.CodeSignature:
		return http.StatusUnauthorized
	case command.CodeForeign, command.CodeNotAllowed:
		return http.StatusForbidden
	case command.CodeTooMany:
		return http.StatusTooManyRequests
	}

	return http.StatusConflict
}

// idOf is the id in a request's path, or answers that there is none.
func idOf(w http.ResponseWriter, r *http.Request) (id common.Hash, ok bool) {
	raw, err := hexutil.Decode(r.PathValue("id"))
	if err != nil || len(raw) != common.HashLength {
		writeProblem(w, problem{Status: http.StatusBadRequest, Detail: "the id of a command is 0x and 64 hexadecimal digits"})
		return id, false
	}

	return common.BytesToHash(raw), true
}

// cancel gives a command up for its requester, if nothing was signed for it.
func (i *Intake) cancel(w http.ResponseWriter, r *http.Request, body []byte) {
	id, ok := idOf(w, r)
	if !ok {
		return
	}

	var c command.Cancellation
	if err := json.Unmarshal(body, &c); err != nil {
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: command.CodeMalformed,
			Detail: "the body must be a JSON object with the field signature"})
		return
	}

	ctx, cancel := context.WithTimeout(r.Context(), takeTimeout)
	defer cancel()
	asked, err := i.store.cancel(ctx, id, c)
	if errors.Is(err, command.ErrSignature) {
		writeProblem(w, problem{Status: http.StatusUnauthorized, Code: command.CodeSignature, Detail: err.Error()})
		return
	}

	if err != nil {
		i.unavailable(w, r, "the database cannot be written now", err)
		return
	}

	a, known, err := i.Lookup(ctx, id)
	switch {
	case err != nil:
		i.unavailable(w, r, "the database cannot be read now", err)
	case asked:
		writeJSON(w, http.StatusAccepted, a)
	case !known:
		writeProblem(w, problem{Status: http.StatusNotFound, Detail: "this requester has asked for no such command"})
	default:
		writeProblem(w, problem{Status: http.StatusConflict, CommandID: id.Hex(),
			Detail: fmt.Sprintf("the command is %s, or of another requester: it cannot be cancelled", a.State)})
	}
}

func (i *Intake) get(w http.ResponseWriter, r *http.Request) {
	id, ok := idOf(w, r)
	if !ok {
		return
	}

	ctx, cancel := context.WithTimeout(r.Context(), takeTimeout)
	defer cancel()
	a, ok, err := i.Lookup(ctx, id)
	switch {
	case err != nil:
		i.unavailable(w, r, "the database cannot be read now", err)
	case !ok:
		writeProblem(w, problem{Status: http.StatusNotFound, Detail: "no such command was taken in"})
	default:
		writeJSON(w, http.StatusOK, a)
	}
}

// writeProblem writes a refusal as an error document (RFC 9457), which also has a title.
func writeProblem(w http.ResponseWriter, p problem) {
	write(w, p.Status, "application/problem+json", struct {
		Title string `json:"title"`
		problem
	}{http.StatusText(p.Status), p})
}

func writeJSON(w http.ResponseWriter, status int, v any) { write(w, status, "application/json", v) }

func write(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"title":"Internal Server Error","status":500}`)
	}

	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // whoever hung up gets nothing
}
