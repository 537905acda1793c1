package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// FactoryConfig configures a FactoryWatch and a PastWatch. All fields are required.
type FactoryConfig struct {
	Config

	BeatEvery   time.Duration // pause between two heartbeats of the leader
	ResignAfter time.Duration // a leader without progress for this long, because of its node, resigns
	Health      func() error  // of the node
}

// FactoryWatch reads what the factories deploy, and registers what the owners of slots have passed without
// it. It serves one term after another.
type FactoryWatch struct {
	watcher

	cfg  FactoryConfig
	next atomic.Int64
}

// ErrNoProgress means that the leader has been without progress for too long: its node blocks it,
// or its commits fail, as the wrapped error tells. Another instance should lead.
var ErrNoProgress = errors.New("this leader has not gone on")

// NewFactoryWatch returns a watch; Run starts it.
func NewFactoryWatch(cfg FactoryConfig) *FactoryWatch {
	w := &FactoryWatch{cfg: cfg}
	w.watcher = newWatcher(&w.cfg.Config, "factory")

	return w
}

// Next is the next block of the watch; 0 before the first term. It may be called from any goroutine.
func (w *FactoryWatch) Next() int64 { return w.next.Load() }

// Run serves one term: it commits under the epoch until ctx ends (nil), the epoch is over
// (ErrFenced), or it has been without progress for ResignAfter (ErrNoProgress); a leader that is
// stuck at a block stays, since another one would meet the same. beat is called every BeatEvery;
// its error ends the term.
func (w *FactoryWatch) Run(ctx context.Context, epoch int64, beat func(context.Context) error) error {
	defer w.accepted()
	delays := retry()
	healthy := time.Now()
	var beaten time.Time
	at := ledger.Position{} // zero: to be read from the database
	for ctx.Err() == nil {
		if time.Since(beaten) >= w.cfg.BeatEvery {
			if err := beat(ctx); err != nil {
				return err
			}

			beaten = time.Now()
		}

		news, before, began := w.cfg.Source.Changed(), at, time.Now()
		err := w.advance(ctx, epoch, &at)
		if reorg := new(reorgError); errors.As(err, &reorg) {
			err, at = rollback(ctx, w.common, reorg.stale), ledger.Position{}
		}

		// reading a position from the database is no progress
		moved := before != (ledger.Position{}) && at.Next > before.Next
		if moved || w.Stuck() != nil || err == nil && w.cfg.Health() == nil {
			healthy = time.Now()
		}

		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ledger.ErrFenced):
			return err
		case time.Since(healthy) > w.cfg.ResignAfter && !errors.As(err, new(*storeError)):
			// another leader has the same database
			return fmt.Errorf("%w for %s: %w", ErrNoProgress, w.cfg.ResignAfter, errors.Join(err, w.cfg.Health()))
		case err != nil:
			w.failed(ctx, at, err)
			if !unread(err) {
				at = ledger.Position{}
			}

			if moved {
				delays.Reset()
			}

			pause(ctx, delay(delays, err, began), nil)
		default:
			delays.Reset()
			if at.Next == 0 || w.quiet.left || !behind(w.cfg.Source.View(), at) {
				pause(ctx, min(w.cfg.BeatEvery, time.Second), news)
			}
		}
	}

	return nil
}

// advance commits the available blocks. A zero position is first read from the database and checked
// against the chain.
func (w *FactoryWatch) advance(ctx context.Context, epoch int64, at *ledger.Position) (err error) {
	w.quiet.left = false
	if *at == (ledger.Position{}) {
		if *at, err = w.cfg.Ledger.FactoryPosition(ctx, epoch); err != nil {
			return unstored(err)
		}

		// After the position: a factory that was added in between has raised its generation.
		if err := w.cfg.Ledger.Follow(ctx, w.cfg.Filters.followed); err != nil {
			return unstored(err)
		}

		w.next.Store(at.Next)
		if err := checked(ctx, w.cfg.Source, *at); err != nil {
			return err
		}
	}

	view := w.cfg.Source.View()
	if !behind(view, *at) {
		w.accepted() // also where a commit was stored in spite of its error
		return nil
	}

	filter, to := w.cfg.Filters.FactoryHead(), view.Target
	if at.Next <= int64(view.Final) {
		filter, to = w.cfg.Filters.Factory(), min(view.Final, view.Target)
	}

	now := time.Now()
	g := &factoryGathering{w: w, gathering: gathering{final: int64(view.Final), ahead: *at, since: now},
		epoch: epoch, at: at, until: now.Add(w.cfg.BeatEvery)}

	err = w.read(ctx, &overlap{stage: g}, at.Next, to, filter, nil)
	if errors.As(err, new(*readError)) && w.cfg.Filters.Refused(ctx, filter, err, w.cfg.Log) {
		return nil
	}

	return err
}

// factoryGathering is the stage of a factory watch during one reading.
type factoryGathering struct {
	gathering

	w     *FactoryWatch
	epoch int64
	at    *ledger.Position // after the last successful commit
	until time.Time        // when the leader must beat; reading continues at once
}

func (g *factoryGathering) waits(ended bool) bool {
	return g.w.quiet.waits(&g.blocks, g.final, ended)
}

// gather selects and decodes the factory's deployments. Other events of its ABI concern no escrow.
func (g *factoryGathering) gather(_ context.Context, batch *chain.Batch) (bool, error) {
	if !batch.Follows(g.ahead.Hash) {
		return false, &reorgError{g.ahead}
	}

	came := time.Now()
	events, err := decode(g.w.cfg.ABI, batch.Logs, true, func(l *types.Log) (common.Address, bool) {
		return l.Address, g.w.cfg.Filters.followed.Has(l.Address, l.BlockNumber)
	}, g.w.cfg.Metrics)
	if err != nil {
		return false, err
	}

	events = slices.DeleteFunc(events, func(e contract.Event) bool { return e.Name != contract.Deployed })
	g.addBatch(batch, came, events)

	return g.since.Before(g.until), nil
}

// take makes a commit of the gathered blocks.
func (g *factoryGathering) take(ctx context.Context) (commit func() error, ended func(error) error) {
	was := g.group
	g.group = group{}
	c := ledger.FactoryCommit{Epoch: g.epoch, From: was.from, To: was.to, Inside: was.inside, Time: was.time,
		Events: was.events}

	return g.w.prepareBlocks(ctx, &was.blocks, storing{
		from: c.From, to: c.To, events: c.Events,
		store: func(ctx context.Context, checked ledger.Block) (ledger.Result, error) {
			c.Checked = checked
			return g.w.cfg.Ledger.CommitFactory(ctx, c)
		},
		stored: func(ctx context.Context, r *ledger.Result) { g.stored(ctx, &c, r) },
	})
}

// stored handles a successful commit.
func (g *factoryGathering) stored(ctx context.Context, c *ledger.FactoryCommit, r *ledger.Result) {
	g.w.cfg.Metrics.stored(*r, c.Events, 0)
	*g.at = c.To
	g.w.next.Store(c.To.Next)
	if len(c.Events) > 0 {
		g.w.cfg.Log.DebugContext(ctx, "escrows discovered", slog.Int("escrows", len(c.Events)),
			slog.Int64("block", c.To.Next-1))
	}
}
