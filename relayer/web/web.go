package web

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// DB is a pool. It is only read.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Fleet is a fleet.Reader.
type Fleet interface {
	Last() fleet.Reading
	Look() fleet.Reading // for somebody who looks on
}

// Source is the instance's knowledge of itself. Instance is called from several goroutines, at
// every probe and every two seconds; it must not block or query the database or a node.
type Source interface {
	Instance() fleet.Self
}

// Config of a Server. Source, Fleet, DB and ChainID are required.
type Config struct {
	Source      Source              // the instance's knowledge of itself
	Fleet       Fleet               // as it was read last
	DB          DB                  // for the rows of an escrow that is looked up
	ChainID     int64               // of the fleet
	Metrics     prometheus.Gatherer // of the chain, which the Front serves; nil: none
	ExplorerURL string              // of a block explorer that has /tx/, /block/ and /address/ below it; empty: no links
	Mask        func(string) string // removes secrets from texts; nil: texts stay unchanged
	Log         *slog.Logger        // nil: silence
	Now         func() time.Time    // nil: time.Now
	Commands    http.Handler        // serves /commands and below; may be nil
	Several     bool                // the process follows other chains too: the page links to the overview
}

// Server serves the pages and the API of one chain, mounted at a Front. New makes it, Run runs it, once.
type Server struct {
	cfg     Config
	page    *page
	handler http.Handler

	draws    time.Duration // between two renderings
	whole    cached[string]
	history  history
	querying chan struct{} // has an element for each look-up
}

// drawEvery is between two renderings of the page, for all viewers together.
const drawEvery = time.Second

// cached is what is made again at most once in a while, by one caller for all. The zero value is ready.
type cached[T any] struct {
	mu    sync.Mutex
	at    time.Time
	value T
	err   error
}

func (c *cached[T]) get(every time.Duration, renew func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) >= every {
		c.value, c.err = renew()
		c.at = time.Now()
	}

	return c.value, c.err
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Source == nil || cfg.Fleet == nil || cfg.DB == nil || cfg.ChainID == 0 {
		return nil, errors.New("web: Source, Fleet, DB and ChainID are required")
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or[prometheus.Gatherer](cfg.Metrics, prometheus.NewRegistry())
	if cfg.Mask == nil {
		cfg.Mask = func(s string) string { return s }
	}

	if cfg.Now == nil {
		cfg.Now = time.Now
	}

	explorer, err := parseExplorer(cfg.ExplorerURL)
	if err != nil {
		return nil, err
	}

	page, err := newPage(explorer, cfg.ChainID, cfg.Several, cfg.Mask)
	if err != nil {
		return nil, err
	}

	s := &Server{cfg: cfg, page: page, draws: drawEvery, querying: make(chan struct{}, queries)}
	s.handler = s.Handler()

	return s, nil
}

// route is one path of the server. The test of openapi.yaml iterates over them.
type route struct {
	pattern string // of http.ServeMux, without a method: readOnly answers the unsupported ones
	handler http.HandlerFunc
}

func (s *Server) routes() []route {
	return []route{
		{"/{$}", s.servePage},
		{"/status", s.serveStatus},
		{"/openapi.yaml", serveOpenAPI},
	}
}

// Handler serves all routes. Without Run there are no samples: the plots stay empty.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.Handle(r.pattern, readOnly(r.handler))
	}

	if s.cfg.Commands != nil {
		mux.Handle("/commands", s.cfg.Commands)
		mux.Handle("/commands/", s.cfg.Commands)
	}

	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{Status: http.StatusNotFound,
			Detail: "nothing is served at this path; /openapi.yaml lists what is"})
	})

	return secured(mux)
}

// Run samples for the plots until ctx ends, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		i, outbox := s.cfg.Source.Instance(), s.cfg.Fleet.Last().Fleet.Outbox
		s.history.add(sample{at: s.cfg.Now(), head: i.Head, target: i.Target, cursor: i.Cursor, lag: i.Lag(),
			outbox: outbox.Messages, oldest: time.Duration(outbox.OldestAge)})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
