package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

const (
	// timelineLimit bounds the events that are shown of one escrow; the table processed_events has the rest.
	timelineLimit = 100
	// queries bounds the look-ups that use the database at once: people must not take the connections that commits need.
	queries = 3
)

// queryTimeout bounds one look-up. Tests wait longer.
var queryTimeout = 5 * time.Second

// escrow is a row of the registry, with the record of the escrow once its events are stored. Amounts are wei, in
// decimal.
type escrow struct {
	Address         string
	Slot            int16
	Status          string // active, released, refunded or orphaned; of a record created, approved, released or refunded
	DiscoveredAt    time.Time
	DiscoveredBlock int64
	CaughtUp        bool
	LastMonitored   int64 // while not caught up
	EndedBlock      *int64

	Payer, Payee, Arbiter *string
	Amount, Settled       *string
	SettledAt             *string // unix seconds
	ReleaseTime           *string // the same
	Required, Approvals   *int32
}

// selectEscrow has the columns of an escrow, in their order. The limit has the record folded for this escrow alone,
// whatever the planner expects.
const selectEscrow = `
	select e.address, e.slot, coalesce(r.status, e.status), e.discovered_at, e.discovered_block_number, e.caught_up,
	       e.last_monitored_block, e.ended_block, r.payer, r.payee, r.arbiter, r.amount::text, r.settled_amount::text,
	       r.settled_at::text, r.release_time::text, r.approvals_required::int, r.approvals
	from escrow_registry e left join lateral (
		select * from escrow_records r where r.chain_id = e.chain_id and r.escrow_key = e.address_key limit 1) r on true
	where e.chain_id = $1 and e.address_key = bytes($2)`

var (
	errUnknown = errors.New("no such escrow")
	errBusy    = errors.New("too many look-ups at once")
)

// search looks an escrow up, and returns the HTTP status of the page with the result.
func (s *Server) search(ctx context.Context, query string) (*escrowView, int) {
	if !isAddress(query) {
		return &escrowView{Query: query, Problem: "Not an address: it must be 0x and 40 hexadecimal digits."},
			http.StatusBadRequest
	}

	address := strings.ToLower(query)
	e, events, err := s.lookUp(ctx, address)
	switch {
	case err == nil:
		return s.page.escrow(e, events, s.cfg.Fleet.Look().Fleet.Slots.Each), http.StatusOK
	case errors.Is(err, errUnknown):
		return &escrowView{Query: query, Problem: fmt.Sprintf("%s is not an escrow of chain %d that this fleet knows: its "+
			"deployment may not be final yet, or lie before START_BLOCK.", address, s.cfg.ChainID)}, http.StatusNotFound
	case errors.Is(err, errBusy):
		return &escrowView{Query: query, Problem: "Too many look-ups at once: try again."}, http.StatusServiceUnavailable
	}

	s.front.Log.WarnContext(ctx, "escrow not looked up", slog.String("escrow", address),
		slog.String("err", s.front.Mask(err.Error())))

	return &escrowView{Query: query, Problem: "The database does not answer: try again."}, http.StatusServiceUnavailable
}

// lookUp reads an escrow and its first events, one more than are shown, when its turn comes.
func (s *Server) lookUp(ctx context.Context, address string) (e escrow, events []fleet.Event, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	select {
	case s.querying <- struct{}{}:
		defer func() { <-s.querying }()
	case <-ctx.Done():
		return e, nil, errBusy
	}

	rows, _ := s.cfg.DB.Query(ctx, selectEscrow, s.cfg.ChainID, address)
	if e, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[escrow]); errors.Is(err, pgx.ErrNoRows) {
		return e, nil, errUnknown
	} else if err != nil {
		return e, nil, fmt.Errorf("read escrow %s: %w", address, err)
	}

	events, err = fleet.Timeline(ctx, s.cfg.DB, s.cfg.ChainID, address, timelineLimit+1)

	return e, events, err
}

// isAddress reports whether a text is an address, with its 0x.
func isAddress(text string) bool {
	return common.IsHexAddress(text) && len(text) == len("0x")+2*common.AddressLength
}
