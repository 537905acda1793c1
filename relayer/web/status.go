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
	FleetReadAt *time.Time `json:"fleet_read_at"`
	FleetError  string     `json:"fleet_error,omitempty"`
}

// statusInstance is a fleet.Self, with other units for types that JSON lacks.
type statusInstance struct {
	*fleet.Self
	Version    string           `json:"version"`
	Started    time.Time        `json:"started_at"`
	Partition  int              `json:"partition"`
	Total      int              `json:"total_partitions"`
	Strategy   string           `json:"strategy"`
	Ready      bool             `json:"ready"`
	Checks     map[string]check `json:"checks"`
	HeadTime   *time.Time       `json:"head_time"`
	CursorTime *time.Time       `json:"cursor_time"`
	LagBlocks  int64            `json:"lag_blocks"`
	LagSeconds float64          `json:"lag_seconds"`
	Publisher  statusPublisher  `json:"publisher"`
	Endpoints  []statusEndpoint `json:"endpoints"`
}

type statusPublisher struct {
	InFlight    int `json:"in_flight"`
	BlockedKeys int `json:"blocked_keys"`
	// LastError and LastErrorAt are of the last failed request; later ones may have succeeded.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at"`
}

type statusEndpoint struct {
	fleet.Endpoint
	LatencySeconds float64 `json:"latency_seconds"`
}

// serveStatus always answers 200: /readyz judges.
func (s *Server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.status())
}

func (s *Server) status() status {
	n := s.cfg.Fleet.Look()
	i := s.cfg.Source.Instance()
	answer := status{Instance: s.instance(&i), FleetReadAt: moment(n.At)}
	if !n.At.IsZero() {
		answer.Fleet = &n.Fleet
	}

	if n.Err != nil {
		answer.FleetError = s.cfg.Mask(n.Err.Error())
	}

	return answer
}

func (s *Server) instance(i *fleet.Self) statusInstance {
	endpoints := make([]statusEndpoint, 0, len(i.Endpoints))
	for _, e := range i.Endpoints {
		e.LastError = s.cfg.Mask(e.LastError)
		endpoints = append(endpoints, statusEndpoint{e, e.Latency.Seconds()})
	}

	return statusInstance{
		Self: i, Version: i.Build.String(),
		Started: i.Started.UTC(), Partition: i.Partition.Number, Total: i.Partition.Total,
		Strategy: string(i.Partition.Strategy), Ready: i.Ready(), Checks: s.checks(i),
		HeadTime: moment(i.HeadTime), CursorTime: moment(i.CursorTime),
		LagBlocks: i.Lag(), LagSeconds: i.LagTime().Seconds(), Publisher: s.publisherOf(i), Endpoints: endpoints,
	}
}

func (s *Server) publisherOf(i *fleet.Self) statusPublisher {
	p := statusPublisher{InFlight: i.InFlight, BlockedKeys: i.BlockedKeys, LastErrorAt: moment(i.PublishErrorAt)}
	if i.PublishError != nil {
		p.LastError = s.cfg.Mask(i.PublishError.Error())
	}

	return p
}

// moment is null in JSON for an unknown time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}

	t = t.UTC()

	return &t
}
