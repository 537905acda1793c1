package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// NewSlotWatch returns a watch; Run starts it.
func NewSlotWatch(cfg SlotConfig) *SlotWatch {
	cfg.LateAtOnce, cfg.Near = cmp.Or(cfg.LateAtOnce, lateAtOnce), cmp.Or(cfg.Near, near)
	w := &SlotWatch{cfg: cfg, births: slices.Contains(cfg.ABI.EventNames(), contract.Created)}
	w.watcher = newWatcher(&w.cfg.Config, "slots")
	w.status.Store(&SlotStatus{})

	return w
}

// Run watches until ctx ends (nil), or until the right to commit is over (ErrFenced: join again).
func (w *SlotWatch) Run(ctx context.Context) error {
	defer w.accepted()
	delays := retry()
	for ctx.Err() == nil {
		held, changed := w.cfg.Holder.Settled()
		before := w.at
		err := w.serve(ctx, held, changed)
		if reorg := new(reorgError); errors.As(err, &reorg) {
			err = rollback(ctx, w.common, reorg.stale)
			if errors.As(err, new(*readError)) {
				w.noteReading(ctx, err)
			}
		}

		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ledger.ErrFenced):
			if now, _ := w.cfg.Holder.Settled(); now.Epoch == held.Epoch {
				return err
			}

			continue
		case err == nil:
			delays.Reset()
			continue
		}

		w.failed(ctx, w.at, err)
		if w.at.Next > before.Next {
			delays.Reset()
		}

		pause(ctx, delays.NextBackOff(), changed)
	}

	return nil
}

// serve processes blocks while the holding is unchanged. It returns nil when the holding has
// changed.
func (w *SlotWatch) serve(ctx context.Context, held partition.Holding, changed <-chan struct{}) error {
	w.held = held
	if len(held.Slots) == 0 {
		w.book, w.at = nil, ledger.Position{}
		w.accepted()
		w.noteReading(ctx, nil)
		w.report(0)
		select {
		case <-changed:
		case <-ctx.Done():
		}

		return nil
	}

	if err := w.load(ctx); err != nil {
		return err
	}

	defer w.endFar()
	known := false // whether the position is on the chain
	for delays := retry(); ; {
		news, before, began := w.cfg.Source.Changed(), w.at, time.Now()
		var err error
		if !known {
			err = w.check(ctx)
			known = err == nil
		}

		if err == nil {
			err = w.step(ctx, changed)
		}

		if w.at.Next > before.Next {
			delays.Reset()
		}

		if is := new(readError); errors.As(err, &is) { // the escrows stay valid
			known = known && !errors.Is(err, chain.ErrDisagree)
			w.cfg.Log.Log(ctx, w.level(err), "blocks not read, trying again", slog.Int64("block", w.at.Next),
				slog.Any("err", err))
			pause(ctx, delay(delays, err, began), changed)
			err = w.unmoved(ctx)
		}

		if err != nil {
			return err
		}

		if over := w.rest(ctx, changed, news); over {
			return nil
		}
	}
}

// load reads the position, the factories and the escrows of the slots, and makes the publisher read their rows.
func (w *SlotWatch) load(ctx context.Context) (err error) {
	if w.at, err = w.cfg.Ledger.SettledPosition(ctx, w.held.Epoch); err != nil {
		return err
	}

	// After the position: a factory that was added in between has raised its generation.
	if err := w.cfg.Ledger.Follow(ctx, w.cfg.Filters.followed); err != nil {
		return err
	}

	var knows registry.Layouts
	knows.Deployments, knows.Others = w.cfg.ABI.Layouts()
	lacks, err := registry.Lacking(ctx, w.cfg.DB, w.cfg.ChainID, knows)
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("the leader reads with %d event layouts that this instance lacks, %s for one: its slots go to one that "+
			"has them; complete FACTORY_ABI and ESCROW_ABI here", len(lacks), lacks[0])
	}

	if err != nil {
		return err
	}

	start, err := w.cfg.Ledger.Start(ctx)
	if err != nil {
		return err
	}

	view := w.cfg.Source.View()
	if w.book, err = loadBook(ctx, w.cfg.DB, w.cfg.ChainID, w.held.Slots, w.at.Next, int64(view.Final)); err != nil {
		return err
	}

	w.start.Store(start.Next)
	if w.strangers = nil; !w.births && w.at.Next <= start.Next {
		w.strangers = map[common.Address]bool{}
	}

	w.mine = make(map[int16]bool, len(w.held.Slots))
	for _, slot := range w.held.Slots {
		w.mine[slot] = true
	}

	w.told, w.asked = true, true
	w.cfg.Publisher.Reload(w.right(), w.held.Slots)
	w.report(0)

	return nil
}

// unmoved fails where the position is not the database's any more: another instance has rolled back, or made void what
// was read. Until the position is read anew the publisher notes nothing, and nothing is retracted.
func (w *SlotWatch) unmoved(ctx context.Context) error {
	at, err := w.cfg.Ledger.SlotPosition(ctx, w.held.Epoch)
	if err == nil && at != w.at {
		return ledger.ErrMoved
	}

	return err
}

// check verifies that the position is on the chain.
func (w *SlotWatch) check(ctx context.Context) error {
	err := checked(ctx, w.cfg.Source, w.at)
	if reorg := new(reorgError); err == nil || errors.As(err, &reorg) {
		return err
	}

	return &readError{err}
}

// step processes the available blocks, and then late escrows. It serves requests even without a block.
func (w *SlotWatch) step(ctx context.Context, changed <-chan struct{}) error {
	if err := w.giveTurn(ctx); err != nil {
		return err
	}

	if view := w.cfg.Source.View(); behind(view, w.at) {
		if err := w.advance(ctx, view, changed); err != nil {
			return err
		}

		w.told = w.told || time.Since(w.looked) > lookAgain
	}

	if w.told {
		if err := w.find(ctx); err != nil {
			return err
		}
	}

	for w.asked {
		if err := w.store(ctx, ledger.SlotCommit{Epoch: w.held.Epoch, From: w.at, To: w.at}); err != nil {
			return err
		}
	}

	return nil
}

// rest waits for work, and reports whether the holding, or ctx, is over.
func (w *SlotWatch) rest(ctx context.Context, changed, news <-chan struct{}) (over bool) {
	select {
	case <-ctx.Done():
		return true
	case <-changed:
		return true
	default:
	}

	var due <-chan time.Time
	switch {
	case w.told:
		due = time.After(0)
	case w.quiet.left:
		due = time.After(w.quiet.pause())
	case behind(w.cfg.Source.View(), w.at):
		due = time.After(0)
	case w.open:
		due = time.After(quietPause)
	}

	turns, ended := w.aside.channels()

	select {
	case <-ctx.Done():
		return true
	case <-changed:
		return true
	case <-w.cfg.Discovered:
		w.told = true
	case <-w.cfg.Requested:
		w.asked = true
	case t := <-turns:
		w.aside.waiting = &t
	case err := <-ended:
		w.farEnded(ctx, err)
	case <-news:
	case <-due:
		w.asked = w.asked || w.open
	}

	return false
}

// advance reads from the cursor and commits batch by batch. It returns nil if the reading must
// restart.
func (w *SlotWatch) advance(ctx context.Context, view chain.View, changed <-chan struct{}) error {
	w.cfg.Filters.update(w.book)
	filter, to, seen := w.cfg.Filters.Head(), view.Target, &w.cfg.Filters.heads
	if w.at.Next <= int64(view.Final) {
		filter, to, seen = w.cfg.Filters.ranged, min(view.Final, view.Target), &w.cfg.Filters.ranges
	}

	if n := w.cfg.Filters.limit(seen); n > 0 {
		to = min(to, uint64(w.at.Next+n-1))
	}

	line := &newSlotGathering(w, int64(view.Final), seen).line
	err := w.read(ctx, line, w.at.Next, to, filter, changed)
	if errors.As(err, new(*readError)) {
		if w.cfg.Filters.Refused(ctx, filter, err, w.cfg.Log) {
			return nil
		}

		w.noteReading(ctx, err)
	}

	return err
}

// slotGathering is the stage of a slot watch during one reading.
type slotGathering struct {
	gathering

	w     *SlotWatch
	line  overlap // whose stage this is
	seen  *noise  // that learns from the batches
	later bool    // late escrows wait for the end of this reading: they could not be read
}

// newSlotGathering begins at the position of the watch.
func newSlotGathering(w *SlotWatch, final int64, seen *noise) *slotGathering {
	g := &slotGathering{w: w, gathering: gathering{final: final, ahead: w.at, since: time.Now()}, seen: seen}
	g.line.stage = g

	return g
}

func (g *slotGathering) waits(ended bool) bool {
	return g.w.quiet.waits(&g.blocks, g.final, ended)
}

// gather lets the escrows join that are deployed in a batch, and selects and decodes the logs of
// the followed ones.
func (g *slotGathering) gather(ctx context.Context, batch *chain.Batch) (bool, error) {
	if !batch.Follows(g.ahead.Hash) {
		return false, &reorgError{g.ahead}
	}

	g.w.noteReading(ctx, nil)
	came, version := time.Now(), g.w.book.version
	if err := g.lookBehind(ctx); err != nil {
		return false, err
	}

	deployed, joining, err := g.deployed(ctx, batch)
	if err != nil {
		return false, err
	}

	if batch.Filter.Addresses != nil && g.w.book.version != version {
		return false, nil // the batch was read without the escrows that have just joined
	}

	events, foreign, err := g.emitted(batch, joining)
	if err != nil {
		return false, err
	}

	if !g.w.quiet.again(batch) {
		g.w.cfg.Filters.learn(g.seen, batch, foreign)
	}

	events = g.join(ctx, batch, joining, deployed, events)
	g.addBatch(batch, came, events)
	g.w.noteEndings(events)
	g.w.book.forget(g.final)
	anew := batch.Filter.Addresses != nil && g.w.book.version != version || g.w.cfg.Filters.turned(g.seen, batch.Filter)

	return !anew, nil
}

// emitted are the events of a batch that followed escrows and joining ones have emitted, and the number of logs of
// other contracts.
func (g *slotGathering) emitted(batch *chain.Batch, joining []registry.Late) (events []contract.Event, foreign int,
	err error) {
	due := nextOf(joining)
	events, err = decode(g.w.cfg.ABI, batch.Logs, false, func(l *types.Log) (common.Address, bool) {
		if late, joins := due[l.Address]; joins {
			return late.Factory, true
		}

		if g.w.book.has(l.Address) {
			return g.w.book.factory(l.Address), true
		}

		if !g.w.cfg.Filters.followed.Deploys(l.Address, l.BlockNumber) {
			foreign++
			g.w.meet(l.Address)
		}

		return common.Address{}, false
	}, g.w.cfg.Metrics)

	return events, foreign, err
}

// lookBehind catches up the late escrows that there are since the last look, once the blocks gathered earlier are
// stored. Where they cannot be read, they hold up no block.
func (g *slotGathering) lookBehind(ctx context.Context) error {
	select {
	case <-g.w.cfg.Discovered:
		g.w.told = true
	default:
	}

	if !g.w.told || g.later {
		return nil
	}

	if err := g.line.flush(ctx); err != nil {
		return err
	}

	err := g.w.find(ctx)
	if g.later = errors.As(err, new(*readError)); g.later {
		g.w.cfg.Log.Log(ctx, g.w.level(err), "late escrows not caught up, trying again", slog.Any("err", err))
		return nil
	}

	return err
}

// deployed are the EscrowDeployed of a batch in slots of this instance, and the escrows that join with them: those of
// which it is the first one. An ended escrow whose events RETENTION has removed is met again after a rewind, and left
// out.
func (g *slotGathering) deployed(ctx context.Context, batch *chain.Batch) (events []contract.Event,
	joining []registry.Late, err error) {
	followed := func(l *types.Log) bool { return g.w.cfg.Filters.followed.Deploys(l.Address, l.BlockNumber) }
	mine := func(e *contract.Event) bool { return g.w.mine[partition.Slot(e.Escrow)] }
	events, err = deployments(&g.w.cfg, batch, followed, mine)
	if err != nil || len(events) == 0 {
		return nil, nil, err
	}

	known, err := g.w.cfg.Ledger.Known(ctx, events)
	if err != nil {
		return nil, nil, err
	}

	events = slices.DeleteFunc(events, func(e contract.Event) bool {
		r := known[e.Escrow]
		return r.Pruned && r.At == e.Place()
	})
	for i := range events {
		e := &events[i]
		was, is := known[e.Escrow]
		if !is {
			known[e.Escrow] = ledger.Registration{At: e.Place()}
		}

		if !g.w.book.has(e.Escrow) && (!is || was.At == e.Place()) {
			joining = append(joining, registry.Late{Address: e.Escrow, Block: int64(e.BlockNumber),
				Monitored: int64(e.BlockNumber) - 1, Factory: e.Factory})
		}
	}

	return events, joining, nil
}

// join adds the escrows deployed in a batch to the book, and returns the events in the order in which they are
// published: an escrow's EscrowDeployed comes before what its transaction had emitted earlier. Some become late, and
// are caught up before they join: those that a request by addresses could not name, those that are older than the
// batch, and those that are registered in the batch and not shown, since that proves nothing.
func (g *slotGathering) join(ctx context.Context, batch *chain.Batch, joining []registry.Late,
	deployed, events []contract.Event) []contract.Event {
	var apart []registry.Late
	switch {
	case batch.Filter.Addresses != nil:
		apart, g.w.strangers = joining, nil // it does not show strangers
	case int64(batch.From) <= g.w.start.Load():
	case g.w.strangers != nil:
		for _, l := range joining {
			if g.w.strangers[l.Address] {
				apart = append(apart, l)
			}
		}
	default:
		apart = g.w.unborn(ctx, joining, events)
	}

	late := nextOf(apart)
	isLate := func(a common.Address) bool { _, is := late[a]; return is }
	for _, l := range joining {
		if isLate(l.Address) {
			g.late, g.w.told = append(g.late, l.Address), true
		} else {
			g.w.book.add(l)
		}
	}

	for _, l := range g.w.book.aheadIn(batch.From, batch.To) {
		if !shown(deployed, l.Block, l.LogIndex) {
			g.late, g.w.told = append(g.late, l.Address), true
		}
	}

	return append(deployed, slices.DeleteFunc(events, func(e contract.Event) bool { return isLate(e.Escrow) })...)
}

// take makes a commit of the gathered blocks.
func (g *slotGathering) take(ctx context.Context) (commit func() error, ended func(error) error) {
	was := g.group
	g.group = group{}
	commit, committed := g.w.prepareBlocks(ctx, &was.blocks, g.w.storing(ledger.SlotCommit{
		Epoch: g.w.held.Epoch, From: was.from, To: was.to, Inside: was.inside, Time: was.time, Late: was.late,
		Events: was.events,
	}))

	return commit, func(err error) error {
		if err = committed(err); err == nil {
			g.w.report(0)
		}

		return err
	}
}
