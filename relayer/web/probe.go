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

func (s *Server) readiness() readiness {
	i := s.cfg.Source.Instance()
	return readiness{Ready: i.Ready(), Checks: s.checks(&i)}
}

func writeReadiness(w http.ResponseWriter, r readiness) { writeJSON(w, readyStatus(r.Ready), r) }

// readyStatus is the status of an answer of /readyz.
func readyStatus(ready bool) int {
	if ready {
		return http.StatusOK
	}

	return http.StatusServiceUnavailable
}

func (s *Server) checks(i *fleet.Self) map[string]check {
	all := map[string]check{}
	for name, err := range i.Checks() {
		if err == nil {
			all[name] = check{OK: true}
			continue
		}

		reason, remedy := fleet.Advice(err)
		all[name] = check{Reason: s.cfg.Mask(reason), Remedy: s.cfg.Mask(remedy)}
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
