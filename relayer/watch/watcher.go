package watch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

// watcher is common to the two watches. quiet, heard and refused change; they belong to the
// goroutine of the watch.
type watcher struct {
	common *Config
	spans  spans
	quiet  quiet

	heard   logging.Repeats // why it retried
	refused refusals
}

func newWatcher(cfg *Config, name string) watcher {
	return watcher{common: cfg, spans: newSpans(cfg.Tracer, name)}
}

// read lets a line gather and commit a range of blocks, until stop is closed.
func (w *watcher) read(ctx context.Context, line *overlap, from int64, to uint64, filter *chain.Filter,
	stop <-chan struct{}) error {
	r := startReading(ctx, w.common.Source, uint64(from), to, filter)
	defer r.end()
	err := line.run(ctx, r, stop)
	w.quiet.left = line.left

	return err
}

// behind reports whether there are blocks to process from a position on.
func behind(view chain.View, at ledger.Position) bool {
	return view.Ready && int64(view.Target) >= at.Next
}

// failed handles an error after which a watch restarts from the cursor in the database.
func (w *watcher) failed(ctx context.Context, at ledger.Position, err error) {
	if errors.Is(err, ledger.ErrMoved) {
		w.common.Log.DebugContext(ctx, "cursor moved, looking again", slog.Int64("block", at.Next), slog.Any("err", err))
		w.common.Metrics.commit(w.spans.watch, "moved", 0)

		return
	}

	w.common.Log.Log(ctx, w.level(err), "blocks not processed, trying again", slog.Int64("block", at.Next),
		slog.Any("err", err))
}

// sayAgain is how often the log repeats the reason of a retry.
const sayAgain = time.Minute

// level is the log level of an error that is retried, perhaps twice per second and for hours:
// repetitions, of any block, are for debugging only.
func (w *watcher) level(err error) slog.Level {
	if w.heard.Lately(err, time.Now(), sayAgain) {
		return slog.LevelDebug
	}

	return slog.LevelWarn
}

// storing is a commit to be made: its range and events, how to store them, and what to do
// afterwards.
type storing struct {
	from, to ledger.Position
	events   []contract.Event
	store    func(ctx context.Context, checked ledger.Block) (ledger.Result, error)
	stored   func(ctx context.Context, r *ledger.Result)
}

// prepare returns a commit, which may run in another goroutine, and the handler of its outcome.
func (w *watcher) prepare(ctx context.Context, s storing) (commit func() error, ended func(error) error) {
	ctx, span := w.spans.commit(ctx, len(s.events))
	start := time.Now()
	var took time.Duration
	var r ledger.Result
	commit = func() error {
		err := branched(ctx, w.common.Source, s.from, s.to.Next-1, func(known ledger.Block) (err error) {
			r, err = s.store(ctx, known)
			return unstored(err)
		})
		endSpan(span, err)
		took = time.Since(start)

		return err
	}

	return commit, func(err error) error {
		if refused := new(storeError); w.common.Stored != nil && errors.As(err, &refused) {
			w.common.Stored(err)
		}

		switch {
		case err == nil:
			w.common.Metrics.commit(w.spans.watch, "ok", took)
			w.accepted()
			s.stored(ctx, &r)
		case !errors.Is(err, ledger.ErrMoved):
			w.common.Metrics.commit(w.spans.watch, "error", took)
			err = w.refuse(ctx, s.from, err)
		}

		return err
	}
}

// prepareBlocks is prepare for blocks that were read; the commit becomes part of their trace.
func (w *watcher) prepareBlocks(ctx context.Context, b *blocks,
	s storing) (commit func() error, ended func(error) error) {
	ctx, span := w.spans.blocks(ctx, b)
	commit, committed := w.prepare(ctx, s)

	return commit, func(err error) error {
		err = committed(err)
		endSpan(span, err)
		if err == nil {
			w.quiet.stored = time.Now()
		}

		return err
	}
}

// gathering is the common part of both stages during one reading.
type gathering struct {
	group

	final int64           // the newest final block
	ahead ledger.Position // after the gathered batches
	since time.Time       // start of the wait for the next batch
}

// addBatch appends a batch, with its events and the time when it came.
func (g *gathering) addBatch(batch *chain.Batch, came time.Time, events []contract.Event) {
	g.add(g.ahead, batch, g.since, came)
	g.events = append(g.events, events...)
	g.ahead, g.since = g.to, time.Now()
}
