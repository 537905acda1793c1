package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// lateAtOnce is how many new escrows are admitted in one commit, unless SlotConfig says otherwise.
const lateAtOnce = 5000

// Holder says which slots this instance holds.
type Holder interface {
	// Settled returns what is held, waiting for a change of it that is under way in the database.
	Settled() (partition.Holding, <-chan struct{})
}

// Publisher sends what was committed.
type Publisher interface {
	Offer(epoch int64, rows []outbox.Pending)
	Reload()
	Quiesce(ctx context.Context, slots []int16) error
	Resume(slots []int16, epoch int64)
}

// SlotConfig configures a SlotWatch. All fields are required, apart from LateAtOnce and Tracer.
type SlotConfig struct {
	Source        Source
	Ledger        *ledger.Ledger
	DB            registry.DB
	Holder        Holder
	Publisher     Publisher
	ABI           *contract.ABI
	Filters       *Filters
	ChainID       int64
	DiscoveryWait time.Duration   // how long a commit waits for the factory watch to pass its block
	Discovered    <-chan struct{} // fires when the factory watch has committed
	LateAtOnce    int             // new escrows that are admitted in one commit; 0: 5,000
	Log           *slog.Logger
	Metrics       *Metrics
	Tracer        trace.Tracer // nil: none
}

// SlotWatch commits the events of the escrows in this instance's slots.
type SlotWatch struct {
	cfg    SlotConfig
	spans  spans
	status atomic.Pointer[SlotStatus]

	// Of the goroutine that runs it:
	held       partition.Holding
	book       *book
	at         ledger.Position
	generation int64 // of the positions that the publisher has followed; -1: it has followed none
	leaderless int64 // factory cursor at which waiting for discovery was in vain; 0: it was not
}

// SlotStatus is where a slot watch stands.
type SlotStatus struct {
	Next    int64 // block; 0 while it holds nothing
	Time    time.Time
	Escrows int
	Late    int
	Slots   int
	Unread  error     // why the next blocks cannot be read; nil: they can, or nothing is held
	Since   time.Time // since when
}

// NewSlotWatch returns a watch; Run starts it.
func NewSlotWatch(cfg SlotConfig) *SlotWatch {
	cfg.LateAtOnce = cmp.Or(cfg.LateAtOnce, lateAtOnce)
	w := &SlotWatch{cfg: cfg, spans: newSpans(cfg.Tracer, "slots"), generation: -1}
	w.status.Store(&SlotStatus{})

	return w
}

// Status may be called from any goroutine.
func (w *SlotWatch) Status() SlotStatus { return *w.status.Load() }

// Run watches until ctx ends (nil), or until the right to commit is over (ErrFenced: join again).
func (w *SlotWatch) Run(ctx context.Context) error {
	delays := retry()
	for ctx.Err() == nil {
		held, changed := w.cfg.Holder.Settled()
		before := w.at
		err := w.serve(ctx, held, changed)
		if reorg := new(reorgError); errors.As(err, &reorg) {
			err = rollback(ctx, w.cfg.Source, w.cfg.Ledger, reorg.stale, w.cfg.Metrics, w.cfg.Log)
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
		case errors.Is(err, ledger.ErrMoved):
			w.cfg.Log.DebugContext(ctx, "cursor moved, looking again", failed(w.at, err)...)
			w.cfg.Metrics.commit("slots", "moved", 0)
		default:
			w.cfg.Log.WarnContext(ctx, "blocks not processed, trying again", failed(w.at, err)...)
		}

		if w.at.Next > before.Next {
			delays.Reset()
		}

		pause(ctx, delays.NextBackOff(), changed)
	}

	return nil
}

// serve processes blocks while the holding stays as it is. It returns nil when the holding changed.
func (w *SlotWatch) serve(ctx context.Context, held partition.Holding, changed <-chan struct{}) (err error) {
	w.held = held
	if len(held.Slots) == 0 {
		w.book, w.at = nil, ledger.Position{}
		w.reading(ctx, nil)
		w.report(0)
		select {
		case <-changed:
		case <-ctx.Done():
		}

		return nil
	}

	if w.at, err = w.cfg.Ledger.SlotPosition(ctx, held.Epoch); err != nil {
		return err
	}

	if err := w.follow(ctx); err != nil {
		return err
	}

	view := w.cfg.Source.View()
	if w.book, err = loadBook(ctx, w.cfg.DB, w.cfg.ChainID, held.Slots, int64(view.Final)); err != nil {
		return err
	}

	w.cfg.Publisher.Reload()
	w.report(0)
	if err := checked(ctx, w.cfg.Source, w.at); err != nil {
		return err
	}

	for delays := retry(); ; {
		news := w.cfg.Source.Changed()
		view := w.cfg.Source.View()
		before := w.at
		if view.Ready && int64(view.Target) >= w.at.Next {
			err = w.advance(ctx, view, changed)
		} else {
			err = w.settle(ctx)
		}

		if w.at.Next > before.Next {
			delays.Reset()
		}

		if unread := new(readError); errors.As(err, &unread) && !errors.Is(err, source.ErrDisagree) {
			// What is known of the escrows stands: only the chain cannot be read, maybe for hours.
			w.cfg.Log.WarnContext(ctx, "blocks not read, trying again", failed(w.at, err)...)
			pause(ctx, delays.NextBackOff(), changed)
			err = nil
		}

		if err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		default:
		}

		if view = w.cfg.Source.View(); view.Ready && int64(view.Target) >= w.at.Next {
			continue
		}

		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		case <-news:
		case <-w.cfg.Discovered:
		}
	}
}

// follow waits after a rollback, and at the start of a tenure, until the publisher has nothing
// under way that it read before. From then on a row in the outbox that is not in doubt was not
// published: what has to be retracted can be told from what can be dropped, and what reappears can
// be put in its place.
func (w *SlotWatch) follow(ctx context.Context) error {
	if w.generation != w.at.Generation {
		if err := w.cfg.Publisher.Quiesce(ctx, w.held.Slots); err != nil {
			return fmt.Errorf("follow a rollback: %w", err)
		}

		w.cfg.Publisher.Resume(w.held.Slots, 0)
	}

	w.generation = w.at.Generation

	return nil
}

// advance reads on from the cursor and commits batch by batch. It returns nil where reading has to start anew.
func (w *SlotWatch) advance(ctx context.Context, view source.View, changed <-chan struct{}) error {
	w.cfg.Filters.update(w.book)
	filter, to, seen := w.cfg.Filters.Head(), view.Target, &w.cfg.Filters.heads
	if w.at.Next <= int64(view.Final) {
		filter, to, seen = w.cfg.Filters.ranged, min(view.Final, view.Target), &w.cfg.Filters.spans
	}

	if n := w.cfg.Filters.limit(seen); n > 0 {
		to = min(to, uint64(w.at.Next+n-1))
	}

	since := time.Now()
	for batch, err := range w.cfg.Source.Read(ctx, uint64(w.at.Next), to, filter) {
		w.reading(ctx, err)
		if err != nil {
			return &readError{err}
		}

		if !follows(&batch, w.at) {
			return &reorgError{w.at}
		}

		version := w.book.version
		traced, span := w.spans.blocks(ctx, since, &batch)
		joining, err := w.discover(traced, &batch)
		if err != nil {
			ended(span, err)
			return err
		}

		if filter.Addresses != nil && w.book.version != version {
			span.End()
			return nil // the batch was read without the escrows that have just come
		}

		err = w.commit(traced, &batch, joining, int64(view.Final), seen)
		ended(span, err)
		if err != nil {
			return err
		}

		since = time.Now()
		if filter.Addresses != nil && w.book.version != version || w.cfg.Filters.turned(seen, filter) {
			return nil
		}

		select {
		case <-changed:
			return nil
		default:
		}
	}

	return nil
}

// commit stores the events of one batch, admitting the escrows that join with it.
func (w *SlotWatch) commit(ctx context.Context, batch *source.Batch, joining []registry.Late, final int64,
	seen *chooser) error {
	join := make(map[common.Address]struct{}, len(joining))
	progress := make([]registry.Progress, len(joining))
	for i, l := range joining {
		join[l.Address] = struct{}{}
		progress[i] = registry.Progress{Address: l.Address, Monitored: int64(batch.To), CaughtUp: true}
	}

	foreign := 0
	events, err := decode(w.cfg.ABI, batch.Logs, func(l *types.Log) bool {
		if w.book.has(l.Address) {
			return true
		}

		_, ok := join[l.Address]
		if !ok {
			foreign++
		}

		return ok
	}, w.cfg.Metrics)
	if err != nil {
		return err
	}

	seen.learn(batch.Filter.Addresses != nil, int64(batch.To-batch.From)+1, foreign)
	err = w.store(ctx, ledger.SlotCommit{
		Epoch: w.held.Epoch, From: w.at, To: w.at.To(int64(batch.To)+1, batch.Last.Hash), Time: batch.Last.Time,
		Announce: joining, Progress: progress, Events: events,
	})
	if err != nil {
		return err
	}

	for _, l := range joining {
		w.book.add(l.Address)
	}

	w.ended(events)
	w.book.forget(final)
	w.report(0)

	return nil
}

// store commits, hands what is to be published to the publisher, and moves the position.
func (w *SlotWatch) store(ctx context.Context, c ledger.SlotCommit) (err error) {
	ctx, span := w.spans.commit(ctx, len(c.Events))
	defer func() { ended(span, err) }()
	start := time.Now()
	var r ledger.Result
	err = branched(ctx, w.cfg.Source, c.From, c.To.Next-1, func(known ledger.Block) (err error) {
		c.Checked = known
		r, err = w.cfg.Ledger.CommitSlots(ctx, c)
		return err
	})
	if err != nil {
		if !errors.Is(err, ledger.ErrMoved) {
			w.cfg.Metrics.commit("slots", "error", time.Since(start))
		}

		return err
	}

	w.cfg.Metrics.commit("slots", "ok", time.Since(start))
	w.cfg.Metrics.stored(r, c.Events, c.To.Next-c.From.Next)
	if c.To.Next > c.From.Next && c.Time > 0 {
		s := *w.status.Load()
		s.Time = time.Unix(int64(c.Time), 0)
		w.status.Store(&s)
	}

	w.at = c.To
	if r.Retracted > 0 || r.Revived > 0 {
		w.cfg.Publisher.Reload()
	}

	if len(r.Pending) > 0 {
		if sc := span.SpanContext(); sc.IsValid() {
			for i := range r.Pending {
				r.Pending[i].Trace = &sc
			}
		}

		w.cfg.Publisher.Offer(c.Epoch, r.Pending)
	}

	return nil
}

// ended notes releases and refunds.
func (w *SlotWatch) ended(events []contract.Event) {
	for i := range events {
		if e := &events[i]; e.Name == "EscrowReleased" || e.Name == "EscrowRefunded" {
			w.book.end(e.Escrow, int64(e.BlockNumber))
		}
	}
}

// reading notes whether blocks can be read: an instance whose nodes do not let it leaves its slots to another.
func (w *SlotWatch) reading(ctx context.Context, err error) {
	s := *w.status.Load()
	switch {
	case ctx.Err() != nil || (err == nil) == (s.Unread == nil):
		return
	case err == nil:
		s.Unread, s.Since = nil, time.Time{}
	default:
		s.Unread, s.Since = err, time.Now()
	}

	w.status.Store(&s)
}

func (w *SlotWatch) report(late int) {
	s := *w.status.Load()
	s.Next, s.Slots, s.Late, s.Escrows = w.at.Next, len(w.held.Slots), late, 0
	if w.book != nil {
		s.Escrows = len(w.book.addresses)
	}

	w.status.Store(&s)
	w.cfg.Metrics.slots(s)
}
