package web

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
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

// page renders the status page. It is immutable.
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
	status := http.StatusOK
	var text string
	var err error
	if query := strings.TrimSpace(r.URL.Query().Get("escrow")); query != "" {
		v := s.view()
		v.Escrow, status = s.search(r.Context(), query)
		v.Title = short(query) + " · escrow relayer"
		text, err = s.page.render(v)
	} else {
		text, err = s.whole.get(s.draws, func() (string, error) { return s.page.render(s.view()) })
	}

	if err != nil {
		notRendered(r.Context(), w, s.cfg.Log, s.cfg.Mask(err.Error()))
		return
	}

	writePage(w, status, text, s.page.policy)
}

// notRendered answers where a template has failed.
func notRendered(ctx context.Context, w http.ResponseWriter, log *slog.Logger, why string) {
	log.ErrorContext(ctx, "page not rendered", slog.String("err", why))
	writeProblem(w, problem{Status: http.StatusInternalServerError,
		Detail: "the page could not be rendered; /status has the same as JSON"})
}

// writePage answers with a page that may use what its policy allows.
func writePage(w http.ResponseWriter, status int, text, policy string) {
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that hung up
}

// view is the current state for the templates.
func (s *Server) view() *view {
	n, i := s.cfg.Fleet.Look(), s.cfg.Source.Instance()
	v := s.page.show(&n, &i, s.history.since(s.cfg.Now().Add(-historySpan)), s.cfg.Now())
	v.CSS, v.JS = template.CSS(pageCSS), template.JS(pageJS)

	return v
}

// render renders the page, without the control characters of the texts of rows and nodes.
func (p *page) render(v *view) (string, error) {
	var b strings.Builder
	err := p.templates.Execute(&b, v)
	return redact.Printable(b.String()), err
}
