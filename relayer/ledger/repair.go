package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
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

	if len(missing)+len(wrong) > 0 {
		if err := mend(ctx, t, missing, wrong); err != nil {
			return err
		}
	}

	invented, err := forget(ctx, t, verified)
	if err != nil {
		return err
	}

	if len(invented) > 0 {
		found = append(found, Finding{Kind: ExtraEvent, Block: verified, Events: len(invented)})
	}

	if err := takeOthers(ctx, t, append(invented, escrowsOf(wrong)...), wrong); err != nil {
		return err
	}

	for _, f := range found {
		if err := addFinding(ctx, t, f); err != nil {
			return err
		}
	}

	return nil
}

// mend makes the stored events what the chain's are.
func mend(ctx context.Context, t *transaction, missing, wrong []contract.Event) error {
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

// forget takes escrows out of the registry whose EscrowDeployed the leader alone has seen: neither the owner nor the
// second reading has.
func forget(ctx context.Context, t *transaction, verified int64) (escrows [][]byte, err error) {
	rows, _ := t.Query(ctx, `
		with gone as (
			delete from late_escrows l
			where l.chain_id = $1 and l.deployed_block <= $2 and l.monitored >= l.deployed_block and not `+registry.Announced+`
			returning address)
		delete from escrows e using gone g where e.chain_id = $1 and e.address = g.address returning e.address`,
		t.cfg.ChainID, verified)
	if escrows, err = pgx.CollectRows(rows, pgx.RowTo[[]byte]); err != nil {
		return nil, fmt.Errorf("forget escrows that are not on the chain: %w", err)
	}

	if len(escrows) > 0 { // the owners have left their other announcements aside
		err = voidCommits(ctx, t)
	}

	return escrows, err
}

// takeOthers takes back, with wrong events, what consumers cannot keep without them: all events of escrows that are not
// registered any more, and those under the id of a wrong one, which is never published again. What the chain has of it
// comes back by the second reading: another announcement, and behind that what its escrow emitted; the same event under
// its next id.
func takeOthers(ctx context.Context, t *transaction, escrows [][]byte, wrong []contract.Event) error {
	if len(escrows) == 0 {
		return nil
	}

	defer patience(t.Conn().PgConn().Conn(), rollbackTimeout)()
	if err := unhurried(ctx, t); err != nil {
		return err
	}

	for len(escrows) > 0 {
		rows, _ := t.Query(ctx, others, t.cfg.ChainID, escrows, column.Of(wrong, txOf))
		var err error
		if wrong, err = pgx.CollectRows(rows, scanEvent); err != nil {
			return fmt.Errorf("look for what else is wrong of %d escrows: %w", len(escrows), err)
		}

		if escrows = escrowsOf(wrong); len(wrong) > 0 {
			if err := mend(ctx, t, nil, wrong); err != nil {
				return err
			}
		}
	}

	return nil
}

const others = `
	with others as (
		select p.*, p.type = 1 as again from events p where p.chain_id = $1 and p.escrow = any($2) and not exists (
			select from escrows e where e.chain_id = p.chain_id and e.address = p.escrow and e.status <> 4)
		union
		select p.*, true from events p where p.chain_id = $1 and p.tx_hash = any($3) and exists (
			select from orphaned_events o where o.chain_id = p.chain_id and o.tx_hash = p.tx_hash
				and o.log_index = p.log_index and o.occurrence = p.occurrence and o.state >= 2)),
	back as (
		update leadership
		set verified_block = least(verified_block, (select min(block_number) - 1 from others where again))
		where chain_id = $1)
	select ` + eventColumns + ` from others p`

// supply stores missing events, in an order in which each EscrowDeployed comes first, registers the escrows that they
// deploy, and requests their publication. It returns those that changed something.
func supply(ctx context.Context, t *transaction, missing []contract.Event) ([]contract.Event, error) {
	deployed := deployments(missing)
	again, err := announcedAgain(ctx, t, deployed)
	if err != nil {
		return nil, err
	}

	others := some(missing, func(e *contract.Event) bool { return e.Name != contract.Deployed })
	fresh, err := store(ctx, t, append(deployed, others...), storing{orphans: true})
	if err != nil {
		return nil, err
	}

	first := func(e *contract.Event) bool { return !again[e.Place()] }
	if _, err := registry.Record(ctx, t, t.cfg.ChainID, registry.Past, discoveries(fresh, first)); err != nil {
		return nil, err
	}

	// What waited for this is caught up from its deployment on, behind what is requested.
	if _, err := t.Exec(ctx, fromDeployment, t.cfg.ChainID, column.Of(deployed, escrowOf)); err != nil {
		return nil, fmt.Errorf("catch up %d escrows: %w", len(deployed), err)
	}

	return fresh, request(ctx, t, some(fresh, first))
}

const fromDeployment = `update late_escrows set monitored = deployed_block - 1 where chain_id = $1 and address = any($2)`

// voidCommits waits for running commits of the owners, makes those fail that were prepared before, and tells them.
func voidCommits(ctx context.Context, t *transaction) error {
	for _, statement := range []string{lockCursors, newGeneration} {
		if _, err := t.Exec(ctx, statement, t.cfg.ChainID); err != nil {
			return fmt.Errorf("void the commits that were prepared before: %w", err)
		}
	}

	return t.notify(ctx, registry.Channel)
}

// giveUp removes stored events that differ from the chain. They may be on their way to Pub/Sub.
func giveUp(ctx context.Context, t *transaction, wrong []contract.Event) error {
	if len(wrong) == 0 {
		return nil
	}

	if err := voidCommits(ctx, t); err != nil {
		return err
	}

	blocks, indexes := placesOf(wrong)
	if _, err := t.Exec(ctx, giveUpEvents, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "blocks": blocks,
		"indexes": indexes, "state": lost, "retract_after": 0, "token": t.token}); err != nil {
		return fmt.Errorf("remove %d wrong events: %w", len(wrong), err)
	}

	slices.Sort(blocks)
	for _, block := range slices.Compact(blocks) { // a block may have 100,000 of them
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
		delete from late_escrows l using gone g
		where g.type = 1 and l.chain_id = @chain and l.address = g.escrow and l.deployed_block = g.block_number
			and l.log_index = g.log_index)
	update escrows r set status = 4, ended_block = null, updated_at = now()
	from gone g where g.type = 1 and r.chain_id = @chain and r.address = g.escrow
		and r.discovered_block_number = g.block_number and r.log_index = g.log_index`

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
