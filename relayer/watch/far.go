package watch

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// near is how many blocks a late escrow may be behind the cursor to be caught up while the watch
// waits: few requests read them. Escrows further behind are far: they are caught up beside the
// watch, so that the past of an added factory delays no other event.
const near = 32

// Limits of a pass over far escrows: it reads their past once, for all of them.
const (
	farAtOnce = 20_000
	farPart   = 1000 // events, or escrows, of one commit
)

// farPause is how long a pass that has failed lasts on, before the next one begins.
const farPause = 3 * time.Second

// far is a pass over far escrows. Another goroutine reads, and hands what is to be committed to
// the goroutine of the watch, which alone commits. Once the pass is over the escrows are near.
// waiting belongs to the goroutine of the watch.
type far struct {
	cancel  context.CancelFunc
	turns   chan turn
	ended   chan error // gets the outcome of the pass, once
	late    int        // escrows that it began with
	above   int64      // block from which the upper half of them continue
	waiting *turn
}

// turn is a commit that a pass waits for. It has neither an epoch nor a cursor yet.
type turn struct {
	ledger.SlotCommit

	stored chan<- error
}

// edge is the block below which late escrows are far.
func (w *SlotWatch) edge() int64 { return w.at.Next - w.cfg.Near }

// startFar begins a pass, if there are far escrows and no pass runs.
func (w *SlotWatch) startFar(ctx context.Context) error {
	if w.aside != nil {
		return nil
	}

	late, err := w.late(ctx, w.skip, w.edge(), farAtOnce)
	if err == nil && len(late) == 0 && w.skip > 0 {
		w.skip = 0
		late, err = w.late(ctx, w.skip, w.edge(), farAtOnce)
	}

	if err != nil || len(late) == 0 {
		return err
	}

	ctx, cancel := context.WithCancel(chain.Later(ctx))
	f := &far{cancel: cancel, turns: make(chan turn), ended: make(chan error, 1), late: len(late),
		above: max(late[len(late)/2].Next(), late[0].Next()+1)}
	c := &catching{w: w, at: w.at, to: w.at.Next - 1, late: late, leaves: true, store: f.store, far: true}
	go func() { // endFar waits for it
		err := f.run(ctx, c)
		if err != nil {
			pause(ctx, farPause, nil)
		}

		f.ended <- err
	}()
	w.aside = f
	w.cfg.Log.InfoContext(ctx, "escrows far behind are caught up beside the others", slog.Int("escrows", len(late)),
		slog.Int64("from_block", late[0].Next()), slog.Int64("to_block", c.to))
	w.report(0)

	return nil
}

// run reads the past of the escrows, and finally that of unborn ones from START_BLOCK on.
func (f *far) run(ctx context.Context, c *catching) error {
	err := c.read(ctx)
	if err != nil || len(c.back) == 0 {
		return err
	}

	back := *c
	back.late, back.back, back.leaves = c.back, nil, false

	return back.read(ctx)
}

// store has the watch make a commit, in parts: what a part stores keeps the watch waiting. What comes after it is
// read again when the pass ends between two.
func (f *far) store(ctx context.Context, _ *blocks, c ledger.SlotCommit) error {
	for some := range slices.Chunk(c.Events, farPart) {
		if err := f.storePart(ctx, ledger.SlotCommit{Events: some}); err != nil {
			return err
		}
	}

	for some := range slices.Chunk(c.Progress, farPart) {
		if err := f.storePart(ctx, ledger.SlotCommit{Progress: some}); err != nil {
			return err
		}
	}

	return nil
}

// storePart has the watch make a commit.
func (f *far) storePart(ctx context.Context, c ledger.SlotCommit) error {
	stored := make(chan error, 1)
	select {
	case f.turns <- turn{c, stored}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	select {
	case err := <-stored:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// channels are those on which a pass speaks to the watch; nil without a pass.
func (f *far) channels() (turns <-chan turn, ended <-chan error) {
	if f == nil {
		return nil, nil
	}

	return f.turns, f.ended
}

// giveTurn makes the commit that a pass waits for, if it does.
func (w *SlotWatch) giveTurn(ctx context.Context) error {
	f := w.aside
	if f == nil {
		return nil
	}

	if f.waiting == nil {
		select {
		case t := <-f.turns:
			f.waiting = &t
		default:
			return nil
		}
	}

	t := f.waiting
	f.waiting = nil
	t.Epoch, t.From, t.To = w.held.Epoch, w.at, w.at
	err := w.store(ctx, t.SlotCommit)
	t.stored <- err

	return err
}

// farEnded handles the end of a pass.
func (w *SlotWatch) farEnded(ctx context.Context, err error) {
	w.aside.cancel()
	if w.skip = 0; err != nil {
		w.skip = w.aside.above
	}

	w.aside = nil
	w.report(0)
	w.told = true // look again
	if err != nil && ctx.Err() == nil {
		w.cfg.Log.Log(ctx, w.level(err), "escrows far behind not caught up, trying again", slog.Any("err", err))
	}
}

// endFar ends a pass, and waits for it.
func (w *SlotWatch) endFar() {
	if w.aside == nil {
		return
	}

	w.aside.cancel()
	<-w.aside.ended
	w.aside = nil
}
