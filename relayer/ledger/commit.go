package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// SlotCommit is what an owner stores for a range of blocks. From.Next == To.Next stores events
// under an unmoved cursor, which is how late escrows are caught up.
type SlotCommit struct {
	Epoch    int64
	From, To Position
	// Inside are blocks of the range, below its last one, with hashes that the caller has read: if the
	// range was assembled from several readings, the last block of each.
	Inside []Block
	// Checked is a remembered block inside the range (BranchError) that the caller has verified to
	// be canonical.
	Checked  Block
	Time     uint64              // of block To.Next-1, unix seconds
	Progress []registry.Progress // of late escrows
	Late     []common.Address    // escrows deployed in the range that become late: not all of their events are read
	// Events of escrows in the owner's slots, in the order in which they are published: that of the chain, but an
	// escrow's EscrowDeployed comes first, whatever its transaction had emitted earlier. The escrows that are deployed
	// are registered.
	Events []contract.Event
}

// FactoryCommit is what the leader stores for a range of blocks: the escrows that the owners of their slots have passed
// are registered, as late.
type FactoryCommit struct {
	Epoch    int64
	From, To Position
	Inside   []Block          // as of SlotCommit
	Checked  Block            // as of SlotCommit
	Time     uint64           // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// commitSlots is the transaction of CommitSlots.
func commitSlots(ctx context.Context, t *transaction, c SlotCommit) error {
	var past past
	if err := advance(ctx, t, advanceSlots, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time},
		&past.orphans, &past.open, &past.requests, &past.behind); err != nil {
		return err
	}

	if past.requests {
		if err := serve(ctx, t); err != nil {
			return err
		}
	}

	fresh, err := discover(ctx, t, c, past)
	if err != nil {
		return err
	}

	if err := registry.End(ctx, t, t.cfg.ChainID, endings(fresh)); err != nil {
		return err
	}

	if err := registry.Advance(ctx, t, t.cfg.ChainID, c.Progress); err != nil {
		return err
	}

	if t.result.Open = past.open || past.requests; !past.open {
		return nil
	}

	return retract(ctx, t, c.To.Next)
}

// commitFactory is the transaction of CommitFactory.
func commitFactory(ctx context.Context, t *transaction, c FactoryCommit) error {
	var epoch int64
	if err := advance(ctx, t, advanceFactory, step{c.Epoch, c.From, c.To, c.Inside, c.Checked, c.Time},
		&epoch); err != nil {
		return err
	}

	return report(ctx, t, registry.Leader, c.Events)
}

// PastCommit is what the leader stores for a range of the past of a factory that was added later.
type PastCommit struct {
	Epoch    int64
	Factory  common.Address
	From, To Position         // their generation is that of the factory watch
	Checked  Block            // as of SlotCommit
	Events   []contract.Event // EscrowDeployed of the factory, in order
}

// commitPast is the transaction of CommitPast. Like every writer it locks leadership before factories.
func commitPast(ctx context.Context, t *transaction, c PastCommit) error {
	var p past
	err := t.QueryRow(ctx, holdFactory, pgx.StrictNamedArgs{"chain": t.cfg.ChainID, "me": t.cfg.InstanceID,
		"epoch": c.Epoch, "generation": c.From.Generation}).Scan(&p.orphans, &p.open, &p.requests)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrMoved
	}

	if err != nil {
		return fmt.Errorf("hold the cursor of the factory watch: %w", err)
	}

	var done bool
	err = t.QueryRow(ctx, advancePast, t.cfg.ChainID, c.Factory[:], c.From.Next, c.To.Next).Scan(&done)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrMoved
	}

	if err != nil {
		return fmt.Errorf("advance the past of factory %s: %w", c.Factory, err)
	}

	if err := remember(ctx, t, step{epoch: c.Epoch, from: c.From, to: c.To, checked: c.Checked}); err != nil {
		return err
	}

	if done {
		if _, err := t.Exec(ctx, verifyPast, t.cfg.ChainID, c.Factory[:]); err != nil {
			return fmt.Errorf("let the past of factory %s be read again: %w", c.Factory, err)
		}
	}

	again, err := announcedAgain(ctx, t, deployments(c.Events))
	if err != nil {
		return err
	}

	// No owner reads these: they are stored here, and not published.
	fresh, err := store(ctx, t, some(c.Events, func(e *contract.Event) bool { return again[e.Place()] }),
		storing{orphans: p.orphans})
	if err != nil {
		return err
	}

	if err := noteAgain(ctx, t, fresh, again); err != nil {
		return err
	}

	return report(ctx, t, registry.Past, c.Events)
}

const (
	holdFactory = `
	select ` + left + `
	from leadership where chain_id = @chain and instance_id = @me and epoch = @epoch and generation = @generation for share`

	advancePast = `
	update factories
	set past_block = case when $4::bigint < until_block then $4 end, until_block = case when $4 < until_block then until_block end
	where chain_id = $1 and address = $2 and past_block = $3
	returning past_block is null`

	// The second reading has passed these blocks without the factory, or is just reading them.
	verifyPast = `
	update leadership l set verified_block = least(l.verified_block, f.start_block - 1), generation = l.generation + 1
	from factories f where l.chain_id = $1 and f.chain_id = $1 and f.address = $2`
)

// discover stores the events of an owner's commit, and registers the escrows that they deploy. It returns the
// events that changed something.
func discover(ctx context.Context, t *transaction, c SlotCommit, past past) (fresh []contract.Event, err error) {
	deployed := deployments(c.Events)
	again, err := announcedAgain(ctx, t, deployed)
	if err != nil {
		return nil, err
	}

	apart, err := exceptions(ctx, t, &c, past)
	if err != nil {
		return nil, err
	}

	asked := map[common.Address]bool{}
	if past.requests {
		if err := lookFor(ctx, t, "requests", c.Events, asked); err != nil {
			return nil, err
		}
	}

	first := func(e *contract.Event) bool { return !again[e.Place()] }
	fresh, err = store(ctx, t, c.Events, storing{orphans: past.orphans, apart: apart,
		publishes: func(e *contract.Event) bool {
			return t.cfg.Publishes(e.Name) && first(e) && !asked[e.Escrow]
		}})
	if err != nil {
		return nil, err
	}

	// Their turn comes behind what is requested of their escrow.
	behind := some(fresh, func(e *contract.Event) bool { return asked[e.Escrow] && first(e) })
	if err := request(ctx, t, behind); err != nil {
		return nil, err
	}

	if err := noteAgain(ctx, t, fresh, again); err != nil {
		return nil, err
	}

	if _, err := registry.Record(ctx, t, t.cfg.ChainID, registry.Owner, discoveries(fresh, first)); err != nil {
		return nil, err
	}

	if c.To.Next > c.From.Next { // else they are late, and admitted when they are caught up
		// The leader may have registered them as late before the owner, if the cursor had been moved back.
		if err := registry.Advance(ctx, t, t.cfg.ChainID, admitted(deployed, first)); err != nil {
			return nil, err
		}
	}

	return fresh, registry.Postpone(ctx, t, t.cfg.ChainID, c.Late)
}

// exceptions tells which events of a commit are not of the log. They are those of escrows that become late; that have
// rows in the outbox, behind which theirs come; or that have events in this commit before its range, or in a place that
// counts as sent, since the cursor was lowered behind it and the first reading had missed them.
func exceptions(ctx context.Context, t *transaction, c *SlotCommit, past past) (func(*contract.Event) bool, error) {
	if len(c.Events) == 0 {
		return nil, nil
	}

	waiting := map[common.Address]bool{}
	for _, escrow := range c.Late {
		waiting[escrow] = true
	}

	// In a statement of its own: one that has waited for the cursor does not see what it waited for.
	var some, lost bool
	if err := t.QueryRow(ctx, `select exists (select from outbox where chain_id = $1), max(id) < $2 from event_types`,
		t.cfg.ChainID, t.known.last).Scan(&some, &lost); err != nil {
		return nil, fmt.Errorf("look for messages that wait: %w", err)
	}

	if lost { // as after a failover; the caller tries again with those that are there
		return nil, errors.New("the database has lost the number of an event's name")
	}

	if some {
		if err := lookFor(ctx, t, "outbox", c.Events, waiting); err != nil {
			return nil, err
		}
	}

	sent := map[int16]contract.Place{}
	if past.behind {
		rows, _ := t.Query(ctx, `select slot, sent_block, sent_index from slot_ownership
			where chain_id = $1 and owner = $2 and sent_block >= $3`, t.cfg.ChainID, t.cfg.InstanceID, c.From.Next)
		var slot int16
		var p contract.Place
		if _, err := pgx.ForEachRow(rows, []any{&slot, &p.Block, &p.Index},
			func() error { sent[slot] = p; return nil }); err != nil {
			return nil, fmt.Errorf("read what is sent: %w", err)
		}
	}

	for i := range c.Events {
		e := &c.Events[i]
		if to, lowered := sent[slotOf(e)]; blockOf(e) < c.From.Next || lowered && e.Place().Compare(to) <= 0 {
			waiting[e.Escrow] = true
		}
	}

	return func(e *contract.Event) bool { return waiting[e.Escrow] }, nil
}

// lookFor adds those escrows of events that have rows in a table.
func lookFor(ctx context.Context, t *transaction, table string, events []contract.Event,
	found map[common.Address]bool) error {
	rows, _ := t.Query(ctx, `select distinct escrow from `+table+` where chain_id = $1 and escrow = any($2)`, t.cfg.ChainID,
		column.Of(events, escrowOf))
	var escrow common.Address
	if _, err := pgx.ForEachRow(rows, []any{&escrow}, func() error { found[escrow] = true; return nil }); err != nil {
		return fmt.Errorf("look for messages that wait in %s: %w", table, err)
	}

	return nil
}

// report registers the deployments that the leader has read, where owners have passed them or will not read them.
func report(ctx context.Context, t *transaction, by registry.Writer, events []contract.Event) error {
	all := func(*contract.Event) bool { return true }
	late, err := registry.Record(ctx, t, t.cfg.ChainID, by, discoveries(events, all))
	if err != nil || late == 0 {
		return err
	}

	return t.notify(ctx, registry.Channel)
}

// deployments are the EscrowDeployed among events.
func deployments(events []contract.Event) []contract.Event {
	return some(events, func(e *contract.Event) bool { return e.Name == contract.Deployed })
}

// announcedAgain are the places of deployments whose escrow is registered by another EscrowDeployed, or by an
// earlier one of these.
func announcedAgain(ctx context.Context, t *transaction, deployed []contract.Event) (map[contract.Place]bool,
	error) {
	if len(deployed) == 0 {
		return nil, nil
	}

	known, err := registrations(ctx, t, t.cfg.ChainID, deployed)
	if err != nil {
		return nil, err
	}

	again := map[contract.Place]bool{}
	for i := range deployed {
		e := &deployed[i]
		if r, there := known[e.Escrow]; !there {
			known[e.Escrow] = Registration{At: e.Place()}
		} else if r.At != e.Place() {
			again[e.Place()] = true
		}
	}

	return again, nil
}

// noteAgain records that factories have announced registered escrows, in events that were just stored.
func noteAgain(ctx context.Context, t *transaction, fresh []contract.Event, again map[contract.Place]bool) error {
	found := Finding{Kind: AnnouncedAgain}
	for i := range fresh {
		if again[fresh[i].Place()] {
			found.Events++
			found.Block = blockOf(&fresh[i])
		}
	}

	if found.Events == 0 {
		return nil
	}

	return addFinding(ctx, t, found)
}

// discoveries are the registry's entries for those EscrowDeployed among events.
func discoveries(events []contract.Event, those func(*contract.Event) bool) (found []registry.Discovery) {
	for i := range events {
		if e := &events[i]; e.Name == contract.Deployed && those(e) {
			found = append(found, registry.Discovery{
				Address: e.Escrow, Slot: partition.Slot(e.Escrow), Block: int64(e.BlockNumber), LogIndex: int32(e.LogIndex),
				TxHash: e.TxHash, Occurrence: e.Occurrence, Factory: e.Factory,
			})
		}
	}

	return found
}

// admitted says that the cursor covers those escrows from their deployment on.
func admitted(deployed []contract.Event, those func(*contract.Event) bool) (progress []registry.Progress) {
	for i := range deployed {
		if e := &deployed[i]; those(e) {
			progress = append(progress, registry.Progress{Address: e.Escrow, CaughtUp: true})
		}
	}

	return progress
}

// endings are the registry's entries for the releases and refunds among events in the order of the
// chain: the last one of each escrow.
func endings(events []contract.Event) (ends []registry.Ending) {
	at := map[common.Address]int{}
	for i := range events {
		e := &events[i]
		if !e.Ends() {
			continue
		}

		end := registry.Ending{Address: e.Escrow, Status: registry.Released, Block: int64(e.BlockNumber)}
		if e.Name == contract.Refunded {
			end.Status = registry.Refunded
		}

		if n, again := at[e.Escrow]; again {
			ends[n] = end
		} else {
			at[e.Escrow] = len(ends)
			ends = append(ends, end)
		}
	}

	return ends
}

// advanceSlots moves the cursor of an instance if its epoch and position still hold; it locks the
// row until the commit, so a claim waits for the commit and sees it.
const advanceSlots = `
	update cursors
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time), updated_at = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation
	returning ` + left + `,
		exists (select from slot_ownership where chain_id = @chain and owner = @me and sent_block >= @from)`

// advanceFactory does the same for the factory watch.
const advanceFactory = `
	update leadership
	set next_block = @to, block_hash = @hash, block_time = coalesce(to_timestamp(nullif(@time::bigint, 0)), block_time),
	    last_heartbeat = now()
	where chain_id = @chain and instance_id = @me and epoch = @epoch and next_block = @from
		and block_hash is not distinct from @was
	  and generation = @generation
	returning epoch`

// left reports whether the chain has orphaned events, whether some of them are open, and whether
// there are requests.
const left = `exists (select from orphaned_events where chain_id = @chain),
	exists (select from orphaned_events where chain_id = @chain and state <= 2),
	exists (select from requests where chain_id = @chain)`

// step is how a commit moves its cursor.
type step struct {
	epoch    int64
	from, to Position
	inside   []Block
	checked  Block
	time     uint64
}

// past is the state of a chain that a commit handles in addition to its blocks.
type past struct {
	orphans  bool // there are orphaned events: a reorganisation was deeper than the chain's finality
	open     bool // some of them may still reappear, or wait for their retraction
	requests bool // there are requests
	behind   bool // the cursor was lowered: some slot's events are sent beyond it
}

// latestTime is the last second that a timestamptz holds, at the end of the year 294276.
const latestTime = 9_224_318_015_999

// advance moves a cursor by one of the statements above, and reads what it returns. ErrMoved: it differs from where the
// step begins.
func advance(ctx context.Context, t *transaction, statement string, s step, returned ...any) error {
	if s.time > latestTime {
		s.time = 0 // unknown: it exceeds a timestamptz
	}

	err := t.QueryRow(ctx, statement, pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "me": t.cfg.InstanceID, "epoch": s.epoch, "from": s.from.Next,
		"was": s.from.hashColumn(), "generation": s.from.Generation, "to": s.to.Next, "hash": s.to.hashColumn(),
		"time": int64(s.time),
	}).Scan(returned...)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrMoved
	case err != nil:
		return fmt.Errorf("advance the cursor: %w", err)
	case s.to.Next == s.from.Next || s.to.Hash == (common.Hash{}):
		return nil
	}

	return remember(ctx, t, s)
}

// remember stores the hashes of a range's last block and of those read inside it. It compares them,
// the block before the range, and the highest block that others remember inside the range, with
// what others remember. Remembered blocks are of one branch, so each vouches for those below it.
//
// It never waits. Each writer of a block holds an advisory lock for its height until its
// transaction ends; a transaction that misses the lock leaves the block to the other one, which may
// be frozen, and compares with what that one wrote when the next range is committed.
func remember(ctx context.Context, t *transaction, s step) error {
	last := s.to.Next - 1
	blocks := append(slices.Clip(s.inside), Block{last, s.to.Hash})
	read := make(map[int64]common.Hash, len(blocks))
	for _, b := range blocks {
		read[b.Number] = b.Hash
	}

	rows, _ := t.Query(ctx, rememberBlocks, pgx.StrictNamedArgs{
		"chain": t.cfg.ChainID, "number": last, "from": s.from.Next, "heights": election.Heights,
		"numbers": column.Of(blocks, func(b *Block) int64 { return b.Number }),
		"hashes":  column.Of(blocks, func(b *Block) string { return b.Hash.Hex() }),
	})
	known, err := pgx.CollectRows(rows, scanBlock)
	if err != nil {
		return fmt.Errorf("remember block %d: %w", last, err)
	}

	for _, b := range known {
		hash, isRead := read[b.Number]
		switch {
		case isRead && b.Hash != hash,
			!isRead && b.Number >= s.from.Next && b != s.checked,
			b.Number < s.from.Next && s.from.Hash != (common.Hash{}) && b.Hash != s.from.Hash:
			return &BranchError{b}
		}
	}

	return nil
}

// rememberBlocks adds blocks at free and unlocked heights, and returns the remembered hashes
// of them, of the block before the range, and of the highest block inside.
const rememberBlocks = `
	with added as (
		insert into chain_blocks (chain_id, number, hash)
		select @chain::bigint, t.number, t.hash
			from unnest(@numbers::bigint[], @hashes::text[]) as t(number, hash)
			where pg_try_advisory_xact_lock((select (lock_key(@heights, @chain, '') >> 32)::integer), (t.number % 2147483648)::integer)
		on conflict (chain_id, number) do nothing)
	select number, hash from chain_blocks
	where chain_id = @chain::bigint and (number = any(@numbers::bigint[]) or number = @from::bigint - 1
		or number = (select max(number) from chain_blocks where chain_id = @chain::bigint and number >= @from::bigint
			and number < @number::bigint))
	order by number desc`
