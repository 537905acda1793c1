package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// discoveryPoll is how often a waiting commit reads the factory cursor; notifications come sooner.
const discoveryPoll = 100 * time.Millisecond

// noteEvery is how often the progress of a catch-up is written: a restart repeats what came after.
const noteEvery = 5 * time.Second

// admission finds new escrows and adds them to the book. Its fields belong to the goroutine of the
// watch; complete and gaveUpAt are of the last reading of the factory cursor, and told means that
// it has moved since.
type admission struct {
	slotState

	told     bool         // the factory watch has committed since the last search for new escrows
	gaveUpAt int64        // factory cursor at which the wait for discovery timed out; 0: it did not
	births   bool         // the ABI has EscrowCreated
	start    atomic.Int64 // first block of the chain; a pass over far escrows reads it
	// escrows that are deployed below this block are in the book or wait in it, if they are ours and not far
	complete int64
}

// discover waits until the escrows deployed up to the batch's last block are known, or
// DiscoveryWait; a quiet block brings none. Those behind the cursor are caught up here, once the
// blocks gathered earlier are stored.
func (w *admission) discover(ctx context.Context, batch *chain.Batch, line *overlap) error {
	if int64(batch.To) < w.complete {
		return nil
	}

	if !line.idle() {
		if ok, err := w.glance(ctx, batch); err != nil || ok {
			return err
		}

		if err := line.flush(ctx); err != nil {
			return err
		}
	}

	return w.await(ctx, batch)
}

// glance records the new escrows while a commit runs or waits; some of them may join with it
// although the registry still has them as late. ok is false if the caller must wait: the factory
// watch has not passed the batch, or escrows must be caught up before it.
func (w *admission) glance(ctx context.Context, batch *chain.Batch) (ok bool, err error) {
	limit := w.cfg.LateAtOnce + len(w.book.waiting)
	d, err := w.cfg.Ledger.Discovered(ctx, w.edge(), limit)
	if err != nil || d.Next <= int64(batch.To) || len(d.Late) == limit {
		return false, err
	}

	w.start.Store(d.Start)
	late := slices.DeleteFunc(d.Late, func(l registry.Late) bool { return w.book.has(l.Address) })
	if behind, _ := split(late, int64(batch.From)); len(behind) > 0 {
		return false, nil
	}

	w.book.await(late)
	w.complete = d.Next

	return true, nil
}

// find catches up the new escrows behind the cursor, and lets the others wait; those far behind are
// caught up beside the watch. It returns the next block of the factory watch.
func (w *admission) find(ctx context.Context) (factory int64, err error) {
	for {
		limit := w.cfg.LateAtOnce + len(w.book.waiting)
		d, err := w.cfg.Ledger.Discovered(ctx, w.edge(), limit)
		if err != nil {
			return 0, err
		}

		w.start.Store(d.Start)
		if d.Far {
			if err := w.startFar(ctx); err != nil {
				return 0, err
			}
		}

		behind, ahead := split(d.Late, w.at.Next)
		if len(behind) > 0 {
			if err := w.catchUp(ctx, behind); err != nil {
				return 0, err
			}

			continue
		}

		w.complete = d.Next
		if len(ahead) == limit { // there may be more
			w.complete = ahead[limit-1].Next()
		}

		w.book.await(ahead)

		return d.Next, nil
	}
}

// await finds the new escrows until the factory cursor has passed a batch. It waits at most
// DiscoveryWait; after a timeout it waits again only once the factory watch has caught up: without
// a leader the known escrows must go on. For a range below finality it waits while the factory
// cursor moves: overtaking it would mean reading the range again for the escrows found in it.
func (w *admission) await(ctx context.Context, batch *chain.Batch) error {
	block, seen := int64(batch.To), int64(-1)
	deadline := time.Now().Add(w.cfg.DiscoveryWait)
	for {
		next, err := w.find(ctx)
		switch {
		case err != nil:
			return err
		case w.complete > block:
			w.gaveUpAt = 0
			return nil
		case next > block: // the batch has more new escrows than were looked up at once
			continue
		case w.gaveUpAt > 0 && next < w.at.Next:
			return nil
		}

		if batch.To > batch.From && next > seen {
			seen, deadline = next, time.Now().Add(w.cfg.DiscoveryWait)
		}

		left := time.Until(deadline)
		if left <= 0 {
			w.gaveUpAt = max(next, 1)
			return nil
		}

		pause(ctx, min(left, discoveryPoll), w.cfg.Discovered)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// unborn returns the new escrows without an EscrowCreated among events, which include their
// deployment: they were created earlier, and their events since START_BLOCK come after their
// EscrowDeployed and before those read now. An escrow's events begin with its EscrowCreated; where
// ESCROW_ABI lacks it, those were created earlier that had code before.
func (w *admission) unborn(ctx context.Context, late []registry.Late, events []contract.Event) (back []registry.Late) {
	if len(late) == 0 {
		return nil
	}

	born := map[common.Address]bool{}
	for i := range events {
		if events[i].Name == contract.Created {
			born[events[i].Escrow] = true
		}
	}

	for _, l := range late {
		if fresh := l.Monitored < l.Block; fresh && !born[l.Address] {
			l.Monitored = w.start.Load() - 1
			back = append(back, l)
		}
	}

	if !w.births && len(back) > 0 {
		back = w.older(ctx, back)
	}

	return back
}

// older returns the escrows that had code before the block of their deployment. Where no endpoint has the state of that
// block, none is: the second reading finds what they have emitted.
func (w *admission) older(ctx context.Context, late []registry.Late) (older []registry.Late) {
	requests := make([]chain.Request, len(late))
	for i, l := range late {
		requests[i] = chain.Request{Method: "eth_getCode", Params: []any{l.Address, hexutil.Uint64(l.Block - 1)}}
	}

	answers, _ := w.cfg.Source.CallBatch(ctx, requests...)
	for i, a := range answers {
		if a.Err == nil && string(a.Result) != `"0x"` {
			older = append(older, late[i])
		}
	}

	return older
}

// split separates the escrows that are deployed below the cursor from those that join with the batch
// of their deployment.
func split(late []registry.Late, cursor int64) (behind, ahead []registry.Late) {
	for _, l := range late {
		if l.Next() < cursor || l.Block < cursor {
			behind = append(behind, l)
		} else {
			ahead = append(ahead, l)
		}
	}

	return behind, ahead
}

// catchUp brings late escrows behind the cursor up to it: it reads their events from their
// deployment on, and finally those of unborn ones from START_BLOCK on.
func (w *admission) catchUp(ctx context.Context, late []registry.Late) error {
	w.report(len(late))
	defer w.report(0)
	back, err := w.readUp(ctx, late, true)
	if err == nil && len(back) > 0 {
		err = w.readBack(ctx, back)
	}

	return err
}

// readBack reads the events of unborn escrows before the cursor.
func (w *admission) readBack(ctx context.Context, back []registry.Late) error {
	_, err := w.readUp(ctx, back, false)
	return err
}

// readUp reads the events of late escrows before the cursor. With the last batch the cursor covers
// the escrows, and they join the book. Unborn ones are left for back, where those are looked for.
func (w *admission) readUp(ctx context.Context, late []registry.Late, unborn bool) (back []registry.Late, err error) {
	c := catching{admission: w, at: w.at, to: w.at.Next - 1, late: late, leaves: unborn, store: w.storeRead,
		announce: true}
	if slices.MinFunc(late, byNext).Next() > c.to { // a pass over far escrows has read up to the cursor
		err = w.store(ctx, ledger.SlotCommit{Epoch: w.held.Epoch, From: w.at, To: w.at, Announce: late,
			Progress: progressOf(late, c.to, true)})
	} else {
		err = c.read(ctx)
	}

	if err != nil {
		return nil, err
	}

	for _, l := range c.late {
		w.book.add(l)
	}

	return c.back, nil
}

// storeRead commits a batch of a catch-up.
func (w *admission) storeRead(ctx context.Context, b *blocks, c ledger.SlotCommit) error {
	c.Epoch, c.From, c.To = w.held.Epoch, w.at, w.at
	traced, span := newSpans(w.cfg.Tracer, "late").blocks(ctx, b)
	err := w.store(traced, c)
	endSpan(span, err)
	if err == nil {
		w.noteEndings(c.Events)
	}

	return err
}

// catching is the reading of the events of some late escrows, batch by batch. read changes late and
// back.
type catching struct {
	*admission

	at       ledger.Position // the cursor: what is read is of its branch
	to       int64           // last block
	late     []registry.Late
	leaves   bool // unborn ones leave late with the batch of their deployment, for back
	back     []registry.Late
	store    func(ctx context.Context, b *blocks, c ledger.SlotCommit) error
	announce bool // with the first commit
	far      bool // the cursor does not cover the escrows after the last batch
}

// read reads the events and stores them, once they are anchored.
func (c *catching) read(ctx context.Context) error {
	next := nextOf(c.late)
	from := slices.MinFunc(c.late, byNext).Next()
	since, noted := time.Now(), time.Time{}
	filter := c.filterOf(c.late)
	var read []ledger.Block // the last block of each batch since the last commit
	for batch, err := range c.cfg.Source.Read(ctx, uint64(from), uint64(c.to), filter) {
		if err != nil {
			c.cfg.Filters.Refused(ctx, filter, err, c.cfg.Log) // the next try names them

			return &readError{err}
		}

		var b blocks
		b.add(c.at.To(int64(batch.From), common.Hash{}), &batch, since, time.Now())
		events, err := decode(c.cfg.ABI, batch.Logs, next.emitted, c.cfg.Metrics)
		if err != nil {
			return err
		}

		if c.leaves {
			some := c.unborn(ctx, deployedIn(c.late, &batch), events)
			c.back, c.late, events = append(c.back, some...), next.without(some, c.late), next.keep(events)
		}

		commit := ledger.SlotCommit{Events: events}
		read = append(read, ledger.Block{Number: int64(batch.To), Hash: batch.Last.Hash})
		done := int64(batch.To) == c.to
		if c.announce || done || time.Since(noted) > noteEvery {
			noted = time.Now()
			// one row per escrow, too many for every batch
			commit.Progress = progressOf(c.late, int64(batch.To), done && !c.far)
		}

		if len(commit.Progress)+len(events) == 0 {
			continue
		}

		if c.announce {
			commit.Announce, c.announce = slices.Clone(c.late), false
		}

		if err := c.anchored(ctx, c.at, read); err != nil {
			return err
		}

		if err := c.store(ctx, &b, commit); err != nil {
			return err
		}

		read, since = read[:0], time.Now()
	}

	return nil
}

// anchored verifies that the blocks read are on the branch of the cursor's block, both in one
// answer of an endpoint: commits below the cursor meet no later check. A cursor without a hash
// skips it.
func (w *admission) anchored(ctx context.Context, at ledger.Position, read []ledger.Block) error {
	if at.Hash == (common.Hash{}) {
		return nil
	}

	numbers := make([]uint64, len(read))
	for i, b := range read {
		numbers[i] = uint64(b.Number)
	}

	cursor := chain.Header{Number: uint64(at.Next - 1), Hash: at.Hash}
	headers, err := w.cfg.Source.Branch(ctx, cursor, numbers...)
	if err != nil {
		return &readError{fmt.Errorf("compare what was read with the branch of the cursor: %w", err)}
	}

	for i, b := range read {
		if headers[i].Hash != b.Hash {
			return &readError{fmt.Errorf("%w: block %d was read as %s, and is %s on the branch of the cursor",
				chain.ErrDisagree, b.Number, b.Hash, headers[i].Hash)}
		}
	}

	return nil
}

func byNext(a, b registry.Late) int { return cmp.Compare(a.Next(), b.Next()) }

// nextBlocks are late escrows by address; their events from Next on are unread.
type nextBlocks map[common.Address]registry.Late

func nextOf(late []registry.Late) nextBlocks {
	next := make(nextBlocks, len(late))
	for _, l := range late {
		next[l.Address] = l
	}

	return next
}

// emitted reports whether a log is of one of the escrows, in a block still unread for it.
func (n nextBlocks) emitted(l *types.Log) (factory common.Address, ours bool) {
	late, ok := n[l.Address]
	return late.Factory, ok && int64(l.BlockNumber) >= late.Next()
}

// without removes some of the late escrows, and returns the others.
func (n nextBlocks) without(some, late []registry.Late) []registry.Late {
	for _, l := range some {
		delete(n, l.Address)
	}

	return slices.DeleteFunc(late, func(l registry.Late) bool { _, ok := n[l.Address]; return !ok })
}

// keep drops the events of other escrows.
func (n nextBlocks) keep(events []contract.Event) []contract.Event {
	return slices.DeleteFunc(events, func(e contract.Event) bool { _, ok := n[e.Escrow]; return !ok })
}

// deployedIn are the escrows that a batch deploys.
func deployedIn(late []registry.Late, batch *chain.Batch) (in []registry.Late) {
	for _, l := range late {
		if l.Block >= int64(batch.From) && l.Block <= int64(batch.To) {
			in = append(in, l)
		}
	}

	return in
}

// filterOf is the filter for the logs of some escrows: by address, unless that takes too many
// requests.
func (w *admission) filterOf(late []registry.Late) *chain.Filter {
	filter := &chain.Filter{Topics: w.cfg.ABI.EscrowTopics()}
	if len(late) > w.cfg.Filters.oneRequest && !w.cfg.Filters.byAddresses() {
		return filter
	}

	for _, l := range late {
		filter.Addresses = append(filter.Addresses, l.Address)
	}

	return filter
}

// progressOf records that some escrows were read up to a block.
func progressOf(late []registry.Late, monitored int64, caughtUp bool) []registry.Progress {
	progress := make([]registry.Progress, len(late))
	for i, l := range late {
		progress[i] = registry.Progress{Address: l.Address, Monitored: monitored, CaughtUp: caughtUp}
	}

	return progress
}
