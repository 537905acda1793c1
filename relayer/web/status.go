package web

import (
	"net/http"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// status is the answer of /status.
type status struct {
	Instance statusInstance `json:"instance"`
	Fleet    *fleet.Fleet   `json:"fleet"` // null until first read
	// FleetReadAt and FleetError show the age of the fleet: while the database is gone, the last
	// one stays.
	FleetReadAt time.Time `json:"fleet_read_at,omitzero"`
	FleetError  string    `json:"fleet_error,omitempty"`
}

// statusInstance is a fleet.Self, and what follows from it.
type statusInstance struct {
	*fleet.Self
	Version   string           `json:"version"`
	Ready     bool             `json:"ready"`
	Checks    map[string]check `json:"checks"`
	LagBlocks int64            `json:"lag_blocks"`
}

// serveStatus always answers 200: /readyz judges.
func (s *Server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.status())
}

func (s *Server) status() status {
	n, i := s.cfg.Fleet.Look(), s.cfg.Source.Instance()
	i.Endpoints = append([]fleet.Endpoint{}, i.Endpoints...)
	for k := range i.Endpoints {
		i.Endpoints[k].LastError = s.front.Mask(i.Endpoints[k].LastError)
	}

	answer := status{FleetReadAt: n.At.UTC(), Instance: statusInstance{Self: &i, Version: i.Build.String(),
		Ready: i.Ready(), Checks: s.checks(&i), LagBlocks: i.Lag()}}
	if !n.At.IsZero() {
		answer.Fleet = &n.Fleet
	}

	if n.Err != nil {
		answer.FleetError = s.front.Mask(n.Err.Error())
	}

	return answer
}
