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
	quiet quiet // of the goroutine that serves the term
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

		// a position that was only read from the database is no progress
		moved := before != (ledger.Position{}) && at.Next > before.Next
		if moved || err == nil && w.cfg.Health() == nil {
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
			if !unread(err) {
				at = ledger.Position{}
			}
		default:
			delays.Reset()
			if view := w.cfg.Source.View(); view.Ready && int64(view.Target) >= at.Next && at.Next > 0 && !w.quiet.left {
				continue
			}

			pause(ctx, min(w.cfg.BeatEvery, time.Second), news)

			continue
		}

		if moved {
			delays.Reset()
		}

		pause(ctx, delay(delays, err))
	}

	return nil
}

// advance commits what there is to commit. A position without a block is read from the database
// first, and checked against the chain.
func (w *FactoryWatch) advance(ctx context.Context, epoch int64, at *ledger.Position) (err error) {
	w.quiet.left = false
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

	g := &factoryGathering{FactoryWatch: w, epoch: epoch, at: at, ahead: *at, since: time.Now(), filter: filter,
		final: int64(view.Final)}
	g.until = g.since.Add(w.cfg.BeatEvery)
	r := read(ctx, w.cfg.Source, uint64(at.Next), to, filter)
	defer r.end()
	line := &overlap{stage: g}
	err = line.run(ctx, r, nil)
	w.quiet.left = line.left

	return err
}

// factoryGathering is the stage of a factory watch in one reading. The fields of group and events
// are of the batches that were gathered since the last commit began.
type factoryGathering struct {
	*FactoryWatch

	epoch  int64
	at     *ledger.Position // behind the last commit that succeeded
	ahead  ledger.Position  // behind what was gathered
	since  time.Time        // what comes next is waited for since then
	until  time.Time        // then the leader has to beat; reading goes on at once
	filter *source.Filter
	final  int64 // block

	group
	events []contract.Event
}

func (g *factoryGathering) gathered() (some, enough bool) {
	return g.batches > 0, len(g.events) >= enoughEvents || g.batches >= enoughBlocks
}

// waits holds only by topics: every instance waits for the factory cursor with a block that has a log
// of its escrows, and by addresses the leader does not see those of others.
func (g *factoryGathering) waits(ended bool) bool {
	return g.filter.Addresses == nil && g.quiet.waits(&g.group, g.final, ended)
}

// gather picks and decodes the factory's deployments. Other events of its ABI concern no escrow.
func (g *factoryGathering) gather(_ context.Context, batch *source.Batch) (bool, error) {
	if !follows(batch, g.ahead) {
		return false, &reorgError{g.ahead}
	}

	came := time.Now()
	events, err := decode(g.cfg.ABI, batch.Logs, func(l *types.Log) bool { return l.Address == g.cfg.Factory },
		g.cfg.Metrics)
	if err != nil {
		return false, err
	}

	g.add(g.ahead, batch, g.since, came)
	for _, e := range events {
		if e.Name == contract.Deployed {
			g.events = append(g.events, e)
		}
	}

	g.ahead, g.since = g.to, time.Now()

	return g.since.Before(g.until), nil
}

// take makes a commit of what was gathered.
func (g *factoryGathering) take(ctx context.Context) (commit func() error, landed func(error) error) {
	c := ledger.FactoryCommit{Epoch: g.epoch, From: g.from, To: g.to, Inside: g.inside, Events: g.events}
	ctx, blocks := g.spans.blocks(ctx, &g.group)
	ctx, span := g.spans.commit(ctx, len(c.Events))
	g.group, g.events = group{}, nil

	start := time.Now()
	var took time.Duration
	var r ledger.Result
	commit = func() error {
		err := branched(ctx, g.cfg.Source, c.From, c.To.Next-1, func(known ledger.Block) (err error) {
			c.Checked = known
			r, err = g.cfg.Ledger.CommitFactory(ctx, c)
			return err
		})
		ended(span, err)
		took = time.Since(start)

		return err
	}

	return commit, func(err error) error {
		ended(blocks, err)
		if err != nil {
			if !errors.Is(err, ledger.ErrMoved) {
				g.cfg.Metrics.commit("factory", "error", took)
			}

			return err
		}

		g.quiet.stored = time.Now()
		g.cfg.Metrics.commit("factory", "ok", took)
		g.stored(ctx, &c, &r)

		return nil
	}
}

// stored takes in a commit that succeeded.
func (g *factoryGathering) stored(ctx context.Context, c *ledger.FactoryCommit, r *ledger.Result) {
	g.cfg.Metrics.stored(*r, c.Events, 0)
	*g.at = c.To
	g.next.Store(c.To.Next)
	if len(c.Events) > 0 {
		g.cfg.Log.DebugContext(ctx, "escrows discovered", slog.Int("escrows", len(c.Events)),
			slog.Int64("block", c.To.Next-1))
	}
}
