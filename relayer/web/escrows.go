package web

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// timelineLimit bounds the events in the answer about one escrow; the table processed_events has the rest.
const timelineLimit = 100

// escrow is an escrow of the registry, with its record once its events are stored. Amounts are wei, in decimal.
type escrow struct {
	Address         string    `json:"address"`
	Slot            int16     `json:"slot"`
	Status          string    `json:"status"` // active, released, refunded or orphaned
	DiscoveredAt    time.Time `json:"discovered_at"`
	DiscoveredBlock int64     `json:"discovered_block_number"`
	EventID         string    `json:"event_id"` // of the EscrowDeployed that announced it
	Announced       bool      `json:"announced"`
	CaughtUp        bool      `json:"caught_up"`
	LastMonitored   int64     `json:"last_monitored_block"` // while not caught up
	EndedBlock      *int64    `json:"ended_block"`
	Payer           *string   `json:"payer"`
	Payee           *string   `json:"payee"`
	Amount          *string   `json:"amount"`
	Record          *record   `json:"record" db:"-"`
}

// record is the state of an escrow: a fold of its canonical events.
type record struct {
	Status            string    `json:"status"` // created, approved, released or refunded
	Arbiter           *string   `json:"arbiter"`
	ReleaseDelay      *string   `json:"release_delay"` // seconds
	ReleaseTime       *string   `json:"release_time"`  // unix seconds
	ApprovalsRequired *int16    `json:"approvals_required"`
	Approvals         int32     `json:"approvals"`
	Approvers         []string  `json:"approvers"`
	SettledAmount     *string   `json:"settled_amount"`
	SettledAt         *string   `json:"settled_at"` // unix seconds
	DeployedBlock     *int64    `json:"deployed_block"`
	LastEventID       string    `json:"last_event_id"`
	LastEventType     string    `json:"last_event_type"`
	LastEventBlock    int64     `json:"last_event_block"`
	UpdatedAt         time.Time `json:"updated_at"`
}

// escrowDetail is the answer about one escrow.
type escrowDetail struct {
	escrow
	Owner  *owner  `json:"owner"` // of its slot; null if the slot is free, or the fleet could not be read
	Events []event `json:"events"`
	More   bool    `json:"more_events"` // than those
}

// owner is the owner of a slot.
type owner struct {
	Instance string    `json:"instance"`
	Served   bool      `json:"served"`  // it is alive
	Adopted  bool      `json:"adopted"` // it does not prefer the slot
	Since    time.Time `json:"since"`
}

// selectEscrow has the columns of an escrow and of its record, in their order. Without a record, the columns that every
// record has are empty. The limit has the record folded for this escrow alone, whatever the planner expects.
const selectEscrow = `
	select e.address, e.slot, e.status, e.discovered_at, e.discovered_block_number, e.event_id, e.announced, e.caught_up,
	       e.last_monitored_block, e.ended_block, r.payer, r.payee, r.amount::text,
	       coalesce(r.status, ''), r.arbiter, r.release_delay::text, r.release_time::text, r.approvals_required,
	       coalesce(r.approvals, 0), r.approvers, r.settled_amount::text, r.settled_at::text, r.deployed_block,
	       coalesce(r.last_event_id, ''), coalesce(r.last_event_type, ''), coalesce(r.last_event_block, 0),
	       coalesce(r.updated_at, e.discovered_at)
	from escrow_registry e left join lateral (
		select * from escrow_records r where r.chain_id = e.chain_id and r.escrow_key = e.address_key limit 1) r on true
	where e.chain_id = $1 and e.address_key = bytes($2)`

func scanEscrow(row pgx.CollectableRow) (escrow, error) {
	both, err := pgx.RowToStructByPos[struct {
		escrow `json:"-"`
		record `json:"-"`
	}](row)
	e, r := both.escrow, both.record
	e.DiscoveredAt, r.UpdatedAt = e.DiscoveredAt.UTC(), r.UpdatedAt.UTC()
	if r.Status != "" {
		e.Record = &r
	}

	return e, err
}

// getEscrow answers /escrows/{address}.
func (a *api) getEscrow(r *http.Request) (any, error) {
	raw := r.PathValue("address")
	address, ok := normalize(raw)
	if !ok {
		return nil, bad("address", raw, notAnAddress)
	}

	return a.detail(r, address)
}

// detail reads one escrow; a problem with status 404 if it is unknown.
func (a *api) detail(r *http.Request, address string) (d escrowDetail, err error) {
	rows, _ := a.cfg.DB.Query(r.Context(), selectEscrow, a.cfg.ChainID, address)
	d.escrow, err = pgx.CollectExactlyOneRow(rows, scanEscrow)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, problem{Status: http.StatusNotFound, Parameter: "address", Detail: fmt.Sprintf(
			"%s is not an escrow of chain %d that this fleet knows: "+
				"its deployment may not be final yet, or lie before START_BLOCK",
			address, a.cfg.ChainID)}
	}

	if err != nil {
		return d, fmt.Errorf("read escrow %s: %w", address, err)
	}

	rows, _ = a.cfg.DB.Query(r.Context(), selectTimeline,
		pgx.StrictNamedArgs{"chain": a.cfg.ChainID, "escrow": address, "limit": timelineLimit + 1})
	if d.Events, err = pgx.CollectRows(rows, scanEvent); err != nil {
		return d, fmt.Errorf("read the events of escrow %s: %w", address, err)
	}

	if d.More = len(d.Events) > timelineLimit; d.More {
		d.Events = d.Events[:timelineLimit]
	}

	f := a.board.latest(r.Context()).fleet
	d.Owner = ownerOf(&f, d.Slot)

	return d, nil
}

func ownerOf(f *fleet.Fleet, slot int16) *owner {
	if int(slot) >= len(f.Slots.Each) || f.Slots.Each[slot].Owner == "" {
		return nil
	}

	s := f.Slots.Each[slot]

	return &owner{Instance: s.Owner, Served: s.Served, Adopted: s.Adopted, Since: s.Since}
}
