package web

import (
	"net/http"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// status is the answer of /status.
type status struct {
	Instance statusInstance `json:"instance"`
	Fleet    *fleet.Fleet   `json:"fleet"` // null until it was read once
	// FleetReadAt and FleetError tell an old fleet from a fresh one: while the database is gone, the last one stays.
	FleetReadAt *time.Time `json:"fleet_read_at"`
	FleetError  string     `json:"fleet_error,omitempty"`
}

type statusInstance struct {
	ID            string           `json:"id"`
	Version       string           `json:"version"`
	Commit        string           `json:"commit"`
	Committed     *time.Time       `json:"committed_at"` // null: unknown
	Started       time.Time        `json:"started_at"`
	Partition     int              `json:"partition"`
	Total         int              `json:"total_partitions"`
	Strategy      string           `json:"strategy"`
	Leader        bool             `json:"leader"`
	Ready         bool             `json:"ready"`
	Checks        map[string]check `json:"checks"`
	Head          int64            `json:"head_block"`
	Target        int64            `json:"target_block"`
	Final         int64            `json:"final_block"`
	HeadTime      *time.Time       `json:"head_time"`
	Cursor        int64            `json:"cursor"`
	CursorTime    *time.Time       `json:"cursor_time"`
	LagBlocks     int64            `json:"lag_blocks"`
	LagSeconds    float64          `json:"lag_seconds"`
	FactoryCursor int64            `json:"factory_cursor"`
	Escrows       int              `json:"escrows"`
	Slots         int              `json:"slots"`
	Adopted       int              `json:"adopted"`
	Publisher     statusPublisher  `json:"publisher"`
	Endpoints     []statusEndpoint `json:"endpoints"`
}

type statusPublisher struct {
	InFlight    int `json:"in_flight"`
	BlockedKeys int `json:"blocked_keys"`
	// LastError and LastErrorAt are of the last request that failed; later ones may have succeeded.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at"`
}

type statusEndpoint struct {
	Name           string  `json:"name"`
	Host           string  `json:"host"`
	Up             bool    `json:"up"`
	Head           int64   `json:"head_block"`
	LatencySeconds float64 `json:"latency_seconds"`
	LastError      string  `json:"last_error,omitempty"`
}

// serveStatus always answers 200: /readyz judges.
func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	n := s.board.latest(r.Context())
	i := s.cfg.Source.Instance()
	answer := status{Instance: s.statusOf(&i), FleetReadAt: moment(n.at)}
	if !n.at.IsZero() {
		answer.Fleet = &n.fleet
	}

	if n.err != nil {
		answer.FleetError = s.cfg.Mask(n.err.Error())
	}

	writeJSON(w, http.StatusOK, answer)
}

func (s *Server) statusOf(i *Instance) statusInstance {
	endpoints := make([]statusEndpoint, 0, len(i.Endpoints))
	for _, e := range i.Endpoints {
		endpoints = append(endpoints, statusEndpoint{
			Name: e.Name, Host: e.Host, Up: e.Up, Head: e.Head, LatencySeconds: e.Latency.Seconds(),
			LastError: s.cfg.Mask(e.LastError),
		})
	}

	return statusInstance{
		ID: i.ID, Version: i.Build.Version, Commit: i.Build.Commit, Committed: parsed(i.Build.Date), Started: i.Started.UTC(),
		Partition: i.Partition.Number, Total: i.Partition.Total,
		Strategy: string(i.Partition.Strategy), Leader: i.Leader, Ready: i.ready(),
		Checks: s.checks(i), Head: i.Head, Target: i.Target, Final: i.Final, HeadTime: moment(i.HeadTime), Cursor: i.Cursor,
		CursorTime: moment(i.CursorTime),
		LagBlocks:  i.Lag(), LagSeconds: i.lagTime().Seconds(), FactoryCursor: i.FactoryCursor,
		Escrows: i.Escrows, Slots: i.Slots, Adopted: i.Adopted,
		Publisher: s.publisherOf(i), Endpoints: endpoints,
	}
}

func (s *Server) publisherOf(i *Instance) statusPublisher {
	p := statusPublisher{InFlight: i.InFlight, BlockedKeys: i.BlockedKeys, LastErrorAt: moment(i.PublishErrorAt)}
	if i.PublishError != nil {
		p.LastError = s.cfg.Mask(i.PublishError.Error())
	}

	return p
}

// parsed is null in JSON for what is no time.
func parsed(text string) *time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil
	}

	return moment(t)
}

// moment is null in JSON for an unknown time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}

	t = t.UTC()

	return &t
}
