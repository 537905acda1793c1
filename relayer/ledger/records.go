package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// folding is a fold that is made while Postgres stores the events, on the guess that all of them are new.
type folding struct {
	of   int
	done chan struct{}
	folded
	err error
}

// folded are records by escrow, and the escrows in order of appearance.
type folded struct {
	records map[common.Address]*record
	order   []common.Address
}

// foldAhead starts a fold; whoever starts it waits for done.
func foldAhead(events []contract.Event) *folding {
	f := &folding{of: len(events), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.folded, f.err = fold(events)
	}()
	return f
}

// project folds events into escrow_records, and endings into the registry. ahead is a fold of the same events and maybe more; nil: there is none.
func (l *Ledger) project(ctx context.Context, tx pgx.Tx, events []contract.Event, ahead *folding) (err error) {
	if len(events) == 0 {
		return nil
	}
	var f folded
	if ahead != nil && ahead.of == len(events) {
		<-ahead.done
		f, err = ahead.folded, ahead.err
	} else {
		f, err = fold(events)
	}
	if err != nil {
		return err
	}
	var c recordColumns
	var endings []registry.Ending
	for _, escrow := range f.order {
		r := f.records[escrow]
		c.add(escrow, r)
		if r.status == "released" || r.status == "refunded" {
			endings = append(endings, registry.Ending{Address: escrow, Status: r.status, Block: r.endedBlock})
		}
	}
	if _, err := tx.Exec(ctx, foldRecords, c.named(l.cfg.ChainID)); err != nil {
		return fmt.Errorf("fold %d events into %d records: %w", len(events), len(f.order), err)
	}
	return registry.End(ctx, tx, l.cfg.ChainID, endings)
}

// record is what some consecutive events of one escrow say about it. Merging it into the stored record (foldRecords) equals
// folding the events one by one.
type record struct {
	status                            string // the furthest state these events reach; empty: they do not change it
	payer, payee, arbiter             *string
	amount, releaseDelay, releaseTime *string
	approvalsRequired                 *string
	approvals                         int32
	approvers                         []string
	settledAmount, settledAt          *string
	deployedBlock                     *int64
	endedBlock                        int64
	lastID, lastType                  string
	lastBlock                         int64
}

// fold returns the records of the escrows that events concern.
func fold(events []contract.Event) (folded, error) {
	f := folded{records: map[common.Address]*record{}}
	for i := range events {
		e := &events[i]
		r, ok := f.records[e.Escrow]
		if !ok {
			r = &record{}
			f.records[e.Escrow] = r
			f.order = append(f.order, e.Escrow)
		}
		if err := r.apply(e); err != nil {
			return folded{}, err
		}
	}
	return f, nil
}

func (r *record) apply(e *contract.Event) error {
	var args map[string]any // ABI arguments are strings, apart from booleans and what a configured ABI adds
	if err := json.Unmarshal(e.Args, &args); err != nil {
		return fmt.Errorf("read the arguments of %s %s: %w", e.Name, e.ID(), err)
	}
	set := func(field **string, name string, lower bool) {
		if v, ok := args[name].(string); ok {
			if lower {
				v = strings.ToLower(v)
			}
			*field = &v
		}
	}
	block := int64(e.BlockNumber)
	r.lastID, r.lastType, r.lastBlock = e.ID(), e.Name, block
	switch e.Name {
	case Deployed:
		set(&r.payer, "payer", true)
		set(&r.payee, "payee", true)
		set(&r.arbiter, "arbiter", true)
		set(&r.amount, "amount", false)
		set(&r.releaseDelay, "releaseDelay", false)
		set(&r.approvalsRequired, "approvalsRequired", false)
		r.deployedBlock = &block
	case "EscrowCreated":
		set(&r.payer, "payer", true)
		set(&r.payee, "payee", true)
		set(&r.arbiter, "arbiter", true)
		set(&r.amount, "amount", false)
		set(&r.releaseTime, "releaseTime", false)
		set(&r.approvalsRequired, "approvalsRequired", false)
	case "Approved":
		r.approvals++
		if v, ok := args["approver"].(string); ok {
			r.approvers = append(r.approvers, strings.ToLower(v))
		}
		if r.status == "" {
			r.status = "approved"
		}
	case "ArbiterChanged":
		set(&r.arbiter, "newArbiter", true)
	case "EscrowReleased", "EscrowRefunded":
		r.status, r.endedBlock = "released", block
		if e.Name == "EscrowRefunded" {
			r.status = "refunded"
		}
		set(&r.settledAmount, "amount", false)
		set(&r.settledAt, "timestamp", false)
	}
	return nil
}

// foldRecords merges what new events say into the records: later values win, approvals add up, an ended escrow stays ended.
const foldRecords = `
	insert into escrow_records as r (chain_id, escrow, slot, status, payer, payee, arbiter, amount, release_delay, release_time,
	                                 approvals_required, approvals, approvers, settled_amount, settled_at, deployed_block,
	                                 last_event_id, last_event_type, last_event_block)
	select @chain, escrow, slot, coalesce(nullif(status, ''), 'created'), payer, payee, arbiter, amount, release_delay, release_time,
	       approvals_required, approvals, coalesce(string_to_array(nullif(approvers, ''), ','), '{}'), settled_amount, settled_at,
	       deployed_block, last_id, last_type, last_block
	from unnest(@escrows::text[], @slots::smallint[], @statuses::text[], @payers::text[], @payees::text[], @arbiters::text[],
	            @amounts::numeric[], @delays::numeric[], @times::numeric[], @required::smallint[], @approvals::integer[],
	            @approvers::text[], @settled::numeric[], @settled_at::numeric[], @deployed::bigint[], @last_ids::text[],
	            @last_types::text[], @last_blocks::bigint[])
	     as t(escrow, slot, status, payer, payee, arbiter, amount, release_delay, release_time, approvals_required, approvals,
	          approvers, settled_amount, settled_at, deployed_block, last_id, last_type, last_block)
	on conflict (chain_id, escrow) do update
	set status = case when r.status in ('released', 'refunded') then r.status
	                  when excluded.status = 'created' then r.status else excluded.status end,
	    payer = coalesce(excluded.payer, r.payer), payee = coalesce(excluded.payee, r.payee),
	    arbiter = coalesce(excluded.arbiter, r.arbiter), amount = coalesce(excluded.amount, r.amount),
	    release_delay = coalesce(excluded.release_delay, r.release_delay), release_time = coalesce(excluded.release_time, r.release_time),
	    approvals_required = coalesce(excluded.approvals_required, r.approvals_required),
	    approvals = r.approvals + excluded.approvals, approvers = r.approvers || excluded.approvers,
	    settled_amount = coalesce(excluded.settled_amount, r.settled_amount), settled_at = coalesce(excluded.settled_at, r.settled_at),
	    deployed_block = coalesce(excluded.deployed_block, r.deployed_block),
	    last_event_id = case when excluded.last_event_block >= r.last_event_block then excluded.last_event_id else r.last_event_id end,
	    last_event_type = case when excluded.last_event_block >= r.last_event_block then excluded.last_event_type else r.last_event_type end,
	    last_event_block = greatest(excluded.last_event_block, r.last_event_block), updated_at = now()`

type recordColumns struct {
	escrows, statuses, approvers, lastIDs, lastTypes           []string
	slots                                                      []int16
	payers, payees, arbiters, amounts, delays, times, required []*string
	approvals                                                  []int32
	settled, settledAt                                         []*string
	deployed                                                   []*int64
	lastBlocks                                                 []int64
}

func (c *recordColumns) add(escrow common.Address, r *record) {
	c.escrows = append(c.escrows, registry.Text(escrow))
	c.slots = append(c.slots, partition.Slot(escrow))
	c.statuses = append(c.statuses, r.status)
	c.payers = append(c.payers, r.payer)
	c.payees = append(c.payees, r.payee)
	c.arbiters = append(c.arbiters, r.arbiter)
	c.amounts = append(c.amounts, r.amount)
	c.delays = append(c.delays, r.releaseDelay)
	c.times = append(c.times, r.releaseTime)
	c.required = append(c.required, r.approvalsRequired)
	c.approvals = append(c.approvals, r.approvals)
	c.approvers = append(c.approvers, strings.Join(r.approvers, ","))
	c.settled = append(c.settled, r.settledAmount)
	c.settledAt = append(c.settledAt, r.settledAt)
	c.deployed = append(c.deployed, r.deployedBlock)
	c.lastIDs = append(c.lastIDs, r.lastID)
	c.lastTypes = append(c.lastTypes, r.lastType)
	c.lastBlocks = append(c.lastBlocks, r.lastBlock)
}

func (c *recordColumns) named(chainID int64) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"chain": chainID, "escrows": c.escrows, "slots": c.slots, "statuses": c.statuses, "payers": c.payers, "payees": c.payees,
		"arbiters": c.arbiters, "amounts": c.amounts, "delays": c.delays, "times": c.times, "required": c.required,
		"approvals": c.approvals, "approvers": c.approvers, "settled": c.settled, "settled_at": c.settledAt, "deployed": c.deployed,
		"last_ids": c.lastIDs, "last_types": c.lastTypes, "last_blocks": c.lastBlocks,
	}
}

// parties returns what the registry keeps of an EscrowDeployed: payer and payee in lower case, and the amount in wei; empty where the
// event does not say.
func parties(e *contract.Event) (payer, payee, amount string) {
	var r record
	if err := r.apply(e); err != nil {
		return "", "", ""
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return text(r.payer), text(r.payee), text(r.amount)
}
