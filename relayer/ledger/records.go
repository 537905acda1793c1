package ledger

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// earlyFold is a fold that runs while Postgres stores the events, on the assumption that all of
// them are new.
type earlyFold struct {
	events int // their number
	done   chan struct{}
	folded folded
}

// foldEarly starts a fold; the caller must wait for it.
func foldEarly(events []contract.Event) *earlyFold {
	f := &earlyFold{events: len(events), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.folded = fold(events)
	}()

	return f
}

func (f *earlyFold) wait() folded {
	<-f.done
	return f.folded
}

// recordsAtOnce bounds the records of one statement: their columns are encoded twice, in buffers
// that double.
const recordsAtOnce = 1024

// project folds new events into records, and endings into the registry. early is a fold of the same
// events, perhaps with others. A number that exceeds its column is left out of the record and
// reported as a finding; the event's args have it.
func project(ctx context.Context, t *transaction, events []contract.Event, early *earlyFold) error {
	if len(events) == 0 {
		return nil
	}

	var f folded
	if early.events == len(events) {
		f = early.wait()
		f.stamp(events)
	} else {
		f = fold(events)
	}

	if f.oversized > 0 {
		if err := addFinding(ctx, t, OversizedValue, blockOf(&events[len(events)-1]), f.oversized); err != nil {
			return err
		}
	}

	return merge(ctx, t, f)
}

// merge writes a fold into records and the registry.
func merge(ctx context.Context, t *transaction, f folded) error {
	var late [][]byte
	for some := range slices.Chunk(f.records, recordsAtOnce) {
		rows, _ := t.Query(ctx, foldRecords, recordArgs(t, some))
		found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return fmt.Errorf("fold events into %d records: %w", len(some), err)
		}

		late = append(late, found...)
	}

	// refold starts from the first event, so that no event can be late afterwards.
	if _, err := refold(ctx, t, late); err != nil {
		return err
	}

	var endings []registry.Ending
	for i := range f.records {
		r := &f.records[i]
		switch r.status {
		case recordReleased:
			endings = append(endings, registry.Ending{Address: r.escrow, Status: registry.Released, Block: r.endedBlock})
		case recordRefunded:
			endings = append(endings, registry.Ending{Address: r.escrow, Status: registry.Refunded, Block: r.endedBlock})
		}
	}

	return registry.End(ctx, t, t.cfg.ChainID, endings)
}

// refold replaces the records of escrows by the fold of their canonical events, and returns how
// many had one. It waits for a commit that is folding into one of them, even an uncommitted new
// one, so that the events of that commit are among those it reads. Otherwise its result would
// overwrite later events.
func refold(ctx context.Context, t *transaction, escrows [][]byte) (int, error) {
	if len(escrows) == 0 {
		return 0, nil
	}

	made, err := t.Exec(ctx, holdRecords, t.cfg.ChainID, escrows)
	if err != nil {
		return 0, fmt.Errorf("hold records: %w", err)
	}

	dropped, err := t.Exec(ctx, `delete from records where chain_id = $1 and escrow = any($2)`, t.cfg.ChainID, escrows)
	if err != nil {
		return 0, fmt.Errorf("drop records: %w", err)
	}

	rows, _ := t.Query(ctx, canonicalEvents, t.cfg.ChainID, escrows)
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return 0, fmt.Errorf("read the canonical events of %d escrows: %w", len(escrows), err)
	}

	sortEvents(events)

	return int(dropped.RowsAffected() - made.RowsAffected()), merge(ctx, t, fold(events))
}

// holdRecords creates a row for each escrow without one, so that other transactions wait until this
// one ends. If another is creating one, it waits for that.
const holdRecords = `
	insert into records (chain_id, escrow, slot, status, last_type, last_index, last_block, last_tx)
	select $1, escrow, 0, 0, 0, 0, 0, '' from unnest($2::bytea[]) as escrow
	on conflict do nothing`

const canonicalEvents = `select ` + eventColumns + ` from events p where p.chain_id = $1 and p.escrow = any($2)`

// Values of records.status, in the order in which an escrow passes them.
const (
	recordCreated  int16 = 1
	recordApproved int16 = 2
	recordReleased int16 = 3
	recordRefunded int16 = 4
)

// record is the effect of some consecutive events of one escrow. Merging it into the stored record
// (foldRecords) equals folding the events one by one. It belongs to the goroutine that folds.
type record struct {
	escrow        common.Address
	status        int16 // the furthest state that these events reach; 0: unchanged
	terms         terms
	approvals     int32
	approvers     []byte // addresses, concatenated
	settlement    settlement
	deployedBlock *int64
	endedBlock    int64
	first         contract.Place
	last          contract.Event // without its arguments
}

// terms are the arguments that EscrowDeployed and EscrowCreated share; nil: absent.
type terms struct {
	payer, payee, arbiter             []byte
	amount, releaseDelay, releaseTime *string
	approvalsRequired                 *string
	oversized                         bool // one of the numbers was left out: it exceeds its column
}

// settlement is the arguments that EscrowReleased and EscrowRefunded share; nil: absent.
type settlement struct {
	amount, at *string
	oversized  bool // as of terms
}

// folded are the records of some escrows, in order of appearance.
type folded struct {
	records   []record
	of        map[common.Address]int // index of an escrow's record
	oversized int                    // records with a number that exceeds its column
}

// fold returns the records of the escrows of some events.
func fold(events []contract.Event) folded {
	f := folded{of: map[common.Address]int{}}
	for i := range events {
		e := &events[i]
		at, ok := f.of[e.Escrow]
		if !ok {
			at = len(f.records)
			f.of[e.Escrow] = at
			f.records = append(f.records, record{escrow: e.Escrow, first: e.Place()})
		}

		f.records[at].apply(e)
	}

	for i := range f.records {
		if r := &f.records[i]; r.terms.oversized || r.settlement.oversized {
			f.oversized++
		}
	}

	return f
}

// stamp copies the occurrences of events, which are known once they are stored.
func (f *folded) stamp(events []contract.Event) {
	for i := range events {
		if e := &events[i]; e.Occurrence > 0 {
			last := &f.records[f.of[e.Escrow]].last
			if logIDOf(last) == logIDOf(e) && last.BlockHash == e.BlockHash {
				last.Occurrence = e.Occurrence
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
		e.EachText(r.terms.take)
	case contract.Created:
		e.EachText(r.terms.take)
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
				r.terms.arbiter = address(value)
			}
		})
	case contract.Released:
		r.status = recordReleased
	case contract.Refunded:
		r.status = recordRefunded
	}

	if e.Ends() {
		r.endedBlock = block
		e.EachText(r.settlement.take)
	}
}

func (s *settlement) take(name, value []byte) {
	switch string(name) {
	case "amount":
		s.amount = number(value, wide, &s.oversized)
	case "timestamp":
		s.at = number(value, wide, &s.oversized)
	}
}

func (t *terms) take(name, value []byte) {
	switch string(name) {
	case "payer":
		t.payer = address(value)
	case "payee":
		t.payee = address(value)
	case "arbiter":
		t.arbiter = address(value)
	case "amount":
		t.amount = number(value, wide, &t.oversized)
	case "releaseDelay":
		t.releaseDelay = number(value, wide, &t.oversized)
	case "releaseTime":
		t.releaseTime = number(value, wide, &t.oversized)
	case "approvalsRequired":
		t.approvalsRequired = number(value, small, &t.oversized)
	}
}

// address is a column of 20 bytes; nil if a custom ABI has another type under the name.
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

// The number of digits that always fits a column of a record: numeric(78, 0), which holds every
// uint256, and smallint.
const (
	wide  = 78
	small = 4
)

// number is an integer of at most so many digits, as text, which Postgres reads; nil if text is
// none. More digits set oversized and return nil.
func number(text []byte, digits int, oversized *bool) *string {
	for i, c := range text {
		if (c < '0' || c > '9') && (c != '-' || i > 0 || len(text) == 1) {
			return nil
		}
	}

	if len(text) == 0 {
		return nil
	}

	if len(bytes.TrimLeft(text, "-0")) > digits {
		*oversized = true
		return nil
	}

	return new(string(text))
}

// foldRecords merges new events into the records: later values win, approvals add up, an ended
// escrow stays ended. It returns the escrows with records that include a later event already (a block
// that is read again may have events that a node had omitted): those must be folded from the start.
// A deployment comes first, whatever its transaction had emitted earlier.
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

func recordArgs(t *transaction, records []record) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"chain":            t.cfg.ChainID,
		"escrows":          column.Of(records, func(r *record) []byte { return r.escrow[:] }),
		"slots":            column.Of(records, func(r *record) int16 { return partition.Slot(r.escrow) }),
		"statuses":         column.Of(records, func(r *record) int16 { return max(r.status, recordCreated) }),
		"payers":           column.Of(records, func(r *record) []byte { return r.terms.payer }),
		"payees":           column.Of(records, func(r *record) []byte { return r.terms.payee }),
		"arbiters":         column.Of(records, func(r *record) []byte { return r.terms.arbiter }),
		"amounts":          column.Of(records, func(r *record) *string { return r.terms.amount }),
		"delays":           column.Of(records, func(r *record) *string { return r.terms.releaseDelay }),
		"times":            column.Of(records, func(r *record) *string { return r.terms.releaseTime }),
		"required":         column.Of(records, func(r *record) *string { return r.terms.approvalsRequired }),
		"approvals":        column.Of(records, func(r *record) int32 { return r.approvals }),
		"approvers":        column.Of(records, func(r *record) []byte { return r.approvers }),
		"settled":          column.Of(records, func(r *record) *string { return r.settlement.amount }),
		"settled_at":       column.Of(records, func(r *record) *string { return r.settlement.at }),
		"deployed":         column.Of(records, func(r *record) *int64 { return r.deployedBlock }),
		"last_txs":         column.Of(records, func(r *record) []byte { return txOf(&r.last) }),
		"last_indexes":     column.Of(records, func(r *record) int32 { return int32(r.last.LogIndex) }),
		"last_occurrences": column.Of(records, func(r *record) int16 { return r.last.Occurrence }),
		"last_types":       column.Of(records, func(r *record) int16 { return t.known.types[r.last.Name] }),
		"last_blocks":      column.Of(records, func(r *record) int64 { return blockOf(&r.last) }),
		"first_blocks":     column.Of(records, func(r *record) int64 { return int64(r.first.Block) }),
		"first_indexes":    column.Of(records, func(r *record) int32 { return int32(r.first.Index) }),
	}
}
