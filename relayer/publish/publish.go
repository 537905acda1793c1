package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// ErrFenced means that the right to publish ended while Run was at it.
var ErrFenced = errors.New("fenced: the right to publish is over")

// Config of a Publisher. DB, Owner, Sender, Topics.Default and Metrics are required.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	Owner      string // instance id: the rows of its slots are published
	Sender     Sender
	Topics     pubsub.Topics
	OtherNames map[string]bool // events that go to Topics.Other
	BySlot     bool            // ordering key: the slot instead of the escrow; larger batches, less isolation
	// Valid says whether the right to publish still holds; it is asked before each request, concurrently. Nil: for ever.
	Valid func() bool
	// makes a span a message, whose context the message carries as the attribute traceparent. Nil:
	// none
	Tracer   trace.Tracer
	Log      *slog.Logger
	Metrics  *Metrics
	Handover *Handover           // from the tenure before. Nil: there was none
	Now      func() time.Time    // for the timestamps of messages. Nil: time.Now
	Mask     func(string) string // masks secrets in errors that Stats shows. Nil: nothing is masked
	Jitter   func() float64      // from 0 to 1, for the delays of blocked lanes. Nil: random
}

// Handover takes over from one tenure to the next what this process knows of the outbox and the
// database does not. One Publisher at a time uses it.
type Handover struct {
	acked  []outbox.Sent   // acknowledged, and not deleted because the database was gone: not to be sent again
	doubts map[int16]int64 // not written down: see outbox.Box.Doubt
	known  bool
}

// Known says whether a Publisher of this process has run. If none has, what the instance published
// in a former life is not known.
func (h *Handover) Known() bool { return h.known }

// Stats is what is under way.
type Stats struct {
	InFlight    int // messages sent and not acknowledged
	Undeleted   int // messages acknowledged whose rows are not deleted yet
	BlockedKeys int // ordering keys whose last publish failed
	// for how long the oldest message in hand has been tried, 0: there is none; up to a second old
	Oldest time.Duration
	Topics []TopicStats // that are configured
}

// TopicStats is how one topic fares.
type TopicStats struct {
	ID          string
	BlockedKeys int
	LastError   string    // of a publish, masked, with its gRPC code; empty: none failed
	LastErrorAt time.Time // zero: none failed
}

// Publisher publishes for one tenure. Run runs it, once; the other methods may be called from any
// goroutine, before and after too.
type Publisher struct {
	box    outbox.Box
	store  store // the box
	cfg    Config
	limits limits
	inbox  inbox
	told   told
}

// told is what the loop tells of itself. Any goroutine may read it.
type told struct {
	inFlight  atomic.Int64 // as of Stats
	undeleted atomic.Int64
	report    atomic.Pointer[report]
	settled   atomic.Bool // see Settled
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Publisher, error) {
	if cfg.DB == nil || cfg.Owner == "" || cfg.Sender == nil || cfg.Topics.Default == "" || cfg.Metrics == nil {
		return nil, errors.New("publish: DB, Owner, Sender, the default topic and Metrics are required")
	}

	if cfg.Valid == nil {
		cfg.Valid = func() bool { return true }
	}

	if cfg.Now == nil {
		cfg.Now = time.Now
	}

	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}

	if cfg.Mask == nil {
		cfg.Mask = func(s string) string { return s }
	}

	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	if cfg.Handover == nil {
		cfg.Handover = &Handover{}
	}

	box := outbox.Box{DB: cfg.DB, ChainID: cfg.ChainID, Owner: cfg.Owner, OtherNames: cfg.OtherNames, BySlot: cfg.BySlot}

	p := &Publisher{box: box, cfg: cfg, limits: defaultLimits,
		inbox: inbox{wake: make(chan struct{}, 1), ended: make(chan struct{})}}
	p.store = &p.box

	return p, nil
}

// Run publishes until ctx ends; then it takes nothing more, waits up to drainTimeout for what is
// under way, deletes the rows of what was acknowledged, and returns nil. It returns ErrFenced when
// Config.Valid says no. Trouble with Pub/Sub or the database never ends it.
func (p *Publisher) Run(ctx context.Context) error {
	defer close(p.inbox.ended)
	p.cfg.Handover.known = true
	l := newLoop(p, p.store)
	flights, cancel := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx, by the drain
	defer cancel()
	err := l.run(ctx, flights)
	l.drain(ctx, cancel)

	return err
}

// Offer hands over rows that were just committed under an epoch, in seq order, from one goroutine.
// It never blocks: what does not fit is in the outbox.
func (p *Publisher) Offer(epoch int64, rows []outbox.Pending) {
	if len(rows) == 0 {
		return
	}

	b := &p.inbox
	b.mu.Lock()
	b.offered = max(b.offered, rows[len(rows)-1].Seq)
	b.full = b.full || b.rows+len(rows) > p.limits.windowRows
	if !b.full { // else what comes next would overtake what was dropped
		b.offers, b.rows = append(b.offers, offer{epoch, rows}), b.rows+len(rows)
	}

	b.mu.Unlock()
	b.ring()
}

// Reload makes the publisher read the outbox from the start, and forget the rows that it has read
// and not sent yet: they may not be ours any more, or have been taken back.
func (p *Publisher) Reload() {
	p.inbox.mu.Lock()
	p.inbox.reload = true
	p.inbox.mu.Unlock()
	p.inbox.ring()
}

// Quiesce stops publishing for some slots and returns when they are at rest: nothing of them is
// under way, every acknowledged row is deleted, and what may have been sent is in the record of
// doubt. So a row that is in the outbox then, and not in doubt, was not published. Requests that
// take longer than drainTimeout are given up, and are in doubt. On an error, which comes when ctx
// ends first, the slots are published again.
func (p *Publisher) Quiesce(ctx context.Context, slots []int16) error {
	done := make(chan struct{})
	p.inbox.order(order{slots: slices.Clone(slots), done: done, patience: drainTimeout})
	select {
	case <-done:
		return nil
	case <-p.inbox.ended:
		if p.Settled() {
			return nil // Run has waited for what was under way
		}

		return fmt.Errorf("wait for the messages of %d slots: the database was not told what was sent", len(slots))
	case <-ctx.Done():
		p.Resume(slots, 0)
		return fmt.Errorf("wait for the messages of %d slots: %w", len(slots), context.Cause(ctx))
	}
}

// Resume publishes slots again that were quiesced. After they were released, epoch is the new one:
// what was offered before is left to whoever has them now.
func (p *Publisher) Resume(slots []int16, epoch int64) {
	p.inbox.order(order{slots: slices.Clone(slots), epoch: epoch})
}

// Settled says, once Run has ended, whether the database knows what may have been sent: then slots
// may be released. Else whoever claims them takes all of their rows for doubtful.
func (p *Publisher) Settled() bool { return p.told.settled.Load() }

// Stats returns what is under way.
func (p *Publisher) Stats() Stats {
	s := Stats{InFlight: int(p.told.inFlight.Load()), Undeleted: int(p.told.undeleted.Load())}
	if r := p.told.report.Load(); r != nil {
		s.Topics = slices.Clone(r.topics)
		s.BlockedKeys = r.blocked()
		if !r.oldest.IsZero() {
			s.Oldest = time.Since(r.oldest)
		}
	}

	return s
}

// report is what takes a look at every lane.
type report struct {
	topics []TopicStats
	oldest time.Time // since when the oldest message in hand is; zero: there is none
}

func (r *report) blocked() (n int) {
	for _, t := range r.topics {
		n += t.BlockedKeys
	}

	return n
}

// errorText is an error for people: its code, and its text, which comes from outside, masked and short.
func errorText(mask func(string) string, c codes.Code, err error) string {
	const most = 300
	text := []rune(mask(err.Error()))
	return c.String() + ": " + string(text[:min(len(text), most)])
}

// inbox is what others want of the loop.
type inbox struct {
	wake  chan struct{}
	ended chan struct{} // closed when Run has ended
	mu    sync.Mutex
	content
}

type content struct {
	offers  []offer
	rows    int   // in offers
	full    bool  // an offer was too much; it and those after it are not in offers
	offered int64 // highest seq offered, whether it is in offers or not
	reload  bool
	orders  []order
}

type offer struct {
	epoch int64
	rows  []outbox.Pending
}

// order is to quiesce slots, and to close done when they are at rest; or, without done, to resume them.
type order struct {
	slots    []int16
	done     chan struct{}
	patience time.Duration // with requests that are under way
	giveUp   time.Time     // when it is over; set by the loop, zero: it has been
	epoch    int64
}

func (b *inbox) order(o order) {
	b.mu.Lock()
	b.orders = append(b.orders, o)
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox and returns what was in it.
func (b *inbox) take() content {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.content
	b.content = content{offered: was.offered}

	return was
}

// Backlog counts the rows of this instance's slots that are not acknowledged, or not deleted yet.
func (p *Publisher) Backlog(ctx context.Context) (outbox.Backlog, error) { return p.box.Backlog(ctx) }
