package web

import (
	"encoding/json"
	"net/http"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// serveHealth reports that the process runs, independently of everything else: on failure a
// platform restarts the process, and a restart repairs neither the database nor a node.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready  bool             `json:"ready"`
	Checks map[string]check `json:"checks"` // of fleet.Self; or process, without a running relayer
}

type check struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"` // the first step, as on the page
}

// allReady is the answer of /readyz with several chains.
type allReady struct {
	Ready  bool                `json:"ready"` // all are
	Chains map[int64]readiness `json:"chains"`
}

func (f *Front) serveReady(w http.ResponseWriter, _ *http.Request) {
	if !f.several() {
		c := f.condition(f.mounts[0])
		writeReadiness(w, c.Ready, c)
		return
	}

	all := allReady{Ready: true, Chains: map[int64]readiness{}}
	for _, m := range f.mounts {
		c := f.condition(m)
		all.Chains[m.id], all.Ready = c, all.Ready && c.Ready
	}

	writeReadiness(w, all.Ready, all)
}

func (f *Front) serveReadyOf(w http.ResponseWriter, r *http.Request) {
	m := f.named(r)
	if m == nil {
		writeProblem(w, http.StatusNotFound, "this process does not follow such a chain")
		return
	}

	c := f.condition(m)
	writeReadiness(w, c.Ready, c)
}

func writeReadiness(w http.ResponseWriter, ready bool, answer any) {
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}

	writeJSON(w, status, answer)
}

// condition is the readiness of a chain.
func (f *Front) condition(m *mount) readiness {
	s, ended := m.get()
	switch {
	case ended != nil:
		return readiness{Checks: map[string]check{"process": {Reason: f.cfg.Mask(ended.Error())}}}
	case s == nil:
		return readiness{Checks: map[string]check{"process": {Reason: "starting"}}}
	}

	i := s.cfg.Source.Instance()

	return readiness{Ready: i.Ready(), Checks: s.checks(&i)}
}

func (s *Server) checks(i *fleet.Self) map[string]check {
	all := map[string]check{}
	for name, err := range i.Checks() {
		if err == nil {
			all[name] = check{OK: true}
			continue
		}

		reason, remedy := fleet.Advice(err)
		all[name] = check{Reason: s.front.Mask(reason), Remedy: s.front.Mask(remedy)}
	}

	return all
}

// writeJSON writes an answer. A client that hangs up gets none, which is fine.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	writeBody(w, status, v)
}

func writeBody(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ") // people read it too
	_ = enc.Encode(v)
}
