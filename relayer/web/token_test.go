package web

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// With a token everything but the probes wants it, as a bearer or as a password, and a new token in
// the file takes effect.
func TestToken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string, at time.Time) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(file, at, at))
	}
	now := time.Now()
	write("first-token-of-some-length\n", now)
	server := serverOf(t, FrontConfig{}, Config{Source: &instanceStub{}, Fleet: &reads{}, DB: untouchable{t}, ChainID: 1})
	s := mounted(t, FrontConfig{TokenFile: file, Now: func() time.Time { return now }}, server)
	h := s.Handler()
	ask := func(path string, with func(*http.Request)) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		with(r)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)

		return rec.Code
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	nothing := func(*http.Request) {}

	for _, path := range []string{"/", "/status", "/metrics", "/openapi.yaml",
		"/nowhere", "/debug/pprof/", "/debug/pprof/heap", "/readyz/", "//readyz", "/readyz/1/", "/readyz/x", "/chains/1/",
		"/chains/1/status", "/chains/1/readyz"} {
		require.Equal(t, http.StatusUnauthorized, ask(path, nothing), path)
	}

	require.Equal(t, http.StatusOK, ask("/healthz", nothing))
	require.Equal(t, http.StatusOK, ask("/readyz", nothing))
	require.Equal(t, http.StatusOK, ask("/readyz/1", nothing))
	for _, wrong := range []string{"", "first-token-of-some-lengt", "first-token-of-some-length2",
		"FIRST-TOKEN-OF-SOME-LENGTH"} {
		require.Equal(t, http.StatusUnauthorized, ask("/openapi.yaml", bearer(wrong)), wrong)
	}

	require.Equal(t, http.StatusOK, ask("/openapi.yaml", bearer("first-token-of-some-length")))
	require.Equal(t, http.StatusOK, ask("/openapi.yaml",
		func(r *http.Request) { r.SetBasicAuth("anybody", "first-token-of-some-length") }))

	require.Equal(t, http.StatusOK, ask("/debug/pprof/heap", bearer("first-token-of-some-length")))
	h = mounted(t, FrontConfig{}, server).Handler()
	require.Equal(t, http.StatusNotFound, ask("/debug/pprof/heap", nothing), "profiles exist behind a token only")
	h = s.Handler()

	// The server of commands, on a port of its own, asks for the same token.
	h = s.Guard(http.NotFoundHandler())
	require.Equal(t, http.StatusUnauthorized, ask("/commands", nothing))
	require.Equal(t, http.StatusNotFound, ask("/commands", bearer("first-token-of-some-length")))
	require.Equal(t, http.StatusNotFound, ask("/commands", func(r *http.Request) {
		r.Header.Set("Authorization", "bearer first-token-of-some-length")
	}), "a scheme is written in any case")
	h = s.Handler()

	write("second-token-of-some-length", now.Add(time.Minute))
	now = now.Add(2 * tokenCheckEvery)
	require.Equal(t, http.StatusUnauthorized, ask("/openapi.yaml", bearer("first-token-of-some-length")))
	require.Equal(t, http.StatusOK, ask("/openapi.yaml", bearer("second-token-of-some-length")))

	require.NoError(t, os.Remove(file))
	now = now.Add(2 * tokenCheckEvery)
	require.Equal(t, http.StatusOK, ask("/openapi.yaml", bearer("second-token-of-some-length")),
		"the last one stays in force")

	write("short", now)
	_, err := NewFront(FrontConfig{Chains: []int64{1}, TokenFile: file})
	require.ErrorContains(t, err, "HTTP_TOKEN_FILE")
	require.NotContains(t, err.Error(), "short")
	_, err = NewFront(FrontConfig{Chains: []int64{1}, TokenFile: "/nowhere/token"})
	require.ErrorContains(t, err, "HTTP_TOKEN_FILE")
}

// A page of another site whose name leads to this machine reads nothing; what comes from elsewhere, or has the
// token, may use any name.
func TestANameOfAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	bare, _ := bare(t, broken(t))
	server := mounted(t, FrontConfig{}, bare)
	for _, c := range []struct {
		from, host, path string
		refused          bool
	}{
		{"127.0.0.1:4000", "attacker.example", "/status", true}, {"127.0.0.1:4000", "attacker.example:8080", "/", true},
		{"[::1]:4000", "attacker.example.", "/metrics", true}, {"127.0.0.1:4000", "", "/status", true},
		{"127.0.0.1:4000", "localhost:8080", "/status", false}, {"127.0.0.1:4000", "127.0.0.1:8080", "/status", false},
		{"[::1]:4000", "[::1]:8080", "/status", false}, {"127.0.0.1:4000", "relayer.localhost", "/status", false},
		{"10.1.2.3:4000", "relayer-0.relayer.svc", "/status", false},
		{"127.0.0.1:4000", "attacker.example", "/healthz", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
		r.RemoteAddr, r.Host = c.from, c.host
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, r)
		require.Equal(t, c.refused, w.Code == http.StatusMisdirectedRequest, "%+v: %d", c, w.Code)
	}
}
