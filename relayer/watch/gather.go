package watch

import (
	"context"
	"time"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// slotGathering is the stage of a slot watch in one reading. The fields of group, joining and
// events are of the batches that were gathered since the last commit began.
type slotGathering struct {
	*SlotWatch

	line  overlap
	final int64           // block
	seen  *chooser        // what it learns from
	ahead ledger.Position // behind what was gathered
	since time.Time       // what comes next is waited for since then

	group
	joining []registry.Late
	events  []contract.Event
}

// gathering begins at the position of the watch.
func (w *SlotWatch) gathering(final int64, seen *chooser) *overlap {
	g := &slotGathering{SlotWatch: w, final: final, seen: seen, ahead: w.at, since: time.Now()}
	g.line.stage = g

	return &g.line
}

func (g *slotGathering) gathered() (some, enough bool) {
	return g.batches > 0, len(g.events)+len(g.joining) >= enoughEvents || g.batches >= enoughBlocks
}

func (g *slotGathering) waits(ended bool) bool {
	return g.quiet.waits(&g.group, g.final, ended)
}

// gather admits the escrows that join with a batch, and picks and decodes the logs of those that are watched.
func (g *slotGathering) gather(ctx context.Context, batch *source.Batch) (bool, error) {
	g.reading(ctx, nil)
	if !follows(batch, g.ahead) {
		return false, &reorgError{g.ahead}
	}

	came, version := time.Now(), g.book.version
	joining, err := g.discover(ctx, batch, &g.line)
	if err != nil {
		return false, err
	}

	if batch.Filter.Addresses != nil && g.book.version != version {
		return false, nil // the batch was read without the escrows that have just come
	}

	for i := range joining {
		g.book.add(joining[i].Address)
	}

	foreign := 0
	events, err := decode(g.cfg.ABI, batch.Logs, func(l *types.Log) bool {
		ours := g.book.has(l.Address)
		if !ours {
			foreign++
		}

		return ours
	}, g.cfg.Metrics)
	if err != nil {
		return false, err
	}

	if !g.quiet.again(batch) {
		g.cfg.Filters.learn(g.seen, batch, foreign)
	}

	g.add(g.ahead, batch, g.since, came)
	g.joining = append(g.joining, joining...)
	g.events = append(g.events, events...)
	g.ahead, g.since = g.to, time.Now()
	g.ended(events)
	g.book.forget(g.final)
	anew := batch.Filter.Addresses != nil && g.book.version != version || g.cfg.Filters.turned(g.seen, batch.Filter)

	return !anew, nil
}

// take makes a commit of what was gathered.
func (g *slotGathering) take(ctx context.Context) (commit func() error, landed func(error) error) {
	c := ledger.SlotCommit{
		Epoch: g.held.Epoch, From: g.from, To: g.to, Inside: g.inside, Time: g.time, Announce: g.joining,
		Progress: make([]registry.Progress, len(g.joining)), Events: g.events,
	}
	for i := range g.joining {
		c.Progress[i] = registry.Progress{Address: g.joining[i].Address, Monitored: c.To.Next - 1, CaughtUp: true}
	}

	traced, span := g.spans.blocks(ctx, &g.group)
	g.group, g.joining, g.events = group{}, nil, nil
	commit, took := g.prepare(traced, c)

	return commit, func(err error) error {
		err = took(err)
		ended(span, err)
		if err == nil {
			g.quiet.stored = time.Now()
			g.report(0)
		}

		return err
	}
}

// join returns the escrows that join with a batch while a commit runs or waits, which may be
// admitting some that the registry still has as late. ok is false where that has to be waited for:
// where the factory watch has not passed the batch, and where escrows are to be admitted before it.
func (w *SlotWatch) join(ctx context.Context, batch *source.Batch) (joining []registry.Late, ok bool, err error) {
	d, err := w.cfg.Ledger.Discovered(ctx, w.cfg.LateAtOnce)
	if err != nil || d.Next <= int64(batch.To) || len(d.Late) == w.cfg.LateAtOnce {
		return nil, false, err
	}

	for _, l := range d.Late {
		if w.book.has(l.Address) {
			continue
		}

		if l.Next() < int64(batch.From) || batch.Filter.Addresses != nil {
			return nil, false, nil
		}

		joining = append(joining, l)
	}

	w.complete = d.Next

	return joining, true, nil
}
