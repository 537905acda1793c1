package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
)

// FrontConfig configures a Front. Chains, and Addr or Listener, are required.
type FrontConfig struct {
	Addr      string              // to listen on, as ":8080"
	Listener  net.Listener        // instead of Addr; closed by Run
	Chains    []int64             // ids of the chains that the process follows, in the order of the configuration
	Metrics   prometheus.Gatherer // of the process; may be nil
	Mask      func(string) string // removes secrets from texts; nil: texts stay unchanged
	TokenFile string              // holds the token that everything but the probes requires; empty: no token
	Log       *slog.Logger        // nil: silence
	Now       func() time.Time    // nil: time.Now
}

// Front is the HTTP server of a process: the probes, the metrics, and the pages of its chains. With one
// chain that chain's pages are at /; with several each chain's are below /chains/, and / shows all at a
// glance. NewFront makes it, Run runs it, once. Its methods are safe for concurrent use.
type Front struct {
	cfg      FrontConfig
	token    *token // nil: every request is admitted
	gate     Gate
	drawn    cached[string] // of the overview
	gathered cached[[]*dto.MetricFamily]
	mounts   []*mount
}

// mount is where a chain is served. Its fields change together, under mu.
type mount struct {
	id int64

	mu     sync.Mutex
	server *Server // of the current or last relayer; nil before the first
	ended  error   // why that relayer has ended; nil: it runs, or is about to
}

// NewFront checks the configuration and starts nothing.
func NewFront(cfg FrontConfig) (f *Front, err error) {
	if len(cfg.Chains) == 0 {
		return nil, errors.New("web: Chains are required")
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or[prometheus.Gatherer](cfg.Metrics, prometheus.NewRegistry())
	if cfg.Mask == nil {
		cfg.Mask = func(s string) string { return s }
	}

	if cfg.Now == nil {
		cfg.Now = time.Now
	}

	f = &Front{cfg: cfg}
	for _, id := range cfg.Chains {
		f.mounts = append(f.mounts, &mount{id: id})
	}

	if cfg.TokenFile != "" {
		if f.token, err = openToken(cfg.TokenFile, cfg.Now); err != nil {
			return nil, err
		}
	}

	return f, nil
}

// Mount makes the server of a chain, which takes the place of the one before it.
func (f *Front) Mount(cfg Config) *Server {
	s := newServer(cfg, f.cfg)
	if m := f.find(cfg.ChainID); m != nil {
		m.set(s, nil)
	}

	return s
}

// Ended records why a chain's relayer has ended. Its chain is not ready until Mount.
func (f *Front) Ended(chain int64, err error) {
	if m := f.find(chain); m != nil {
		s, _ := m.get()
		m.set(s, err)
	}
}

func (m *mount) set(s *Server, ended error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.server, m.ended = s, ended
}

func (m *mount) get() (*Server, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.server, m.ended
}

// find finds a chain, or nil.
func (f *Front) find(chain int64) *mount {
	i := slices.IndexFunc(f.mounts, func(m *mount) bool { return m.id == chain })
	if i < 0 {
		return nil
	}

	return f.mounts[i]
}

// named finds the chain named by {chain} in a request.
func (f *Front) named(r *http.Request) *mount {
	id, err := strconv.ParseInt(r.PathValue("chain"), 10, 64)
	if err != nil {
		return nil
	}

	return f.find(id)
}

// several reports whether the process follows more than one chain.
func (f *Front) several() bool { return len(f.mounts) > 1 }

// Gate bounds the resources of all listeners of the process together.
func (f *Front) Gate() *Gate { return &f.gate }

// Handler serves all routes.
func (f *Front) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", readOnly(serveHealth))
	mux.Handle("/readyz", readOnly(f.serveReady))
	mux.Handle("/readyz/{chain}", readOnly(f.serveReadyOf))
	mux.Handle("/metrics", readOnly(metrics.Handler(prometheus.GathererFunc(f.gather), f.cfg.Log).ServeHTTP))
	if f.token != nil {
		addProfiles(mux)
	}

	mux.HandleFunc("/chains/{chain}/", func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/chains/"+r.PathValue("chain"), f.pages(f.named(r))).ServeHTTP(w, r)
	})
	if f.several() {
		mux.Handle("/{$}", readOnly(f.serveOverview))
		mux.Handle("/status", readOnly(f.serveStatus))
		mux.Handle("/openapi.yaml", readOnly(serveOpenAPI))
		mux.Handle("/", f.pages(nil))
	} else {
		mux.Handle("/", f.pages(f.mounts[0]))
	}

	return secured(f.Guard(mux))
}

// pages serves the routes of a chain's server.
func (f *Front) pages(m *mount) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m == nil {
			writeProblem(w, http.StatusNotFound,
				"nothing is served at this path; / shows the chains, and /openapi.yaml lists what each has below /chains/")
			return
		}

		s, _ := m.get()
		if s == nil {
			writeProblem(w, http.StatusServiceUnavailable, f.condition(m).Checks["process"].Reason)
			return
		}

		s.handler.ServeHTTP(w, r)
	})
}

// serveStatus answers /status of several chains: that of each, by its id.
func (f *Front) serveStatus(w http.ResponseWriter, _ *http.Request) {
	all := map[int64]any{}
	for _, m := range f.mounts {
		if s, ended := m.get(); s != nil && ended == nil {
			all[m.id] = s.status()
		} else {
			all[m.id] = f.condition(m)
		}
	}

	writeJSON(w, http.StatusOK, map[string]any{"chains": all})
}

// gather returns the metrics of the process and of all chains, once a second for all scrapers.
func (f *Front) gather() ([]*dto.MetricFamily, error) {
	return f.gathered.get(time.Second, func() ([]*dto.MetricFamily, error) {
		from := prometheus.Gatherers{f.cfg.Metrics}
		for _, m := range f.mounts {
			if s, _ := m.get(); s != nil {
				from = append(from, s.cfg.Metrics)
			}
		}

		return from.Gather()
	})
}

// Run listens and serves until ctx ends, then lets running requests finish, ends the rest after two
// seconds, and returns nil. Any other return is an error.
func (f *Front) Run(ctx context.Context) error {
	ln := f.cfg.Listener
	if ln == nil {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", f.cfg.Addr); err != nil {
			return fmt.Errorf("serve HTTP: %w: set PORT to a free port", err)
		}
	}

	f.cfg.Log.InfoContext(ctx, "serving http", slog.String("address", ln.Addr().String()))

	return f.gate.Serve(ctx, "HTTP", ln, f.Handler(), f.cfg.Log)
}
