package web

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

const (
	// idleEvery is how often the database is read without viewers: often enough for the plots of
	// the outbox.
	idleEvery = 30 * time.Second
	// lastEvents are shown on the page.
	lastEvents = 12
)

// readWithin bounds one reading of the fleet, and so the time a page waits for a silent database, and queryTimeout one
// request's use of the database. Tests wait longer.
var readWithin, queryTimeout = 2 * time.Second, 5 * time.Second

// news is the page's data from the database.
type news struct {
	at     time.Time // when it was read, by this process's clock; zero: never
	fleet  fleet.Fleet
	events []event // the newest, newest first
	err    error   // of the last attempt, which may be later than at
}

// board reads the fleet for all viewers of this instance, and samples the instance for the plots.
// One goroutine runs it; the other methods may be called by any.
type board struct {
	cfg Config

	turn  chan struct{} // holds an element while a caller uses news and tried, and reads the database if due
	news  news
	tried time.Time // end of the last attempt

	mu       sync.Mutex // of what follows
	history  history
	watchers int           // open streams
	tick     chan struct{} // closed at the next sample, and replaced
}

func newBoard(cfg Config) *board {
	return &board{cfg: cfg, turn: make(chan struct{}, 1), tick: make(chan struct{})}
}

// run samples until ctx ends.
func (b *board) run(ctx context.Context) error {
	ticker := time.NewTicker(b.cfg.Every)
	defer ticker.Stop()
	for {
		b.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// step takes one sample, reads the database if due, and wakes the streams.
func (b *board) step(ctx context.Context) {
	b.mu.Lock()
	every := idleEvery
	if b.watchers > 0 {
		every = b.cfg.Every
	}

	b.mu.Unlock()
	n := b.read(ctx, every)
	i := b.cfg.Source.Instance()

	b.mu.Lock()
	defer b.mu.Unlock()
	b.history.add(sample{
		at: b.cfg.Now(), head: i.Head, target: i.Target, cursor: i.Cursor, lag: i.Lag(),
		outbox: n.fleet.Outbox.Messages, oldest: time.Duration(n.fleet.Outbox.OldestAge),
	})
	close(b.tick)
	b.tick = make(chan struct{})
}

// watch counts a stream and returns what ends it; ok is false when there are too many.
func (b *board) watch() (end func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watchers >= maxStreams {
		return nil, false
	}

	b.watchers++

	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.watchers--
	}, true
}

// ticked returns a channel that is closed at the next sample.
func (b *board) ticked() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tick
}

// samples returns those of the last hour, oldest first.
func (b *board) samples() []sample {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.history.since(b.cfg.Now().Add(-historySpan))
}

// latest returns the last reading, at most Every ago unless the database is gone. A caller that
// hangs up leaves the reading running, since it serves others too.
func (b *board) latest(ctx context.Context) news {
	return b.read(context.WithoutCancel(ctx), b.cfg.Every)
}

// read returns the last reading, after a new one if the last attempt is older than every. During a
// reading all other callers wait for it and share its result, so that each waits for one attempt at
// most.
func (b *board) read(ctx context.Context, every time.Duration) news {
	b.turn <- struct{}{}
	defer func() { <-b.turn }()
	now := b.cfg.Now()
	if b.news.err != nil { // a page that waits for each reading is late with what the instance knows by itself
		every *= 2
	}

	// A tick may come a little early; without the margin every other tick would come too soon.
	if !b.tried.IsZero() && now.Sub(b.tried) < every-b.cfg.Every/4 {
		return b.news
	}

	n, err := b.attempt(ctx)
	b.tried = b.cfg.Now() // the end counts: a slow reading is not retried at once
	if err == nil {
		n.at = now
		b.news = n

		return n
	}

	if b.news.err == nil { // an outage of the database is a warning of the relayer's
		b.cfg.Log.InfoContext(ctx, "fleet not read for the status page, trying again",
			slog.String("err", b.cfg.Mask(err.Error())))
	}

	b.news.err = err

	return b.news
}

// attempt reads the database once, within readWithin.
func (b *board) attempt(ctx context.Context) (n news, err error) {
	err = database.Within(ctx, readWithin, func(ctx context.Context) (err error) {
		n, err = b.query(ctx)
		return err
	})

	return n, err
}

func (b *board) query(ctx context.Context) (n news, err error) {
	if n.fleet, err = b.cfg.Fleet.Read(ctx); err != nil {
		return news{}, err
	}

	rows, _ := b.cfg.DB.Query(ctx, selectLast, pgx.StrictNamedArgs{"chain": b.cfg.ChainID, "limit": lastEvents})
	if n.events, err = pgx.CollectRows(rows, scanEvent); err != nil {
		return news{}, fmt.Errorf("read the last events: %w", err)
	}

	return n, nil
}
