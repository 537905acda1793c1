package web

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// served is a server that runs on a port of this machine.
type served struct {
	url    string
	server *Server
	stop   func() error // ends it and returns what Run returned
}

func (w *world) serve(before ...func(*Server)) served {
	w.t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	s := w.server()
	for _, do := range before {
		do(s)
	}

	f := mounted(w.t, FrontConfig{Listener: ln}, s)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return s.Run(ctx) })
		g.Go(func() error { return f.Run(ctx) })
		done <- g.Wait()
	}()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}

		stopped = true
		cancel()

		return <-done
	}
	w.t.Cleanup(func() { require.NoError(w.t, stop()) })

	return served{"http://" + ln.Addr().String(), s, stop}
}

// mounted is a front whose one chain is served by s.
func mounted(t testing.TB, cfg FrontConfig, s *Server) *Front {
	t.Helper()
	cfg.Chains = []int64{s.cfg.ChainID}
	f, err := NewFront(cfg)
	require.NoError(t, err)
	f.mounts[0].set(s, nil)

	return f
}

// serverOf is the server of a front's one chain.
func serverOf(t testing.TB, front FrontConfig, cfg Config) *Server {
	t.Helper()
	front.Chains = []int64{cfg.ChainID}
	f, err := NewFront(front)
	require.NoError(t, err)

	return f.Mount(cfg)
}

// broken is a database that is gone. Its errors quote what must not be shown: who would log in, for want of a password.
func broken(t *testing.T) pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), "postgres://"+secret+"@127.0.0.1:1/relayer?sslmode=disable")
	require.NoError(t, err)
	t.Cleanup(db.Close)

	return db
}

const secret = "hunter2"

var errGone = errors.New("dial postgres://relayer:" + secret + "@db: connection refused")

// untouchable fails the test when it is used.
type untouchable struct{ t *testing.T }

func (u untouchable) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	u.t.Error("the database was used")
	return nil, errGone
}

func (u untouchable) Query(context.Context, string, ...any) (pgx.Rows, error) {
	u.t.Error("the database was used")
	return nil, errGone
}

func mask(s string) string { return strings.ReplaceAll(s, secret, "***") }

func bare(t *testing.T, db pool) (*Server, *instanceStub) {
	t.Helper()
	source := &instanceStub{i: fleet.Self{ID: "relayer-0"}}

	s := serverOf(t, FrontConfig{Mask: mask}, Config{Source: source, Fleet: &reads{db: db}, DB: db, ChainID: testChain})

	return s, source
}

func TestHealthzAsksNobody(t *testing.T) {
	t.Parallel()
	s, source := bare(t, untouchable{t})
	source.set(func(i *fleet.Self) { i.Session, i.Database, i.Node = errGone, errGone, errGone })
	r := get(t, mounted(t, FrontConfig{}, s).Handler(), "/healthz")
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.JSONEq(t, `{"status":"ok"}`, body(t, r))
}

func TestReadyzNamesWhatIsNotReady(t *testing.T) {
	t.Parallel()
	s, source := bare(t, untouchable{t})
	r := get(t, mounted(t, FrontConfig{}, s).Handler(), "/readyz")
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.JSONEq(t, `{"ready":true,"checks":{"session":{"ok":true},"database":{"ok":true},"node":{"ok":true},"storing":{"ok":true}}}`,
		body(t, r))

	for name, breaks := range map[string]func(*fleet.Self){
		"session": func(i *fleet.Self) { i.Session = errGone }, "database": func(i *fleet.Self) { i.Database = errGone },
		"node": func(i *fleet.Self) { i.Node = errGone }, "storing": func(i *fleet.Self) { i.Stuck = errGone },
	} {
		source.set(func(i *fleet.Self) { *i = fleet.Self{}; breaks(i) })
		r := get(t, mounted(t, FrontConfig{}, s).Handler(), "/readyz")
		require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
		var answer readiness
		require.NoError(t, json.Unmarshal([]byte(body(t, r)), &answer))
		require.False(t, answer.Ready)
		for other, c := range answer.Checks {
			require.Equal(t, other != name, c.OK, "%s broken, %s", name, other)
		}

		require.Contains(t, answer.Checks[name].Reason, "connection refused")
		require.NotContains(t, answer.Checks[name].Reason, secret)
	}

	// In the words of the page, with its remedy.
	full := database.Explain(&pgconn.PgError{Code: "53100", Message: "could not extend file"})
	source.set(func(i *fleet.Self) { *i = fleet.Self{Database: full} })
	var answer readiness
	require.NoError(t, json.Unmarshal([]byte(body(t, get(t, mounted(t, FrontConfig{}, s).Handler(), "/readyz"))), &answer))
	what, remedy := fleet.Advice(full)
	require.NotEmpty(t, remedy)
	require.Equal(t, check{Reason: what, Remedy: remedy}, answer.Checks["database"])
}

func TestNoAnswerShowsASecret(t *testing.T) {
	t.Parallel()
	s, source := bare(t, broken(t))
	source.set(func(i *fleet.Self) {
		i.Session, i.Database, i.Node = errGone, errGone, errGone
		i.Endpoints = []fleet.Endpoint{{Name: "rpc0", LastError: errGone.Error()}}
	})
	for _, path := range []string{"/", "/?escrow=" + addressOf(1), "/status", "/readyz", "/metrics", "/healthz"} {
		text := body(t, get(t, mounted(t, FrontConfig{}, s).Handler(), path))
		require.NotContains(t, text, secret, path)
		if path == "/" || path == "/status" {
			require.Contains(t, text, "connection refused", path)
		}
	}
}

func TestOnlyReadingMethodsAndSafeHeaders(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, broken(t))
	h := mounted(t, FrontConfig{}, s).Handler()
	for path := range spec(t).Paths {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions,
			http.MethodTrace} {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, path, nil))
			require.Equal(t, http.StatusMethodNotAllowed, rec.Code, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
			require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
		}

		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodHead, path, nil))
		require.NotEqual(t, http.StatusMethodNotAllowed, rec.Code, path)
		require.Equal(t, "nosniff", rec.Header().Get("X-Content-Type-Options"), path)
		require.Equal(t, "no-store", rec.Header().Get("Cache-Control"), path)
		require.Contains(t, rec.Header().Get("Content-Security-Policy"), "default-src 'none'", path)
	}

	r := get(t, h, "/nothing")
	require.Equal(t, http.StatusNotFound, r.StatusCode)
	require.Contains(t, body(t, r), "/openapi.yaml")
}

func TestMetricsAreTheGivenOnes(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "relayer_is_leader", Help: "Whether it leads."})
	registry.MustRegister(gauge)
	gauge.Set(1)
	s := serverOf(t, FrontConfig{},
		Config{Source: &instanceStub{}, Fleet: &reads{}, DB: broken(t), ChainID: 1, Metrics: registry})
	require.Contains(t, body(t, get(t, mounted(t, FrontConfig{}, s).Handler(), "/metrics")), "relayer_is_leader 1")
}

func TestRunReturnsNilWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for range 5 {
		s := w.serve()
		require.NoError(t, s.stop())
	}
}

func TestRunSaysWhatToDoAboutATakenPort(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	f, err := NewFront(FrontConfig{Addr: ln.Addr().String(), Chains: []int64{1}})
	require.NoError(t, err)
	require.ErrorContains(t, f.Run(t.Context()), "PORT")
}
