package watch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// PastWatch reads what factories deployed before they were added, beside the factory watch, range by range,
// each committed with the factory's own cursor, so that it goes on after a crash. The
// escrows that it discovers go the way of late escrows. It serves one term after another.
type PastWatch struct {
	watcher

	cfg  FactoryConfig
	last common.Address // the factory whose past was read last
}

// NewPastWatch returns a watch; Run starts it. It looks for added factories every BeatEvery, since the
// factory watch learns of one with its next commit only, and a chain may have no new block.
func NewPastWatch(cfg FactoryConfig) *PastWatch {
	w := &PastWatch{cfg: cfg}
	w.cfg.Stored = nil // the factory watch tells what the database accepts
	w.watcher = newWatcher(&w.cfg.Config, "past")

	return w
}

// Run serves one term, until ctx ends (nil). Its reading can wait: what is read at the head goes before it
// where an endpoint limits its rate.
func (w *PastWatch) Run(ctx context.Context, epoch int64) error {
	defer w.accepted()
	ctx = chain.Later(ctx)
	var looked time.Time
	for delays := retry(); ctx.Err() == nil; {
		news, began := w.cfg.Source.Changed(), time.Now()
		f, due := w.next()
		if !due && time.Since(looked) < w.cfg.BeatEvery {
			pause(ctx, w.cfg.BeatEvery-time.Since(looked), news)
			continue
		}

		var err error
		if due {
			err = w.read(ctx, epoch, f)
		}

		if reorg := new(reorgError); errors.As(err, &reorg) {
			err = rollback(ctx, w.common, reorg.stale)
		}

		looked = time.Now()
		err = errors.Join(err, w.cfg.Ledger.Follow(ctx, w.cfg.Filters.followed))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			w.failed(ctx, ledger.Position{Next: f.Past}, err)
			pause(ctx, delay(delays, err, began), nil)
		default:
			delays.Reset()
		}
	}

	return nil
}

// next is a factory with a block of its past that may be read. They take turns, since nodes may lack one's past.
func (w *PastWatch) next() (registry.Factory, bool) {
	list := w.cfg.Filters.followed.List()
	after := 1 + slices.IndexFunc(list, func(f registry.Factory) bool { return f.Address == w.last })
	for _, f := range slices.Concat(list[after:], list[:after]) {
		if f.Past < f.Until && f.Past <= int64(w.cfg.Source.View().Target) {
			w.last = f.Address
			return f, true
		}
	}

	return registry.Factory{}, false
}

// read reads the past of a factory, and commits it batch by batch.
func (w *PastWatch) read(ctx context.Context, epoch int64, f registry.Factory) error {
	to := min(uint64(f.Until-1), w.cfg.Source.View().Target)
	filter := &chain.Filter{Topics: w.cfg.ABI.FactoryTopics(), Addresses: []common.Address{f.Address}}
	at, err := w.cfg.Ledger.FactoryPosition(ctx, epoch)
	if err != nil {
		return unstored(err)
	}

	at = at.To(f.Past, common.Hash{})
	for batch, err := range w.cfg.Source.Read(ctx, uint64(f.Past), to, filter) {
		if err != nil {
			return &readError{err}
		}

		events, err := decode(w.cfg.ABI, batch.Logs, true, func(l *types.Log) (common.Address, bool) {
			return l.Address, l.Address == f.Address
		}, w.cfg.Metrics)
		if err != nil {
			return err
		}

		if at, err = w.commit(ctx, epoch, at, &batch, events); err != nil {
			return err
		}

		if err := w.cfg.Ledger.Follow(ctx, w.cfg.Filters.followed); err != nil { // how far it is read
			return err
		}
	}

	return nil
}

// commit stores a batch, and returns the position after it.
func (w *PastWatch) commit(ctx context.Context, epoch int64, from ledger.Position, batch *chain.Batch,
	events []contract.Event) (to ledger.Position, err error) {
	to = from.To(int64(batch.To)+1, batch.Last.Hash)
	c := ledger.PastCommit{Epoch: epoch, Factory: batch.Filter.Addresses[0], From: from, To: to, Events: events}
	commit, ended := w.prepare(ctx, storing{
		from: from, to: to, events: events,
		store: func(ctx context.Context, checked ledger.Block) (ledger.Result, error) {
			c.Checked = checked
			return w.cfg.Ledger.CommitPast(ctx, c)
		},
		stored: func(ctx context.Context, r *ledger.Result) {
			w.cfg.Metrics.stored(*r, events, 0)
			w.cfg.Log.DebugContext(ctx, "past of a factory read", slog.String("factory", c.Factory.Hex()),
				slog.Int64("block", to.Next-1), slog.Int("escrows", len(events)))
		},
	})

	return to, ended(commit())
}
