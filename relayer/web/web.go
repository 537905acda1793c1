package web

import (
	"cmp"
	"context"
	"net/http"
	"strings"
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
	Commands    http.Handler        // serves /commands and below; may be nil
}

// Server serves the pages and the API of one chain. Front.Mount makes it, Run runs it, once.
type Server struct {
	cfg     Config
	front   FrontConfig // its Mask, Log and Now
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

// newServer starts nothing.
func newServer(cfg Config, front FrontConfig) *Server {
	cfg.Metrics = cmp.Or[prometheus.Gatherer](cfg.Metrics, prometheus.NewRegistry())
	s := &Server{cfg: cfg, front: front, page: newPage(explorer{strings.TrimSuffix(cfg.ExplorerURL, "/")}, cfg.ChainID,
		len(front.Chains) > 1, front.Mask), draws: drawEvery, querying: make(chan struct{}, queries)}
	s.handler = s.serve()

	return s
}

// routes are those that openapi.yaml describes, which a test compares.
func (s *Server) routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"/{$}": s.servePage, "/status": s.serveStatus, "/openapi.yaml": serveOpenAPI}
}

// serve serves all routes of the chain. Without Run there are no samples: the plots stay empty.
func (s *Server) serve() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range s.routes() {
		mux.Handle(pattern, readOnly(handle))
	}

	if s.cfg.Commands != nil {
		mux.Handle("/commands", s.cfg.Commands)
		mux.Handle("/commands/", s.cfg.Commands)
	}

	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, http.StatusNotFound, "nothing is served at this path; /openapi.yaml lists what is")
	})

	return mux
}

// Run samples for the plots until ctx ends, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		i, outbox := s.cfg.Source.Instance(), s.cfg.Fleet.Last().Fleet.Outbox
		s.history.add(sample{at: s.front.Now(), head: i.Head, target: i.Target, cursor: i.Cursor, lag: i.Lag(),
			outbox: outbox.Messages, oldest: time.Duration(outbox.OldestAge)})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
