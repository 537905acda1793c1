package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// SlotCommit is what an owner stores for a range of blocks. From.Next == To.Next stores events
// without moving the cursor, which is how late escrows are caught up.
type SlotCommit struct {
	Epoch    int64
	From, To Position
	// Inside are blocks of the range, below its last one, whose hashes the caller has read: where the
	// range was put together from several readings, the last block of each.
	Inside []Block
	// a block inside the range that was remembered (BranchError) and that the caller has found
	// canonical
	Checked  Block
	Time     uint64              // of block To.Next-1, unix seconds
	Announce []registry.Late     // their EscrowDeployed goes into the outbox, before all else
	Progress []registry.Progress // of late escrows
	Events   []contract.Event    // of escrows in the owner's slots, in (block, log index) order
}

// FactoryCommit is what the leader stores for a range of blocks.
type FactoryCommit struct {
	Epoch    int64
	From, To Position
	Inside   []Block          // as of SlotCommit
	Checked  Block            // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// commitSlots is the transaction of CommitSlots.
func commitSlots(ctx context.Context, t *transaction, c SlotCommit) error {
	early := foldEarly(c.Events)
	defer early.wait()
	past, err := advance(ctx, t, advanceSlots, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time})
	if err != nil {
		return err
	}

	if err := announce(ctx, t, c.Announce); err != nil {
		return err
	}

	settle := func() error { return retract(ctx, t, c.To.Next) }
	fresh, err := store(ctx, t, c.Events, storing{queue: true, orphans: past.orphans, settle: settle})
	if err != nil {
		return err
	}

	if err := project(ctx, t, fresh, early); err != nil {
		return err
	}

	if err := registry.Advance(ctx, t, t.cfg.ChainID, c.Progress); err != nil || !past.open {
		return err
	}

	return settle()
}

// commitFactory is the transaction of CommitFactory.
func commitFactory(ctx context.Context, t *transaction, c FactoryCommit) error {
	early := foldEarly(c.Events)
	defer early.wait()
	past, err := advance(ctx, t, advanceFactory, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, 0})
	if err != nil {
		return err
	}

	fresh, err := store(ctx, t, c.Events, storing{orphans: past.orphans})
	if err != nil {
		return err
	}

	if err := project(ctx, t, fresh, early); err != nil {
		return err
	}

	if err := registry.Record(ctx, t, t.cfg.ChainID, discoveries(fresh, t.result.revived)); err != nil {
		return err
	}

	return t.notify(ctx, registry.Channel)
}

// discoveries are what the registry keeps of some EscrowDeployed. Those that reappeared were announced before.
func discoveries(deployed []contract.Event, revived map[contract.Place]bool) []registry.Discovery {
	found := make([]registry.Discovery, len(deployed))
	for i := range deployed {
		e := &deployed[i]
		found[i] = registry.Discovery{
			Address: e.Escrow, Slot: partition.Slot(e.Escrow), Block: int64(e.BlockNumber), LogIndex: int32(e.LogIndex),
			TxHash: e.TxHash, Occurrence: e.Occurrence, Announced: revived[e.Place()],
		}
	}

	return found
}

// announce puts the EscrowDeployed of escrows that are admitted into the outbox, unless it went there before.
func announce(ctx context.Context, t *transaction, late []registry.Late) error {
	if !t.cfg.Publishes(contract.Deployed) {
		return nil
	}

	var blocks []int64
	var indexes []int32
	for _, e := range late {
		if !e.Announced {
			blocks, indexes = append(blocks, e.Block), append(indexes, e.LogIndex)
		}
	}

	if len(blocks) == 0 {
		return nil
	}

	rows, _ := t.Query(ctx, announced, t.cfg.ChainID, blocks, indexes)
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return fmt.Errorf("announce %d escrows: %w", len(blocks), err)
	}

	if len(events) != len(blocks) {
		return fmt.Errorf("announce %d escrows: %d of their %s events are stored: the registry and processed_events disagree; run `escrow-relayer audit`",
			len(blocks), len(events), contract.Deployed)
	}

	sortEvents(events)

	return enqueue(ctx, t, events, func(*contract.Event) bool { return true })
}

const announced = `
	select ` + eventColumns + `
	from unnest($2::bigint[], $3::integer[]) as t(block, index)
	join events p on p.chain_id = $1 and p.block_number = t.block and p.log_index = t.index`
