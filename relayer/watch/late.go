package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// noteEvery is how often the progress of a catch-up is written: a restart repeats what came after.
const noteEvery = 5 * time.Second

// lookAgain is how often late escrows are looked for without a hint: one that was registered above the cursor is late
// once the cursor has passed it.
const lookAgain = 10 * time.Second

// find catches up the late escrows; those far behind are caught up beside the watch, and those of which something is
// requested once it is served.
func (w *SlotWatch) find(ctx context.Context) (err error) {
	w.told, w.looked = false, time.Now()
	defer func() { w.told = w.told || err != nil }()
	if err := w.unmoved(ctx); err != nil {
		return err
	}

	for {
		if err := w.startFar(ctx); err != nil {
			return err
		}

		late, err := w.late(ctx, w.edge(), math.MaxInt64, w.cfg.LateAtOnce)
		if err != nil || len(late) == 0 {
			return err
		}

		if err := w.catchUp(ctx, late); err != nil {
			return err
		}
	}
}

// late returns at most limit late escrows that the cursor has passed, and whose events are unread from
// a block of from..before-1 on, the furthest behind first.
func (w *SlotWatch) late(ctx context.Context, from, before int64, limit int) ([]registry.Late, error) {
	return w.cfg.Ledger.Late(ctx, registry.Range{From: from, Before: before, Cursor: w.at.Next}, limit)
}

// mostStrangers bounds them: some 5 MB. With more, endpoints are asked for code.
const mostStrangers = 100_000

// meet notes a contract that is not followed.
func (w *SlotWatch) meet(stranger common.Address) {
	if w.strangers == nil || !w.mine[partition.Slot(stranger)] {
		return
	}

	if w.strangers[stranger] = true; len(w.strangers) > mostStrangers {
		w.strangers = nil
	}
}

// unborn returns the new escrows without an EscrowCreated among events, which include their
// deployment: they were created earlier, and their events since START_BLOCK come after their
// EscrowDeployed and before those read now. An escrow's events begin with its EscrowCreated; where
// ESCROW_ABI lacks it, those were created earlier that had code before.
func (w *SlotWatch) unborn(ctx context.Context, late []registry.Late, events []contract.Event) (back []registry.Late) {
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
func (w *SlotWatch) older(ctx context.Context, late []registry.Late) (older []registry.Late) {
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

// catchUp brings late escrows behind the cursor up to it: it reads their events from their
// deployment on, and finally those of unborn ones from START_BLOCK on.
func (w *SlotWatch) catchUp(ctx context.Context, late []registry.Late) error {
	w.report(len(late))
	defer w.report(0)
	back, err := w.readUp(ctx, late, true)
	if err == nil && len(back) > 0 {
		err = w.readBack(ctx, back)
	}

	return err
}

// readBack reads the events of unborn escrows before the cursor.
func (w *SlotWatch) readBack(ctx context.Context, back []registry.Late) error {
	_, err := w.readUp(ctx, back, false)
	return err
}

// readUp reads the events of late escrows before the cursor. With the last batch the cursor covers
// the escrows, and they join the book. Unborn ones are left for back, where those are looked for.
func (w *SlotWatch) readUp(ctx context.Context, late []registry.Late, unborn bool) (back []registry.Late, err error) {
	c := catching{w: w, at: w.at, to: w.at.Next - 1, late: late, leaves: unborn, store: w.storeRead}
	if slices.MinFunc(late, byNext).Next() > c.to { // a pass over far escrows has read up to the cursor
		err = w.store(ctx, ledger.SlotCommit{Epoch: w.held.Epoch, From: w.at, To: w.at,
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
func (w *SlotWatch) storeRead(ctx context.Context, b *blocks, c ledger.SlotCommit) error {
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
	w      *SlotWatch
	at     ledger.Position // the cursor: what is read is of its branch
	to     int64           // last block
	late   []registry.Late
	leaves bool // unborn ones leave late with the batch of their deployment, for back
	back   []registry.Late
	store  func(ctx context.Context, b *blocks, c ledger.SlotCommit) error
	far    bool // the cursor does not cover the escrows after the last batch
}

// read reads the events and stores them, once they are anchored.
func (c *catching) read(ctx context.Context) error {
	next := nextOf(c.late)
	from := slices.MinFunc(c.late, byNext).Next()
	since, noted := time.Now(), time.Time{}
	filter := c.w.filterOf(c.late)
	var read []ledger.Block // the last block of each batch since the last commit
	for batch, err := range c.w.cfg.Source.Read(ctx, uint64(from), uint64(c.to), filter) {
		if err != nil {
			c.w.cfg.Filters.Refused(ctx, filter, err, c.w.cfg.Log) // the next try names them

			return &readError{err}
		}

		var b blocks
		b.add(c.at.To(int64(batch.From), common.Hash{}), &batch, since, time.Now())
		events, unseen, err := c.eventsOf(next, &batch)
		if err != nil {
			return err
		}

		if len(unseen) > 0 {
			c.late, events = next.without(unseen, c.late), next.keep(events)
		}

		if c.leaves {
			some := c.w.unborn(ctx, deployedIn(c.late, &batch), events)
			c.back, c.late, events = append(c.back, some...), next.without(some, c.late), next.keep(events)
		}

		commit := ledger.SlotCommit{Events: events, Progress: progressOf(unseen, c.to, false)}
		read = append(read, ledger.Block{Number: int64(batch.To), Hash: batch.Last.Hash})
		done := int64(batch.To) == c.to
		if done || time.Since(noted) > noteEvery {
			noted = time.Now()
			// one row per escrow, too many for every batch
			commit.Progress = append(commit.Progress, progressOf(c.late, int64(batch.To), done && !c.far)...)
		}

		if len(commit.Progress)+len(events) == 0 {
			continue
		}

		if err := c.w.anchored(ctx, c.at, read); err != nil {
			return err
		}

		if err := c.store(ctx, &b, commit); err != nil {
			return err
		}

		read, since = read[:0], time.Now()
	}

	return nil
}

// eventsOf are the events of late escrows in a batch, each EscrowDeployed first. Unseen are those that it should
// deploy and does not: whether there are such escrows the second reading will tell.
func (c *catching) eventsOf(next nextBlocks, batch *chain.Batch) (events []contract.Event, unseen []registry.Late,
	err error) {
	factories := c.w.cfg.Filters.followed.Addresses()
	known := func(l *types.Log) bool { return slices.Contains(factories, l.Address) }
	deployed, err := deployments(&c.w.cfg, batch, known, func(e *contract.Event) bool {
		l, late := next[e.Escrow]
		return late && l.Block == int64(e.BlockNumber) && l.LogIndex == int32(e.LogIndex)
	})
	if err != nil {
		return nil, nil, err
	}

	for _, l := range deployedIn(c.late, batch) {
		if !l.Announced && !shown(deployed, l.Block, l.LogIndex) {
			unseen = append(unseen, l)
			c.w.cfg.Log.Warn("this instance does not see the EscrowDeployed of an escrow that the leader has registered",
				slog.String("escrow", l.Address.Hex()), slog.Int64("block", l.Block))
		}
	}

	others, err := decode(c.w.cfg.ABI, batch.Logs, false, next.emitted, c.w.cfg.Metrics)

	return append(deployed, others...), unseen, err
}

// anchored verifies that the blocks read are on the branch of the cursor's block, both in one
// answer of an endpoint: commits below the cursor meet no later check. A cursor without a hash
// skips it.
func (w *SlotWatch) anchored(ctx context.Context, at ledger.Position, read []ledger.Block) error {
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

// keep drops the events of other escrows, but for their deployments.
func (n nextBlocks) keep(events []contract.Event) []contract.Event {
	return slices.DeleteFunc(events, func(e contract.Event) bool {
		_, ok := n[e.Escrow]
		return !ok && e.Name != contract.Deployed
	})
}

// deployedIn are the escrows that a batch deploys, and that continue with it.
func deployedIn(late []registry.Late, batch *chain.Batch) (in []registry.Late) {
	for _, l := range late {
		if l.Next() <= l.Block && l.Block >= int64(batch.From) && l.Block <= int64(batch.To) {
			in = append(in, l)
		}
	}

	return in
}

// filterOf is the filter for the logs of some escrows and for their deployments: by address, unless that takes too
// many requests.
func (w *SlotWatch) filterOf(late []registry.Late) *chain.Filter {
	filter := &chain.Filter{Topics: w.cfg.ABI.Topics()}
	if len(late) > w.cfg.Filters.oneRequest && !w.cfg.Filters.byAddresses() {
		return filter
	}

	filter.Addresses = w.cfg.Filters.followed.Addresses()
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
