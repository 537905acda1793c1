package ledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

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
		f.folded = fold(events)
	}()

	return f
}

// recordsAtOnce is how many records one statement takes: their columns are encoded twice, in buffers that double.
const recordsAtOnce = 1024

// project folds events into records, and endings into the registry. ahead is a fold of the same
// events and maybe more; nil: there is none.
func (l *Ledger) project(ctx context.Context, tx pgx.Tx, events []contract.Event, ahead *folding) (err error) {
	if len(events) == 0 {
		return nil
	}

	known, err := l.names(ctx)
	if err != nil {
		return err
	}

	var f folded
	if ahead != nil && ahead.of == len(events) {
		<-ahead.done
		f = ahead.folded
		f.stamp(events)
	} else {
		f = fold(events)
	}

	var late [][]byte
	for some := range slices.Chunk(f.order, recordsAtOnce) {
		var c recordColumns
		for _, escrow := range some {
			r := f.records[escrow]
			c.add(escrow, r, known.types[r.last.Name])
		}

		rows, _ := tx.Query(ctx, foldRecords, c.named(l.cfg.ChainID))
		found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return fmt.Errorf("fold %d events into %d records: %w", len(events), len(some), err)
		}

		late = append(late, found...)
	}

	// It folds each of them from the start, so that nothing can be late for it again.
	if _, err := l.refold(ctx, tx, late); err != nil {
		return err
	}

	var endings []registry.Ending
	for _, escrow := range f.order {
		r := f.records[escrow]
		switch r.status {
		case recordReleased:
			endings = append(endings, registry.Ending{Address: escrow, Status: registry.Released, Block: r.endedBlock})
		case recordRefunded:
			endings = append(endings, registry.Ending{Address: escrow, Status: registry.Refunded, Block: r.endedBlock})
		}
	}

	return registry.End(ctx, tx, l.cfg.ChainID, endings)
}

// Values of records.status, in the order in which an escrow passes them.
const (
	recordCreated  int16 = 1
	recordApproved int16 = 2
	recordReleased int16 = 3
	recordRefunded int16 = 4
)

// record is what some consecutive events of one escrow say about it. Merging it into the stored
// record (foldRecords) equals folding the events one by one.
type record struct {
	status                            int16 // the furthest state these events reach; 0: they do not change it
	payer, payee, arbiter             []byte
	amount, releaseDelay, releaseTime *string
	approvalsRequired                 *string
	approvals                         int32
	approvers                         []byte // addresses, one behind the other
	settledAmount, settledAt          *string
	deployedBlock                     *int64
	endedBlock                        int64
	first                             place
	last                              contract.Event // without its arguments
}

// fold returns the records of the escrows that events concern.
func fold(events []contract.Event) folded {
	f := folded{records: map[common.Address]*record{}}
	for i := range events {
		e := &events[i]
		r, ok := f.records[e.Escrow]
		if !ok {
			r = &record{first: placeOf(e)}
			f.records[e.Escrow] = r
			f.order = append(f.order, e.Escrow)
		}

		r.apply(e)
	}

	return f
}

// stamp takes over the occurrences of events, which storing them has found out.
func (f *folded) stamp(events []contract.Event) {
	for i := range events {
		if e := &events[i]; e.Occurrence > 0 {
			if r := f.records[e.Escrow]; r.last.TxHash == e.TxHash && r.last.LogIndex == e.LogIndex &&
				r.last.BlockHash == e.BlockHash {
				r.last.Occurrence = e.Occurrence
			}
		}
	}
}

func (r *record) apply(e *contract.Event) {
	r.last = *e
	r.last.Args = nil
	block := int64(e.BlockNumber)
	switch e.Name {
	case contract.Deployed:
		r.deployedBlock = &block
		e.EachText(r.terms)
	case contract.Created:
		e.EachText(r.terms)
	case contract.Approved:
		r.approvals++
		r.status = max(r.status, recordApproved)
		e.EachText(func(name, value []byte) {
			if string(name) == "approver" {
				r.approvers = append(r.approvers, address(value)...)
			}
		})
	case contract.ArbiterChanged:
		e.EachText(func(name, value []byte) {
			if string(name) == "newArbiter" {
				r.arbiter = address(value)
			}
		})
	case contract.Released:
		r.status = recordReleased
	case contract.Refunded:
		r.status = recordRefunded
	}

	if e.Ends() {
		r.endedBlock = block
		e.EachText(r.settlement)
	}
}

// settlement takes one of the arguments that EscrowReleased and EscrowRefunded share.
func (r *record) settlement(name, value []byte) {
	switch string(name) {
	case "amount":
		r.settledAmount = number(value)
	case "timestamp":
		r.settledAt = number(value)
	}
}

// terms takes one of the arguments that EscrowDeployed and EscrowCreated share.
func (r *record) terms(name, value []byte) {
	switch string(name) {
	case "payer":
		r.payer = address(value)
	case "payee":
		r.payee = address(value)
	case "arbiter":
		r.arbiter = address(value)
	case "amount":
		r.amount = number(value)
	case "releaseDelay":
		r.releaseDelay = number(value)
	case "releaseTime":
		r.releaseTime = number(value)
	case "approvalsRequired":
		r.approvalsRequired = number(value)
	}
}

// address is a column of 20 bytes; nil where an ABI of somebody's making has something else under the name.
func address(text []byte) []byte {
	if len(text) != 2+2*common.AddressLength || text[0] != '0' || text[1] != 'x' {
		return nil
	}

	a := make([]byte, common.AddressLength)
	if _, err := hex.Decode(a, text[2:]); err != nil {
		return nil
	}

	return a
}

// number is an integer as text, which Postgres reads; nil where there is none.
func number(text []byte) *string {
	for i, c := range text {
		if (c < '0' || c > '9') && (c != '-' || i > 0 || len(text) == 1) {
			return nil
		}
	}

	if len(text) == 0 {
		return nil
	}

	s := string(text)

	return &s
}

// foldRecords merges what new events say into the records: later values win, approvals add up, an
// ended escrow stays ended. It returns the escrows into whose records a later event was folded before
// (a block may be read again, and then with what a node had left out): those are to be folded anew. A
// deployment comes first, whatever its transaction had emitted before.
const foldRecords = `
	with late as (
	select f.escrow
	from unnest(@escrows::bytea[], @first_blocks::bigint[], @first_indexes::integer[]) as f(escrow, block, index)
	cross join lateral (
		select 1 from records r where r.chain_id = @chain and r.escrow = f.escrow
		and (r.last_block > f.block or r.last_block = f.block and r.last_index > f.index and r.last_type <> 1) limit 1) x),
	folded as (
	insert into records as r (chain_id, escrow, slot, status, payer, payee, arbiter, amount, release_delay, release_time,
	                          approvals_required, approvals, approvers, settled_amount, settled_at, deployed_block,
	                          last_tx, last_index, last_occurrence, last_type, last_block)
	select @chain, escrow, slot, status, payer, payee, arbiter, amount, release_delay, release_time,
	       approvals_required, approvals, coalesce(approvers, ''), settled_amount, settled_at,
	       deployed_block, last_tx, last_index, last_occurrence, last_type, last_block
	from unnest(@escrows::bytea[], @slots::smallint[], @statuses::smallint[], @payers::bytea[], @payees::bytea[], @arbiters::bytea[],
	            @amounts::numeric[], @delays::numeric[], @times::numeric[], @required::smallint[], @approvals::integer[],
	            @approvers::bytea[], @settled::numeric[], @settled_at::numeric[], @deployed::bigint[], @last_txs::bytea[],
	            @last_indexes::integer[], @last_occurrences::smallint[], @last_types::smallint[], @last_blocks::bigint[])
	     as t(escrow, slot, status, payer, payee, arbiter, amount, release_delay, release_time, approvals_required, approvals,
	          approvers, settled_amount, settled_at, deployed_block, last_tx, last_index, last_occurrence, last_type, last_block)
	on conflict (chain_id, escrow) do update
	set status = case when r.status >= 3 then r.status else greatest(r.status, excluded.status) end,
	    payer = coalesce(excluded.payer, r.payer), payee = coalesce(excluded.payee, r.payee),
	    arbiter = coalesce(excluded.arbiter, r.arbiter), amount = coalesce(excluded.amount, r.amount),
	    release_delay = coalesce(excluded.release_delay, r.release_delay), release_time = coalesce(excluded.release_time, r.release_time),
	    approvals_required = coalesce(excluded.approvals_required, r.approvals_required),
	    approvals = r.approvals + excluded.approvals, approvers = r.approvers || excluded.approvers,
	    settled_amount = coalesce(excluded.settled_amount, r.settled_amount), settled_at = coalesce(excluded.settled_at, r.settled_at),
	    deployed_block = coalesce(excluded.deployed_block, r.deployed_block),
	    (last_tx, last_index, last_occurrence, last_type) = (
	        select case when later then excluded.last_tx else r.last_tx end, case when later then excluded.last_index else r.last_index end,
	               case when later then excluded.last_occurrence else r.last_occurrence end, case when later then excluded.last_type else r.last_type end
	        from (select excluded.last_block >= r.last_block as later) x),
	    last_block = greatest(excluded.last_block, r.last_block), updated_at = now())
	select escrow from late`

type recordColumns struct {
	escrows, payers, payees, arbiters, approvers, lastTxs [][]byte
	slots, statuses, lastOccurrences, lastTypes           []int16
	amounts, delays, times, required, settled, settledAt  []*string
	approvals, lastIndexes                                []int32
	deployed                                              []*int64
	lastBlocks, firstBlocks                               []int64
	firstIndexes                                          []int32
}

func (c *recordColumns) add(escrow common.Address, r *record, lastType int16) {
	c.escrows = append(c.escrows, escrow[:])
	c.slots = append(c.slots, partition.Slot(escrow))
	c.statuses = append(c.statuses, max(r.status, recordCreated))
	c.payers = append(c.payers, r.payer)
	c.payees = append(c.payees, r.payee)
	c.arbiters = append(c.arbiters, r.arbiter)
	c.amounts = append(c.amounts, r.amount)
	c.delays = append(c.delays, r.releaseDelay)
	c.times = append(c.times, r.releaseTime)
	c.required = append(c.required, r.approvalsRequired)
	c.approvals = append(c.approvals, r.approvals)
	c.approvers = append(c.approvers, r.approvers)
	c.settled = append(c.settled, r.settledAmount)
	c.settledAt = append(c.settledAt, r.settledAt)
	c.deployed = append(c.deployed, r.deployedBlock)
	c.lastTxs = append(c.lastTxs, r.last.TxHash[:])
	c.lastIndexes = append(c.lastIndexes, int32(r.last.LogIndex))
	c.lastOccurrences = append(c.lastOccurrences, r.last.Occurrence)
	c.lastTypes = append(c.lastTypes, lastType)
	c.lastBlocks = append(c.lastBlocks, int64(r.last.BlockNumber))
	c.firstBlocks = append(c.firstBlocks, int64(r.first.block))
	c.firstIndexes = append(c.firstIndexes, int32(r.first.index))
}

func (c *recordColumns) named(chainID int64) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"chain": chainID, "escrows": c.escrows, "slots": c.slots, "statuses": c.statuses, "payers": c.payers,
		"payees":   c.payees,
		"arbiters": c.arbiters, "amounts": c.amounts, "delays": c.delays, "times": c.times, "required": c.required,
		"approvals": c.approvals, "approvers": c.approvers, "settled": c.settled, "settled_at": c.settledAt,
		"deployed": c.deployed,
		"last_txs": c.lastTxs, "last_indexes": c.lastIndexes, "last_occurrences": c.lastOccurrences,
		"last_types":  c.lastTypes,
		"last_blocks": c.lastBlocks, "first_blocks": c.firstBlocks, "first_indexes": c.firstIndexes,
	}
}
