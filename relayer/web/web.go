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
	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
)

// DB is a pool. It is only read.
type DB interface {
	fleet.DB
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Source is the instance's knowledge of itself. Instance is called from several goroutines, at
// every probe and every two seconds; it must not block or query the database or a node.
type Source interface {
	Instance() fleet.Self
}

// Config of a Server. Source, DB and ChainID are required.
type Config struct {
	Source      Source              // the instance's knowledge of itself
	DB          DB                  // the source of the fleet and the API's rows
	ChainID     int64               // of the fleet
	Fleet       *fleet.Reader       // nil: a new one, which counts the escrows separately
	Metrics     prometheus.Gatherer // nil: /metrics is empty
	ExplorerURL string              // of a block explorer that has /tx/, /block/ and /address/ below it; empty: no links
	Mask        func(string) string // removes secrets from texts; nil: texts stay unchanged
	Log         *slog.Logger        // nil: silence
	Every       time.Duration       // between two readings with viewers; 0 means 2 s
	Now         func() time.Time    // nil: time.Now
	Commands    http.Handler        // serves /commands and below; may be nil
	Several     bool                // the process follows other chains too: the page links to the overview

	Admits func(*http.Request) bool // whether a request still has the token; nil: no token
}

// Server serves the pages and the API of one chain, mounted at a Front. New makes it, Run runs it, once.
type Server struct {
	cfg     Config
	api     *api
	board   *board
	page    *page
	handler http.Handler
	stop    chan struct{} // closed at the end: ends the streams of /live, for which a shutdown would wait
	ending  sync.Once

	draws time.Duration // between two renderings
	whole cached[string]
	parts cached[*update]
}

// drawEvery is between two renderings of the page, and of its parts, for all viewers together.
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
	if cfg.Source == nil || cfg.DB == nil || cfg.ChainID == 0 {
		return nil, errors.New("web: Source, DB and ChainID are required")
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Every = cmp.Or(cfg.Every, 2*time.Second)
	cfg.Metrics = cmp.Or[prometheus.Gatherer](cfg.Metrics, prometheus.NewRegistry())
	cfg.Fleet = cmp.Or(cfg.Fleet, &fleet.Reader{DB: cfg.DB, ChainID: cfg.ChainID})
	if cfg.Mask == nil {
		cfg.Mask = func(s string) string { return s }
	}

	if cfg.Admits == nil {
		cfg.Admits = func(*http.Request) bool { return true }
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

	s := &Server{cfg: cfg, board: newBoard(cfg), page: page, stop: make(chan struct{}), draws: drawEvery}
	s.api = &api{cfg: cfg, board: s.board, querying: make(chan struct{}, queries)}
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
		{"/live", s.serveLive},
		{"/healthz", serveHealth},
		{"/readyz", s.serveReady},
		{"/metrics", metrics.Handler(s.cfg.Metrics, s.cfg.Log).ServeHTTP},
		{"/status", s.serveStatus},
		{"/escrows/{address}", s.api.handle(s.api.getEscrow)},
		{"/openapi.yaml", serveOpenAPI},
	}
}

// Handler serves all routes. Without Run there are no samples: the plots stay empty, and /live
// sends its first state only.
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

// Run samples for the plots and the streams until ctx ends, which ends the streams, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	defer s.endStreams()
	return s.board.run(ctx)
}

// endStreams ends the streams of /live.
func (s *Server) endStreams() { s.ending.Do(func() { close(s.stop) }) }
