package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// ErrMoved means that the right to the slots, or the generation, differs from the caller's: nothing was changed.
var ErrMoved = errors.New("the right to the slots, or the generation of their data, has changed")

// Right is what an owner's reading and writing of the log is fenced by.
type Right struct {
	Epoch, Generation int64
}

// Commit is what a commit of the slots has stored: events of the log, in the order of their messages, and rows of the
// outbox, in seq order.
type Commit struct {
	Right      Right
	From, Next int64 // blocks of its cursor, before and after
	Log        []Pending
	Rows       []Pending
}

// Last is the last place of a block.
func Last(block int64) contract.Place {
	return contract.Place{Block: uint64(max(block, 0)), Index: math.MaxInt32}
}

// Sent returns the slots of the owner, each with the place up to which its log is sent.
func (b *Box) Sent(ctx context.Context, r Right) (map[int16]contract.Place, error) {
	sent := map[int16]contract.Place{}
	if err := inSnapshot(ctx, b.DB, func(tx pgx.Tx) error {
		if _, err := b.next(ctx, tx, r, ""); err != nil {
			return err
		}

		rows, _ := tx.Query(ctx, selectSent, b.ChainID, b.Owner)
		var slot int16
		var p contract.Place
		_, err := pgx.ForEachRow(rows, []any{&slot, &p.Block, &p.Index}, func() error { sent[slot] = p; return nil })

		return err
	}); err != nil {
		return nil, fmt.Errorf("read what is sent: %w", err)
	}

	return sent, nil
}

const mineNow = `
	select coalesce(next_block, 0) as next_block from cursors
	where chain_id = @chain and instance_id = @owner and epoch = @epoch and generation = @generation`

const selectSent = `
	select slot, greatest(sent_block, 0), case when sent_block < 0 then 0 else sent_index end
	from slot_ownership where chain_id = $1 and owner = $2`

// Page is a part of the log: whole blocks.
type Page struct {
	Events []Found // in the order of their messages
	To     int64   // the last block of the page
	Next   int64   // the next block of the owner's cursor
	More   bool    // there may be events behind the page
}

// Log reads the log behind a block: the events of slots behind the places in sent, of at most limit events that are
// stored, or of one block; fewer where their arguments are long. ErrMoved: the right is over.
func (b *Box) Log(ctx context.Context, r Right, sent map[int16]contract.Place, from int64, limit int) (p Page,
	err error) {
	args := b.args(r)
	args["from"], args["limit"] = from, limit
	blocks, indexes := bySlot(sent, math.MaxInt64) // nothing of those that are not of this owner
	err = inSnapshot(ctx, b.DB, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, pageEnd, args).Scan(&p.To, &p.Next, &p.More); err != nil {
			return err
		}

		if p.To <= from {
			p.To = from
			return nil
		}

		rows, _ := tx.Query(ctx, readLog, pgx.StrictNamedArgs{"chain": b.ChainID, "from": from, "to": p.To, "blocks": blocks,
			"indexes": indexes})
		if p.Events, err = collect(rows, scan, true); err == nil && Full(p.Events) {
			last := int64(p.Events[len(p.Events)-1].Event.BlockNumber)
			p.More, p.To = p.More || last < p.To, last
		}

		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return p, ErrMoved
	}

	if err != nil {
		return p, fmt.Errorf("read the log behind block %d: %w", from, err)
	}

	return p, nil
}

// pageEnd ends a page before the block in which the limit is exceeded, or with it, if it is the first; the last page
// with what is committed, or stored by those who have had slots before.
const pageEnd = `
	with own as (` + mineNow + `),
	next as (
		select block_number from events where chain_id = @chain and block_number > @from
		order by block_number, log_index limit @limit::bigint + 1),
	page as (
		select case when count(*) > @limit then greatest(max(block_number) - 1, min(block_number)) end as last,
			max(block_number) as newest
		from next)
	select coalesce(last, greatest(newest, next_block - 1)), next_block, last is not null
	from own, page`

// readLog reads whole blocks: an escrow's deployment comes before what its transaction had emitted earlier.
const readLog = `
	select 0::bigint, 0::bigint, p.slot, 0::smallint, p.escrow, (select name from event_types t where t.id = p.type),
		p.block_number, p.log_index, p.occurrence, p.block_time, p.block_hash, p.tx_hash, p.emitter, p.args,
		coalesce(lone.factory, ` + registry.FactoryOf + `),
		p.processed_at < (select doubt from slot_ownership s where s.chain_id = @chain and s.slot = p.slot)
	from events p
	cross join (select case when count(*) = 1 then (array_agg(address))[1] end as factory
		from factories where chain_id = @chain) lone
	where p.chain_id = @chain and p.block_number > @from and p.block_number <= @to and p.told and not p.apart
	  and (p.block_number, p.log_index) > ((@blocks::bigint[])[p.slot + 1], (@indexes::integer[])[p.slot + 1])
	order by p.block_number, p.type <> 1, p.log_index`

// Settle notes up to which place the log of slots is sent. It returns the slots that are noted: others are just
// changing hands. ErrMoved: the right is over.
//
// It waits for no commit: a commit leaves the key of the cursor's row alone. Claims and rollbacks, which take the right
// away, lock that row, and the slots before it.
func (b *Box) Settle(ctx context.Context, r Right, sent map[int16]contract.Place) (noted []int16, err error) {
	slots := slices.Collect(maps.Keys(sent))
	blocks, indexes := bySlot(sent, 0)
	args := pgx.StrictNamedArgs{"chain": b.ChainID, "blocks": blocks, "indexes": indexes}
	err = pgx.BeginFunc(ctx, b.DB, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lockFree, b.ChainID, b.Owner, slots)
		if noted, err = pgx.CollectRows(rows, pgx.RowTo[int16]); err != nil {
			return err
		}

		if _, err := b.next(ctx, tx, r, "for key share"); err != nil {
			return err
		}

		args["noted"] = noted
		_, err = tx.Exec(ctx, raiseSent, args)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("note what is sent of %d slots: %w", len(slots), err)
	}

	return noted, nil
}

// Mark is an event of the log, told from whatever else may come into its place.
type Mark struct {
	Place      contract.Place
	Block      common.Hash
	Occurrence int16
}

// MarkOf is the mark of an event.
func MarkOf(e *contract.Event) Mark { return Mark{e.Place(), e.BlockHash, e.Occurrence} }

// SetApart takes events that are sent out of the log, those that are still there. That is right whoever owns their
// slots, and under any generation: like an acknowledged row, they need no message any more.
func (b *Box) SetApart(ctx context.Context, events []Mark) error {
	if len(events) == 0 {
		return nil
	}

	err := pgx.BeginFunc(ctx, b.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, oneByOne); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, `
			update events e set apart = true
			from unnest($2::bigint[], $3::integer[], $4::bytea[], $5::smallint[]) as t(block, index, hash, occurrence)
			where e.chain_id = $1 and e.block_number = t.block and e.log_index = t.index and e.block_hash = t.hash
			  and e.occurrence = t.occurrence`, b.ChainID,
			column.Of(events, func(m *Mark) int64 { return int64(m.Place.Block) }),
			column.Of(events, func(m *Mark) int32 { return int32(m.Place.Index) }),
			column.Of(events, func(m *Mark) []byte { return m.Block[:] }),
			column.Of(events, func(m *Mark) int16 { return m.Occurrence }))

		return err
	})
	if err != nil {
		return fmt.Errorf("note %d events as sent: %w", len(events), err)
	}

	return nil
}

const (
	// lockFree skips slots that another instance is just taking, or rolls back.
	lockFree = `
	select slot from slot_ownership where chain_id = $1 and owner = $2 and slot = any($3::smallint[])
	for no key update skip locked`
	// oneByOne has the planner look rows up by their key: without statistics it would join with all events.
	oneByOne = inOrder + `, set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`
	// raiseSent joins nothing: whatever the statistics are, it takes one look at each slot.
	raiseSent = `
	update slot_ownership set sent_block = (@blocks::bigint[])[slot + 1], sent_index = (@indexes::integer[])[slot + 1]
	where chain_id = @chain and slot = any(@noted::smallint[])`
)

// bySlot returns places as columns with an element for each slot of the chain, and a block for those without.
func bySlot(sent map[int16]contract.Place, without int64) (blocks []int64, indexes []int32) {
	blocks, indexes = slices.Repeat([]int64{without}, partition.Slots), make([]int32, partition.Slots)
	for slot, place := range sent {
		blocks[slot], indexes[slot] = int64(place.Block), int32(min(place.Index, math.MaxInt32))
	}

	return blocks, indexes
}

// Move gives rows to the events of escrows on topics that are in the log behind a place of each, ahead of all other
// rows. What of them is sent was set apart before. It may be repeated. ErrMoved: the right is over, and nothing was
// changed.
func (b *Box) Move(ctx context.Context, r Right, of []Lane, behind []contract.Place) error {
	args := pgx.StrictNamedArgs{"chain": b.ChainID, "default": contract.DefaultEvents,
		"escrows": column.Of(of, func(l *Lane) []byte { return l.Escrow[:] }),
		"topics":  column.Of(of, func(l *Lane) int32 { return int32(l.Topic) }),
		"blocks":  column.Of(behind, func(p *contract.Place) int64 { return int64(p.Block) }),
		"indexes": column.Of(behind, func(p *contract.Place) int32 { return int32(min(p.Index, math.MaxInt32)) })}

	// In two statements: one that has waited for a commit does not see what that has stored.
	err := pgx.BeginFunc(ctx, b.DB, func(tx pgx.Tx) error {
		if _, err := b.next(ctx, tx, r, "for update"); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, moveEscrows, args)

		return err
	})
	if err != nil {
		return fmt.Errorf("give rows to the events of %d escrows: %w", len(of), err)
	}

	return nil
}

const moveEscrows = `
	with moved as (
		update events e set apart = true
		from unnest(@escrows::bytea[], @topics::integer[], @blocks::bigint[], @indexes::integer[])
			as l(escrow, topic, block, index)
		where e.chain_id = @chain and e.escrow = l.escrow and e.told and not e.apart
		  and (e.block_number, e.log_index) > (l.block, l.index)
		  and l.topic = case when (select name from event_types t where t.id = e.type) = any(@default) then 0 else 1 end
		returning e.*)
	insert into outbox (chain_id, seq, block_number, log_index, slot, escrow, event_type, created_at)
	select chain_id, (select coalesce(min(seq), 1099511627776) from outbox where chain_id = @chain)
	       - row_number() over (order by block_number desc, (type <> 1) desc, log_index desc),
	       block_number, log_index, slot, escrow, (select name from event_types t where t.id = type), processed_at
	from moved`

// next returns the next block of the owner's cursor; lock may exclude its commits, or its loss. ErrMoved: the right is
// over.
func (b *Box) next(ctx context.Context, tx pgx.Tx, r Right, lock string) (next int64, err error) {
	err = tx.QueryRow(ctx, mineNow+` `+lock, b.args(r)).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrMoved
	}

	return next, err
}

func (b *Box) args(r Right) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{"chain": b.ChainID, "owner": b.Owner, "epoch": r.Epoch, "generation": r.Generation}
}
