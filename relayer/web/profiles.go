package web

import (
	"net/http"
	"net/http/pprof"
)

// addProfiles serves Go's profiles (https://pkg.go.dev/net/http/pprof) below /debug/pprof/. They
// show memory and cost processor time, so they exist only behind the token of HTTP_TOKEN_FILE. A
// profile or trace must take less than writeTimeout: seconds=20, for example.
func addProfiles(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, readOnly(serve))
	}
}
