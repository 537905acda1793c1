package watch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// lateAtOnce is how many late escrows one commit admits, unless SlotConfig overrides it.
const lateAtOnce = 5000

// Holder knows which slots this instance holds.
type Holder interface {
	// Settled returns the holding, after any change that is under way in the database.
	Settled() (partition.Holding, <-chan struct{})
}

// Publisher sends committed messages.
type Publisher interface {
	Offer(c outbox.Commit)
	Reload(right outbox.Right, slots []int16)
}

// SlotConfig configures a SlotWatch. All fields are required, except LateAtOnce and Near.
type SlotConfig struct {
	Config

	DB         registry.DB
	Holder     Holder
	Publisher  Publisher
	ChainID    int64
	Discovered <-chan struct{} // fires when there are new late escrows, or what was read is void
	Requested  <-chan struct{} // fires when there are new requests: see package ledger
	LateAtOnce int             // late escrows that one commit admits; 0: 5,000
	Near       int64           // blocks that a late escrow may be behind to be caught up at once; 0: 32
}

// SlotStatus is the progress of a slot watch.
type SlotStatus struct {
	Next    int64 // block; 0 without slots
	Time    time.Time
	Escrows int
	Unread  error     // why the next blocks cannot be read; nil: they can, or there are no slots
	Since   time.Time // since when
}

// SlotWatch commits the events of the escrows in this instance's slots. Everything but status and start belongs to
// the goroutine that runs it. held, book and at are read together at the start of a tenure; then each successful commit
// moves at. While a commit runs, book assumes its success, and that of what was gathered behind it.
type SlotWatch struct {
	watcher

	cfg    SlotConfig
	status atomic.Pointer[SlotStatus]

	held  partition.Holding
	mine  map[int16]bool // the slots that are held
	book  *book
	at    ledger.Position // after the last successful commit
	start atomic.Int64    // first block of the chain; a pass over far escrows reads it

	told   bool      // there may be late escrows, or another position
	looked time.Time // for late escrows
	asked  bool      // there are requests to serve at once
	open   bool      // as of the last commit, there is work without a new block

	aside *far  // the pass over far escrows; nil: none
	skip  int64 // the next one begins here: nodes may lack what one that failed read

	births bool // the ABI has EscrowCreated
	// strangers of own slots have emitted under our topics and are not followed; nil unless all of them are known, since
	// START_BLOCK. Where the ABI lacks EscrowCreated, they show which new escrows are older than their deployment.
	strangers map[common.Address]bool
}

// Status may be called from any goroutine.
func (w *SlotWatch) Status() SlotStatus { return *w.status.Load() }

// store commits, and handles the outcome.
func (w *SlotWatch) store(ctx context.Context, c ledger.SlotCommit) error {
	commit, ended := w.prepare(ctx, w.storing(c))
	return ended(commit())
}

// storing is a commit of the slots.
func (w *SlotWatch) storing(c ledger.SlotCommit) storing {
	return storing{
		from: c.From, to: c.To, events: c.Events,
		store: func(ctx context.Context, checked ledger.Block) (ledger.Result, error) {
			c.Checked = checked
			return w.cfg.Ledger.CommitSlots(ctx, c)
		},
		stored: func(ctx context.Context, r *ledger.Result) { w.stored(ctx, &c, r) },
	}
}

// stored handles a successful commit.
func (w *SlotWatch) stored(ctx context.Context, c *ledger.SlotCommit, r *ledger.Result) {
	w.cfg.Metrics.stored(*r, c.Events, c.To.Next-c.From.Next)
	if c.To.Next > c.From.Next && c.Time > 0 {
		s := w.Status()
		s.Time = time.Unix(int64(c.Time), 0)
		w.status.Store(&s)
	}

	w.at = c.To
	w.asked, w.open = r.More, r.Open
	w.told = w.told || r.Served
	if traced := trace.SpanContextFromContext(ctx); traced.IsValid() {
		for _, rows := range [][]outbox.Pending{r.Log, r.Pending} {
			for i := range rows {
				rows[i].Trace = &traced
			}
		}
	}

	w.cfg.Publisher.Offer(outbox.Commit{Right: w.right(), From: c.From.Next, Next: c.To.Next, Log: r.Log, Rows: r.Pending})
}

// right is what the watch commits under.
func (w *SlotWatch) right() outbox.Right {
	return outbox.Right{Epoch: w.held.Epoch, Generation: w.at.Generation}
}

// noteEndings records releases and refunds.
func (w *SlotWatch) noteEndings(events []contract.Event) {
	for i := range events {
		if e := &events[i]; e.Ends() {
			w.book.end(e.Escrow, int64(e.BlockNumber))
		}
	}
}

// noteReading records whether blocks can be read: an instance that its nodes block leaves its slots
// to another.
func (w *SlotWatch) noteReading(ctx context.Context, err error) {
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

// report publishes the position of the watch, and the number of escrows being caught up.
func (w *SlotWatch) report(late int) {
	s := *w.status.Load()
	s.Next, s.Escrows = w.at.Next, 0
	if w.book != nil {
		s.Escrows = len(w.book.escrows)
	}

	w.status.Store(&s)
	if w.aside != nil {
		late += w.aside.late
	}

	w.cfg.Metrics.slots(s.Escrows, late)
}
