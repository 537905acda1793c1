package ledger

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Verifiable is the next range that may be read a second time.
type Verifiable struct {
	From int64 // next block to verify
	To   int64 // newest block that every cursor and every late escrow has passed

	// Again is the block up to which no reading knew all event layouts: what is missing there is no node's fault.
	Again int64

	Newest Block // that is stored; its hash is zero if unknown

	generation int64
}

const moveVerified = `
	update leadership set verified_block = $4
	where chain_id = $1 and instance_id = $2 and epoch = $3 and verified_block = $5 and generation = $6`

// repair is the transaction of Ledger.Repair.
func repair(ctx context.Context, t *transaction, epoch int64, v Verifiable, verified int64, missing,
	wrong []contract.Event, found []Finding) error {
	tag, err := t.Exec(ctx, moveVerified, t.cfg.ChainID, t.cfg.InstanceID, epoch, verified, v.From-1, v.generation)
	if err != nil {
		return err
	}

	if tag.RowsAffected() == 0 {
		return ErrMoved
	}

	missed := 0
	for i := range missing {
		if blockOf(&missing[i]) > v.Again {
			missed++
		}
	}

	if missed > 0 {
		found = append(found, Finding{Kind: MissingEvent, Block: verified, Events: missed})
	}

	for _, f := range found {
		if err := addFinding(ctx, t, f); err != nil {
			return err
		}
	}

	if len(missing)+len(wrong) == 0 {
		return nil
	}

	if err := giveUp(ctx, t, wrong); err != nil {
		return err
	}

	stored, err := supply(ctx, t, missing)
	if err != nil {
		return err
	}

	if err := registry.EndAgain(ctx, t, t.cfg.ChainID, escrowsOf(stored, wrong)); err != nil {
		return err
	}

	return t.notify(ctx, registry.Channel)
}

// supply stores missing events, and returns those that changed something. A deployment is an
// ordinary discovery, which the owner of the slot announces; the publication of the others is
// requested.
func supply(ctx context.Context, t *transaction, missing []contract.Event) ([]contract.Event, error) {
	var deployed, others []contract.Event
	for _, e := range missing {
		if e.Name == contract.Deployed {
			deployed = append(deployed, e)
		} else {
			others = append(others, e)
		}
	}

	how := storing{orphans: true}
	fresh, err := store(ctx, t, deployed, how)
	if err != nil {
		return nil, err
	}

	if _, err := registry.Record(ctx, t, t.cfg.ChainID, discoveries(fresh)); err != nil {
		return nil, err
	}

	stored, err := store(ctx, t, others, how)
	if err != nil {
		return nil, err
	}

	return append(fresh, stored...), request(ctx, t, stored)
}

// giveUp removes stored events that differ from the chain. They may be on their way to Pub/Sub.
func giveUp(ctx context.Context, t *transaction, wrong []contract.Event) error {
	if len(wrong) == 0 {
		return nil
	}

	for _, statement := range []string{lockCursors, newGeneration} {
		if _, err := t.Exec(ctx, statement, t.cfg.ChainID); err != nil {
			return fmt.Errorf("block commits to remove %d wrong events: %w", len(wrong), err)
		}
	}

	blocks, indexes := placesOf(wrong)
	if _, err := t.Exec(ctx, giveUpEvents, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "blocks": blocks,
		"indexes": indexes, "state": lost, "retract_after": 0}); err != nil {
		return fmt.Errorf("remove %d wrong events: %w", len(wrong), err)
	}

	for _, block := range blocks {
		if err := t.reopen(ctx, block, block); err != nil {
			return err
		}
	}

	return nil
}

// giveUpEvents is orphanEvents for single events, which are lost at once.
const giveUpEvents = `
	with gone as (
		delete from events e using unnest(@blocks::bigint[], @indexes::integer[]) as t(block, index)
		where e.chain_id = @chain and e.block_number = t.block and e.log_index = t.index
		returning e.*),` + keepOrphans + `,
	late as (
		delete from late_escrows l using gone g where g.type = 1 and l.chain_id = @chain and l.address = g.escrow)
	update escrows r set status = 4, ended_block = null, updated_at = now()
	from gone g where g.type = 1 and r.chain_id = @chain and r.address = g.escrow`

// escrowsOf returns the distinct escrows of events.
func escrowsOf(lists ...[]contract.Event) (escrows [][]byte) {
	seen := map[common.Address]bool{}
	for _, events := range lists {
		for i := range events {
			if e := &events[i]; !seen[e.Escrow] {
				seen[e.Escrow] = true
				escrows = append(escrows, e.Escrow[:])
			}
		}
	}

	return escrows
}
