package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

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
	book       *book           // while a commit runs: as if it had succeeded, and what was gathered behind it
	at         ledger.Position // behind the last commit that succeeded
	generation int64           // of the positions that the publisher has followed; -1: it has followed none
	gaveUpAt   int64           // factory cursor at which the wait for discovery was given up; 0: it was not
	quiet      quiet
	told       bool  // the factory watch has committed since new escrows were looked for
	complete   int64 // escrows that are deployed below this block are in the book, if they are ours
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
func (w *SlotWatch) serve(ctx context.Context, held partition.Holding, changed <-chan struct{}) error {
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

	if err := w.load(ctx); err != nil {
		return err
	}

	known := false // that the position is on the chain
	for delays := retry(); ; {
		news, before := w.cfg.Source.Changed(), w.at
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

		if is := new(readError); errors.As(err, &is) { // what is known of the escrows is not in question
			known = known && !errors.Is(err, source.ErrDisagree)
			w.cfg.Log.WarnContext(ctx, "blocks not read, trying again", failed(w.at, err)...)
			pause(ctx, delay(delays, err), changed)
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

// load reads where the slots stand and which escrows they have. The publisher reads its rows anew.
func (w *SlotWatch) load(ctx context.Context) (err error) {
	if w.at, err = w.cfg.Ledger.SlotPosition(ctx, w.held.Epoch); err != nil {
		return err
	}

	if err := w.follow(ctx); err != nil {
		return err
	}

	view := w.cfg.Source.View()
	if w.book, err = loadBook(ctx, w.cfg.DB, w.cfg.ChainID, w.held.Slots, int64(view.Final)); err != nil {
		return err
	}

	w.complete = 0
	w.cfg.Publisher.Reload()
	w.report(0)

	return nil
}

// check makes sure that the position is on the chain.
func (w *SlotWatch) check(ctx context.Context) error {
	err := checked(ctx, w.cfg.Source, w.at)
	if reorg := new(reorgError); err == nil || errors.As(err, &reorg) {
		return err
	}

	return &readError{err}
}

// step processes the blocks that there are, and new escrows where there is no block or the factory
// watch says that it has committed.
func (w *SlotWatch) step(ctx context.Context, changed <-chan struct{}) error {
	if view := w.cfg.Source.View(); w.behind(view) {
		if err := w.advance(ctx, view, changed); err != nil || !w.told {
			return err
		}
	}

	w.told = false

	return w.settle(ctx)
}

// rest waits until there is something to process, and says whether the holding, or ctx, is over.
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
	case w.behind(w.cfg.Source.View()):
		due = time.After(0)
	}

	select {
	case <-ctx.Done():
		return true
	case <-changed:
		return true
	case <-w.cfg.Discovered:
		w.told = true
	case <-news:
	case <-due:
	}

	return false
}

// behind says whether there are blocks to process.
func (w *SlotWatch) behind(view source.View) bool {
	return view.Ready && int64(view.Target) >= w.at.Next
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

	r := read(ctx, w.cfg.Source, uint64(w.at.Next), to, filter)
	line := w.gathering(int64(view.Final), seen)
	err := line.run(ctx, r, changed)
	w.quiet.left = line.left
	r.end()
	if err != nil && err == r.err { //nolint:errorlint // this reading's error, not one of its kind
		w.reading(ctx, err)
	}

	return err
}

// store commits, and takes in what came of it.
func (w *SlotWatch) store(ctx context.Context, c ledger.SlotCommit) error {
	commit, landed := w.prepare(ctx, c)
	return landed(commit())
}

// prepare returns a commit, which may run in another goroutine, and landed, which takes in what
// came of it: it hands what is to be published to the publisher and moves the position.
func (w *SlotWatch) prepare(ctx context.Context, c ledger.SlotCommit) (commit func() error, landed func(error) error) {
	ctx, span := w.spans.commit(ctx, len(c.Events))
	start := time.Now()
	var took time.Duration
	var r ledger.Result
	commit = func() error {
		err := branched(ctx, w.cfg.Source, c.From, c.To.Next-1, func(known ledger.Block) (err error) {
			c.Checked = known
			r, err = w.cfg.Ledger.CommitSlots(ctx, c)
			return err
		})
		ended(span, err)
		took = time.Since(start)

		return err
	}

	return commit, func(err error) error {
		if err != nil {
			if !errors.Is(err, ledger.ErrMoved) {
				w.cfg.Metrics.commit("slots", "error", took)
			}

			return err
		}

		w.cfg.Metrics.commit("slots", "ok", took)
		w.stored(&c, &r, span.SpanContext())

		return nil
	}
}

// stored takes in a commit that succeeded.
func (w *SlotWatch) stored(c *ledger.SlotCommit, r *ledger.Result, traced trace.SpanContext) {
	w.cfg.Metrics.stored(*r, c.Events, c.To.Next-c.From.Next)
	if c.To.Next > c.From.Next && c.Time > 0 {
		s := *w.status.Load()
		s.Time = time.Unix(int64(c.Time), 0)
		w.status.Store(&s)
	}

	w.at = c.To
	if r.Retracted+r.Revived+r.Dropped > 0 { // rows that waited for that are sent, or gone
		w.cfg.Publisher.Reload()
	}

	if len(r.Pending) > 0 {
		if traced.IsValid() {
			for i := range r.Pending {
				r.Pending[i].Trace = &traced
			}
		}

		w.cfg.Publisher.Offer(c.Epoch, r.Pending)
	}
}

// ended notes releases and refunds.
func (w *SlotWatch) ended(events []contract.Event) {
	for i := range events {
		if e := &events[i]; e.Ends() {
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
		s.Escrows = w.book.addresses.len()
	}

	w.status.Store(&s)
	w.cfg.Metrics.slots(s)
}
