package web

import (
	_ "embed"
	"html/template"
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

var overviewPage = template.Must(
	template.New("chains").Funcs(template.FuncMap{"count": count[int64], "span": span}).Parse(chainsHTML))

// serveOverview answers / of a process that follows several chains.
func (f *Front) serveOverview(w http.ResponseWriter, r *http.Request) {
	text, err := f.drawn.get(drawEvery, func() (string, error) {
		var b strings.Builder
		o := overview{Title: "Escrow relayer", Read: clock(f.cfg.Now()), CSS: template.CSS(pageCSS)}
		for _, m := range f.mounts {
			o.Rows = append(o.Rows, f.row(m))
		}

		err := overviewPage.Execute(&b, o)

		return b.String(), err
	})
	f.cfg.writePage(r.Context(), w, http.StatusOK, text, "default-src 'none'; style-src "+hashSource(pageCSS)+
		"; img-src data:; base-uri 'none'; frame-ancestors 'none'", err)
}

// row is the current state of a chain.
func (f *Front) row(m *mount) chainRow {
	s, ended := m.get()
	if s == nil || ended != nil {
		v := verdict{Level: "notice", Headline: "Starting"}
		if ended != nil {
			v = verdict{Level: "critical", Headline: "Stopped, and will be started again: " + f.cfg.Mask(ended.Error())}
		}

		v.Mark = marks[v.Level].mark

		return chainRow{ID: m.id, Verdict: v}
	}

	n, i := s.cfg.Fleet.Look(), s.cfg.Source.Instance()

	return chainRow{
		ID: m.id, Verdict: s.page.judge(&n, &i, f.cfg.Now()), Leads: i.Leader, Slots: i.Slots, Escrows: i.Escrows,
		Head: i.Head, Lag: i.Lag(), LagTime: i.LagTime(), Messages: n.Fleet.Outbox.Messages,
		OldestOutbox: time.Duration(n.Fleet.Outbox.OldestAge),
		Factories:    strings.FieldsFunc(n.Fleet.Chain.Factory, func(r rune) bool { return r == ',' }),
	}
}
