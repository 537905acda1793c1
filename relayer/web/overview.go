package web

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

//go:embed assets/chains.html
var chainsHTML string

// overview is the page of a process that follows several chains.
type overview struct {
	Title string
	Read  string
	Rows  []chainRow
	CSS   template.CSS
}

// chainRow is one chain at a glance.
type chainRow struct {
	ID                    int64
	Verdict               verdict
	Leads                 bool
	Factories             []string // addresses
	Slots, Escrows        int
	Head, Lag, Messages   int64
	LagTime, OldestOutbox time.Duration
}

func newOverview() (*template.Template, error) {
	t, err := template.New("chains").Funcs(template.FuncMap{"count": count[int64], "span": span}).Parse(chainsHTML)
	if err != nil {
		return nil, fmt.Errorf("read the template of the chains: %w", err)
	}

	return t, nil
}

// serveOverview answers / of a process that follows several chains.
func (f *Front) serveOverview(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	text, err := f.drawn.get(drawEvery, func() ([]byte, error) {
		var b bytes.Buffer
		err := f.overview.Execute(&b, overview{
			Title: "Escrow relayer", Read: clock(f.cfg.Now()), CSS: template.CSS(pageCSS), Rows: ofEach(ctx, f, f.row),
		})

		return b.Bytes(), err
	})
	if err != nil {
		f.cfg.Log.ErrorContext(ctx, "overview not rendered", slog.String("err", f.cfg.Mask(err.Error())))
		writeProblem(w, problem{Status: http.StatusInternalServerError,
			Detail: "the page could not be rendered; /status has the same as JSON"})

		return
	}

	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src "+hashSource(pageCSS)+
		"; img-src data:; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text) // a client that hung up
}

// row is the current state of a chain.
func (f *Front) row(ctx context.Context, m *mount) chainRow {
	s, ended := m.get()
	if s == nil || ended != nil {
		v := verdict{Level: "notice", Headline: "Starting"}
		if ended != nil {
			v = verdict{Level: "critical", Headline: "Stopped, and will be started again: " + f.cfg.Mask(ended.Error())}
		}

		v.Mark = marks[v.Level].mark

		return chainRow{ID: m.id, Verdict: v}
	}

	n, i := s.board.latest(ctx), s.cfg.Source.Instance()

	return chainRow{
		ID: m.id, Verdict: s.page.judge(&n, &i, f.cfg.Now()), Leads: i.Leader, Slots: i.Slots, Escrows: i.Escrows,
		Head: i.Head, Lag: i.Lag(), LagTime: i.LagTime(), Messages: n.fleet.Outbox.Messages,
		OldestOutbox: time.Duration(n.fleet.Outbox.OldestAge),
		Factories:    strings.FieldsFunc(n.fleet.Chain.Factory, func(r rune) bool { return r == ',' }),
	}
}
