package web

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
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

func newPage(e explorer, chainID int64, several bool, mask func(string) string) *page {
	t := template.Must(template.New("page").Funcs(template.FuncMap{
		"addressLink": e.address, "blockLink": e.block, "txLink": e.tx, "mask": mask,
		"count": func(n any) string { return count(reflect.Indirect(reflect.ValueOf(n)).Int()) }, "known": known,
		"coarse": coarse, "milliseconds": milliseconds, "short": short, "span": span, "stamp": stamp,
		"args": func(raw json.RawMessage) []fact { return args(e, raw) },
		"mark": mark, "tone": tone, "way": way, "words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	}).Parse(pageHTML))

	return &page{
		templates: t, explorer: e, chainID: chainID, several: several, mask: mask,
		policy: strings.Join([]string{
			"default-src 'none'", "style-src " + hashSource(pageCSS), "script-src " + hashSource(pageJS), "connect-src 'self'",
			"img-src data:",
			"form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
		}, "; "),
	}
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

	s.front.writePage(r.Context(), w, status, text, s.page.policy, err)
}

// writePage answers with a page that may use what its policy allows. err: its template has failed.
func (c *FrontConfig) writePage(ctx context.Context, w http.ResponseWriter, status int, text, policy string,
	err error) {
	if err != nil {
		c.Log.ErrorContext(ctx, "page not rendered", slog.String("err", c.Mask(err.Error())))
		writeProblem(w, http.StatusInternalServerError, "the page could not be rendered; /status has the same as JSON")

		return
	}

	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that hung up
}

// view is the current state for the templates.
func (s *Server) view() *view {
	n, i := s.cfg.Fleet.Look(), s.cfg.Source.Instance()
	v := s.page.show(&n, &i, s.history.since(s.front.Now().Add(-historySpan)), s.front.Now())
	v.CSS, v.JS = template.CSS(pageCSS), template.JS(pageJS)

	return v
}

// render renders the page, without the control characters of the texts of rows and nodes.
func (p *page) render(v *view) (string, error) {
	var b strings.Builder
	err := p.templates.Execute(&b, v)
	return redact.Printable(b.String()), err
}
