package watch

import (
	"cmp"
	"context"
	"errors"
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

// SlotWatch commits the events of the escrows in this instance's slots.
type SlotWatch struct {
	admission
}

// NewSlotWatch returns a watch; Run starts it.
func NewSlotWatch(cfg SlotConfig) *SlotWatch {
	cfg.LateAtOnce, cfg.Near = cmp.Or(cfg.LateAtOnce, lateAtOnce), cmp.Or(cfg.Near, near)
	w := &SlotWatch{}
	w.cfg, w.births = cfg, slices.Contains(cfg.ABI.EventNames(), contract.Created)
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
			err = nil
		}

		if err != nil {
			return err
		}

		if over := w.rest(ctx, changed, news); over {
			return nil
		}
	}
}

// load reads the position and the escrows of the slots, and makes the publisher read their rows.
func (w *SlotWatch) load(ctx context.Context) (err error) {
	if w.at, err = w.cfg.Ledger.SlotPosition(ctx, w.held.Epoch); err != nil {
		return err
	}

	view := w.cfg.Source.View()
	if w.book, err = loadBook(ctx, w.cfg.DB, w.cfg.ChainID, w.held.Slots, int64(view.Final)); err != nil {
		return err
	}

	w.complete, w.asked = 0, true
	w.cfg.Publisher.Reload(w.held.Slots)
	w.report(0)

	return nil
}

// check verifies that the position is on the chain.
func (w *SlotWatch) check(ctx context.Context) error {
	err := checked(ctx, w.cfg.Source, w.at)
	if reorg := new(reorgError); err == nil || errors.As(err, &reorg) {
		return err
	}

	return &readError{err}
}

// step processes the available blocks, and new escrows when there is no block or the factory watch
// has committed. It serves requests even without a block.
func (w *SlotWatch) step(ctx context.Context, changed <-chan struct{}) error {
	if err := w.giveTurn(ctx); err != nil {
		return err
	}

	if view := w.cfg.Source.View(); behind(view, w.at) {
		if err := w.advance(ctx, view, changed); err != nil || !w.told {
			return err
		}
	}

	w.told = false
	if _, err := w.find(ctx); err != nil {
		return err
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

	line := &newSlotGathering(&w.admission, int64(view.Final), seen).line
	err := w.read(ctx, line, w.at.Next, to, filter, changed)
	if err != nil && err == line.unread { //nolint:errorlint // this reading's error, not one of its kind
		if w.cfg.Filters.Refused(ctx, filter, err, w.cfg.Log) {
			return nil
		}

		w.noteReading(ctx, err)
	}

	return err
}

// slotGathering is the stage of a slot watch during one reading.
type slotGathering struct {
	*admission
	gathering

	line overlap // whose stage this is
	seen *noise  // that learns from the batches
}

// newSlotGathering begins at the position of the watch.
func newSlotGathering(w *admission, final int64, seen *noise) *slotGathering {
	g := &slotGathering{admission: w, gathering: gathering{final: final, ahead: w.at, since: time.Now()}, seen: seen}
	g.line.stage = g

	return g
}

func (g *slotGathering) waits(ended bool) bool {
	return g.quiet.waits(&g.blocks, g.final, ended)
}

// gather lets the escrows join that are deployed in a batch, and selects and decodes the logs of
// the followed ones.
func (g *slotGathering) gather(ctx context.Context, batch *chain.Batch) (bool, error) {
	if !batch.Follows(g.ahead.Hash) {
		return false, &reorgError{g.ahead}
	}

	g.noteReading(ctx, nil)
	came, version := time.Now(), g.book.version
	var due nextBlocks
	var joining []registry.Late
	if !isQuiet(batch) {
		if err := g.discover(ctx, batch, &g.line); err != nil {
			return false, err
		}

		joining = g.book.due(int64(batch.To))
		due = nextOf(joining)
	}

	if batch.Filter.Addresses != nil && g.book.version != version {
		return false, nil // the batch was read without the escrows that have just joined
	}

	foreign := 0
	events, err := decode(g.cfg.ABI, batch.Logs, func(l *types.Log) (common.Address, bool) {
		if late, joins := due[l.Address]; joins {
			return late.Factory, true
		}

		if g.book.has(l.Address) {
			return g.book.factory(l.Address), true
		}

		foreign++

		return common.Address{}, false
	}, g.cfg.Metrics)
	if err != nil {
		return false, err
	}

	if joining, err = g.join(ctx, joining, events); err != nil {
		return false, err
	}

	// Until the factory watch has passed the batch, a log of an unknown contract may be of an escrow.
	if known := int64(batch.To) < g.complete; !g.quiet.again(batch) && known {
		g.cfg.Filters.learn(g.seen, batch, foreign)
	}

	g.addBatch(batch, came, events)
	g.joining = append(g.joining, joining...)
	g.noteEndings(events)
	g.book.forget(g.final)
	anew := batch.Filter.Addresses != nil && g.book.version != version || g.cfg.Filters.turned(g.seen, batch.Filter)

	return !anew, nil
}

// join adds the escrows deployed in a batch to the book, with its events, and returns those to be
// announced with it: earlier events of unborn ones are announced and stored first.
func (g *slotGathering) join(ctx context.Context, due []registry.Late, events []contract.Event) ([]registry.Late,
	error) {
	joining := due
	if back := g.unborn(ctx, due, events); len(back) > 0 {
		if err := g.line.flush(ctx); err != nil {
			return nil, err
		}

		if g.at.Next > g.start.Load() {
			if err := g.readBack(ctx, back); err != nil {
				return nil, err
			}
		}

		joining = slices.DeleteFunc(slices.Clone(due), func(l registry.Late) bool { return g.book.has(l.Address) })
	}

	g.book.join(len(due))

	return joining, nil
}

// take makes a commit of the gathered blocks.
func (g *slotGathering) take(ctx context.Context) (commit func() error, ended func(error) error) {
	was := g.group
	g.group = group{}
	commit, committed := g.prepareBlocks(ctx, &was.blocks, g.storing(ledger.SlotCommit{
		Epoch: g.held.Epoch, From: was.from, To: was.to, Inside: was.inside, Time: was.time, Announce: was.joining,
		Progress: progressOf(was.joining, was.to.Next-1, true), Events: was.events,
	}))

	return commit, func(err error) error {
		if err = committed(err); err == nil {
			g.report(0)
		}

		return err
	}
}
