package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Publisher publishes for one tenure. Run runs once; the other methods may be called from any
// goroutine, also before and after it.
type Publisher struct {
	shared
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Publisher, error) {
	if cfg.DB == nil || cfg.Owner == "" || cfg.Sender == nil || cfg.Topics.Default == "" || cfg.Metrics == nil {
		return nil, errors.New("publish: DB, Owner, Sender, the default topic and Metrics are required")
	}

	if cfg.Valid == nil {
		cfg.Valid = func() bool { return true }
	}

	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Handover = cmp.Or(cfg.Handover, &Handover{})

	box := &outbox.Box{DB: cfg.DB, ChainID: cfg.ChainID, Owner: cfg.Owner, BySlot: cfg.BySlot}

	return &Publisher{shared{cfg: cfg, limits: defaultLimits, store: box, log: box,
		inbox: inbox{wake: make(chan struct{}, 1), ended: make(chan struct{})}}}, nil
}

// NewAnswers is New for the answers to commands, which go to the default topic. Offer, Reload and
// Quiesce are of no use to them: Config.Hint has the table read.
func NewAnswers(cfg Config) (*Publisher, error) {
	cfg.Owner = "whichever has the lock" // answers are of no slot
	p, err := New(cfg)
	if err == nil {
		p.store, p.log = &outbox.Answers{DB: cfg.DB, ChainID: cfg.ChainID}, nil
		p.limits.pageRows, p.limits.drain = answersPage, answersDrain
	}

	return p, err
}

// Run publishes until ctx ends; then it stops sending, waits up to drainTimeout for what is in
// flight, notes what was acknowledged, and returns nil. It returns ErrFenced when Config.Valid
// returns false. Errors of Pub/Sub or the database are retried.
func (p *Publisher) Run(ctx context.Context) error {
	defer close(p.inbox.ended)
	p.cfg.Handover.memory = p.cfg.Memory
	l := newLoop(&p.shared)
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx, by the drain
	defer cancel()
	err := l.run(ctx, sending)
	l.drain(ctx, cancel)

	return err
}

// Offer passes what was just committed, one commit after the other, from one goroutine. It never
// blocks: what exceeds its capacity is read from the database.
func (p *Publisher) Offer(c outbox.Commit) {
	b, rows := &p.inbox, len(c.Log)+len(c.Rows)
	b.mu.Lock()
	b.full = b.full || b.rows+rows > p.limits.windowRows
	if !b.full { // otherwise later ones would overtake dropped ones
		b.offers, b.rows = append(b.offers, c), b.rows+rows
	}

	b.mu.Unlock()
	b.ring()
}

// Reload sets the held slots and the right to them: the publisher reads what of theirs is not sent. Until the first
// call it publishes nothing.
func (p *Publisher) Reload(right outbox.Right, slots []int16) {
	p.inbox.order(order{what: reload, slots: slices.Clone(slots), right: right})
}

// Quiesce stops publishing for some slots and returns when they are at rest: none of their requests is in flight,
// every acknowledged event is noted, every acknowledged row deleted, and what may have been sent is recorded as in
// doubt. Requests that take longer than drainTimeout are cancelled, and are in doubt. On an error, when ctx ends
// first or the record cannot be written, the slots are published again.
func (p *Publisher) Quiesce(ctx context.Context, slots []int16) error {
	done := make(chan []int16, 1)
	p.inbox.order(order{what: quiesce, slots: slices.Clone(slots), done: done, patience: drainTimeout})
	select {
	case unsure := <-done:
		if len(unsure) == 0 {
			return nil
		}

		err := p.store.Doubt(ctx, unsure)
		if err != nil {
			p.Resume(slots, 0)
		}

		return err
	case <-p.inbox.ended:
		if p.Settled() {
			return nil // Run has waited for the requests in flight
		}

		return fmt.Errorf("wait for the messages of %d slots: the messages in doubt could not be recorded", len(slots))
	case <-ctx.Done():
		p.Resume(slots, 0)
		return fmt.Errorf("wait for the messages of %d slots: %w", len(slots), context.Cause(ctx))
	}
}

// Resume publishes quiesced slots again. After they were released, epoch is the new one: earlier
// offers are left to the slots' new owners.
func (p *Publisher) Resume(slots []int16, epoch int64) {
	p.inbox.order(order{what: resume, slots: slices.Clone(slots), right: outbox.Right{Epoch: epoch}})
}

// Settled reports, once Run has ended, whether the database knows what may have been sent: then
// slots may be released. Otherwise their next owner treats all of their rows as perhaps published.
func (p *Publisher) Settled() bool { return p.shown.settled.Load() }

// Stats returns what is in flight.
func (p *Publisher) Stats() Stats {
	return Stats{InFlight: int(p.shown.inFlight.Load()), Undeleted: int(p.shown.undeleted.Load()),
		BlockedKeys: int(p.shown.blocked.Load())}
}
