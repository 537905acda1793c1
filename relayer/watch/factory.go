package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// FactoryConfig configures a FactoryWatch. All fields are required, apart from Tracer.
type FactoryConfig struct {
	Source      Source
	Ledger      *ledger.Ledger
	ABI         *contract.ABI
	Filters     *Filters
	Factory     common.Address
	BeatEvery   time.Duration // how often the leader says that it makes its rounds
	ResignAfter time.Duration // a leader that has had an error or no block to process from its node for so long resigns
	Health      func() error  // of the node
	Log         *slog.Logger
	Metrics     *Metrics
	Tracer      trace.Tracer // nil: none
}

// FactoryWatch records the escrows that the factory deploys. It serves one term after another.
type FactoryWatch struct {
	cfg   FactoryConfig
	spans spans
	next  atomic.Int64
}

// ErrNoProgress means that the leader's node has not let it go on for too long; somebody else should lead.
var ErrNoProgress = errors.New("the node does not let this leader go on")

// NewFactoryWatch returns a watch; Run starts it.
func NewFactoryWatch(cfg FactoryConfig) *FactoryWatch {
	return &FactoryWatch{cfg: cfg, spans: newSpans(cfg.Tracer, "factory")}
}

// Next is the next block of the watch; 0 before the first term. It may be called from any goroutine.
func (w *FactoryWatch) Next() int64 { return w.next.Load() }

// Run serves one term: it commits under the epoch until ctx ends (nil), the epoch is over
// (ErrFenced), or the node has not let it go on for ResignAfter (ErrNoProgress). beat is called
// every BeatEvery; its error ends the term.
func (w *FactoryWatch) Run(ctx context.Context, epoch int64, beat func(context.Context) error) error {
	delays := retry()
	healthy := time.Now()
	var beaten time.Time
	at := ledger.Position{}
	for ctx.Err() == nil {
		if time.Since(beaten) >= w.cfg.BeatEvery {
			if err := beat(ctx); err != nil {
				return err
			}

			beaten = time.Now()
		}

		news := w.cfg.Source.Changed()
		before := at
		err := w.advance(ctx, epoch, &at)
		if reorg := new(reorgError); errors.As(err, &reorg) {
			err = rollback(ctx, w.cfg.Source, w.cfg.Ledger, reorg.stale, w.cfg.Metrics, w.cfg.Log)
			at = ledger.Position{}
		}

		if at.Next > before.Next || err == nil && w.cfg.Health() == nil {
			healthy = time.Now()
		}

		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ledger.ErrFenced):
			return err
		case time.Since(healthy) > w.cfg.ResignAfter:
			return fmt.Errorf("%w for %s: %w", ErrNoProgress, w.cfg.ResignAfter, errors.Join(err, w.cfg.Health()))
		case errors.Is(err, ledger.ErrMoved):
			at = ledger.Position{}
			w.cfg.Metrics.commit("factory", "moved", 0)
		case err != nil:
			w.cfg.Log.WarnContext(ctx, "factory not watched, trying again", failed(at, err)...)
			at = ledger.Position{}
		default:
			delays.Reset()
			if view := w.cfg.Source.View(); view.Ready && int64(view.Target) >= at.Next && at.Next > 0 {
				continue
			}

			pause(ctx, min(w.cfg.BeatEvery, time.Second), news)

			continue
		}

		pause(ctx, delays.NextBackOff())
	}

	return nil
}

// advance commits what there is to commit. A position without a block is read from the database
// first, and checked against the chain.
func (w *FactoryWatch) advance(ctx context.Context, epoch int64, at *ledger.Position) (err error) {
	if *at == (ledger.Position{}) {
		if *at, err = w.cfg.Ledger.FactoryPosition(ctx, epoch); err != nil {
			return err
		}

		w.next.Store(at.Next)
		if err := checked(ctx, w.cfg.Source, *at); err != nil {
			return err
		}
	}

	view := w.cfg.Source.View()
	if !view.Ready || int64(view.Target) < at.Next {
		return nil
	}

	filter, to := w.cfg.Filters.Head(), view.Target
	if at.Next <= int64(view.Final) {
		filter, to = w.cfg.Filters.Factory(), min(view.Final, view.Target)
	}

	started := time.Now()
	since := started
	for batch, err := range w.cfg.Source.Read(ctx, uint64(at.Next), to, filter) {
		if err != nil {
			return err
		}

		if !follows(&batch, *at) {
			return &reorgError{*at}
		}

		traced, span := w.spans.blocks(ctx, since, &batch)
		err = w.commit(traced, epoch, &batch, at)
		ended(span, err)
		if err != nil {
			return err
		}

		since = time.Now()
		if time.Since(started) >= w.cfg.BeatEvery {
			return nil // to beat; reading goes on at once
		}
	}

	return nil
}

func (w *FactoryWatch) commit(ctx context.Context, epoch int64, batch *source.Batch, at *ledger.Position) (err error) {
	events, err := decode(w.cfg.ABI, batch.Logs, func(l *types.Log) bool { return l.Address == w.cfg.Factory },
		w.cfg.Metrics)
	if err != nil {
		return err
	}

	deployed := events[:0]
	for _, e := range events {
		if e.Name != ledger.Deployed {
			continue // the factory may emit other events of its ABI; they concern no escrow
		}

		deployed = append(deployed, e)
	}

	start := time.Now()
	ctx, span := w.spans.commit(ctx, len(deployed))
	defer func() { ended(span, err) }()
	var r ledger.Result
	to := at.To(int64(batch.To)+1, batch.Last.Hash)
	err = branched(ctx, w.cfg.Source, *at, int64(batch.To), func(known ledger.Block) (err error) {
		r, err = w.cfg.Ledger.CommitFactory(ctx, ledger.FactoryCommit{Epoch: epoch, From: *at, To: to, Checked: known,
			Events: deployed})
		return err
	})
	if err != nil {
		if !errors.Is(err, ledger.ErrMoved) {
			w.cfg.Metrics.commit("factory", "error", time.Since(start))
		}

		return err
	}

	w.cfg.Metrics.commit("factory", "ok", time.Since(start))
	w.cfg.Metrics.stored(r, deployed, 0)
	*at = to
	w.next.Store(at.Next)
	if len(deployed) > 0 {
		w.cfg.Log.DebugContext(ctx, "escrows discovered", slog.Int("escrows", len(deployed)), slog.Int64("block", at.Next-1))
	}

	return nil
}
