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

// Publisher publishes for one tenure. Run runs it, once; the other methods may be called from any
// goroutine, before and after too.
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
	box := outbox.Box{DB: cfg.DB, ChainID: cfg.ChainID, Owner: cfg.Owner, OtherNames: cfg.OtherNames, BySlot: cfg.BySlot}

	p := &Publisher{shared{box: box, cfg: cfg, limits: defaultLimits,
		inbox: inbox{wake: make(chan struct{}, 1), ended: make(chan struct{})}}}
	p.store = &p.box

	return p, nil
}

// Join makes sure, before Run, that what the tenure before has left are rows of this database still: another server
// may have forgotten the last ones, and have given their numbers to other rows.
func (p *Publisher) Join(ctx context.Context) error {
	h := p.cfg.Handover
	if len(h.acked) == 0 || h.server.Equal(p.cfg.Server) {
		return nil
	}

	acked, err := p.box.Still(ctx, h.acked)
	if err != nil {
		return err
	}

	if n := len(h.acked) - len(acked); n > 0 {
		p.cfg.Log.WarnContext(ctx, "the database has forgotten rows that were acknowledged: they may be published again",
			slog.Int("messages", n))
	}

	h.acked = acked // h.server is Run's to set: a tenure may end before it publishes anything from there

	return nil
}

// Run publishes until ctx ends; then it takes nothing more, waits up to drainTimeout for what is
// under way, deletes the rows of what was acknowledged, and returns nil. It returns ErrFenced when
// Config.Valid says no. Trouble with Pub/Sub or the database never ends it.
func (p *Publisher) Run(ctx context.Context) error {
	defer close(p.inbox.ended)
	p.cfg.Handover.known, p.cfg.Handover.server = true, p.cfg.Server
	l := newLoop(&p.shared)
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx, by the drain
	defer cancel()
	err := l.run(ctx, sending)
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
func (p *Publisher) Settled() bool { return p.shown.settled.Load() }

// Stats returns what is under way.
func (p *Publisher) Stats() Stats {
	return Stats{InFlight: int(p.shown.inFlight.Load()), Undeleted: int(p.shown.undeleted.Load()),
		BlockedKeys: int(p.shown.blocked.Load())}
}
