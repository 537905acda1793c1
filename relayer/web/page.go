package web

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

var (
	//go:embed assets/page.html
	pageHTML string
	//go:embed assets/page.css
	pageCSS string
	//go:embed assets/page.js
	pageJS string
)

// fragments are the parts of the page that /live replaces: names of templates, and ids of the elements around them.
var fragments = []string{"verdict", "figures", "fleet", "facts", "endpoints", "events", "senders", "commands"}

// page renders the status page, whole or in fragments. It is immutable.
type page struct {
	templates *template.Template
	explorer  explorer
	chainID   int64
	several   bool // chains in this process
	mask      func(string) string
	policy    string // Content-Security-Policy: only the page's styles and script, by hash
}

func newPage(e explorer, chainID int64, several bool, mask func(string) string) (*page, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"addressLink": e.address, "blockLink": e.block, "txLink": e.tx, "mask": mask,
		"count": func(n any) string { return count(reflect.Indirect(reflect.ValueOf(n)).Int()) }, "known": known,
		"coarse": coarse, "milliseconds": milliseconds, "short": short, "span": span, "stamp": stamp,
		"args": func(raw json.RawMessage) []fact { return args(e, raw) },
		"mark": mark, "tone": tone, "way": way, "words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	}).Parse(pageHTML)
	if err != nil {
		return nil, fmt.Errorf("read the status page's template: %w", err)
	}

	return &page{
		templates: t, explorer: e, chainID: chainID, several: several, mask: mask,
		policy: strings.Join([]string{
			"default-src 'none'", "style-src " + hashSource(pageCSS), "script-src " + hashSource(pageJS), "connect-src 'self'",
			"img-src data:",
			"form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
		}, "; "),
	}, nil
}

// hashSource allows exactly one inline element.
func hashSource(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// servePage answers /, with the result of a search when ?escrow= has an address.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request) {
	ctx, status := r.Context(), http.StatusOK
	var text string
	var err error
	if query := strings.TrimSpace(r.URL.Query().Get("escrow")); query != "" {
		v := s.view(ctx)
		v.Escrow, status = s.search(r, query)
		v.Title = short(query) + " · escrow relayer"
		text, err = s.page.fragment("page", v)
	} else {
		text, err = s.whole.get(s.draws, func() (string, error) { return s.page.fragment("page", s.view(ctx)) })
	}

	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "status page not rendered", slog.String("err", s.cfg.Mask(err.Error())))
		writeProblem(w, problem{Status: http.StatusInternalServerError,
			Detail: "the page could not be rendered; /status has the same as JSON"})

		return
	}

	w.Header().Set("Content-Security-Policy", s.page.policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that hung up
}

// view is the current state for the templates.
func (s *Server) view(ctx context.Context) *view {
	n, i := s.board.latest(ctx), s.cfg.Source.Instance()
	v := s.page.show(&n, &i, s.board.samples(), s.cfg.Now())
	v.CSS, v.JS = template.CSS(pageCSS), template.JS(pageJS)

	return v
}

// search looks an escrow up, and returns the HTTP status of the page with the result.
func (s *Server) search(r *http.Request, query string) (*escrowView, int) {
	address, ok := normalize(query)
	if !ok {
		return &escrowView{Query: query, Problem: "Not an address: it " + notAnAddress + "."}, http.StatusBadRequest
	}

	answer, err := s.api.limited(r, func(r *http.Request) (any, error) { return s.api.detail(r, address) })
	if p, is := errors.AsType[problem](err); is {
		return &escrowView{Query: query, Problem: sentence(p.Detail) + "."}, p.Status
	}

	if err != nil {
		s.cfg.Log.WarnContext(r.Context(), "escrow not looked up", slog.String("escrow", address),
			slog.String("err", s.cfg.Mask(err.Error())))
		return &escrowView{Query: query, Problem: "The database does not answer: try again."}, http.StatusServiceUnavailable
	}

	d := answer.(escrowDetail)

	return s.page.escrow(&d), http.StatusOK
}

// fragment renders one part of the page, or all of it, without the control characters of the texts of rows and nodes.
func (p *page) fragment(name string, v *view) (string, error) {
	var b strings.Builder
	err := p.templates.ExecuteTemplate(&b, name, v)
	return redact.Printable(b.String()), err
}
