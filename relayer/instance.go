package relayer

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

var (
	errNoTenure  = errors.New("not part of the fleet: joining")
	errNoSession = errors.New("the database session is lost")
)

// condition is what changes while an instance runs. Each field is atomic and independent: a reader
// may see one of them before a change and another one after it.
type condition struct {
	tenure        atomic.Pointer[tenure] // the current one; nil: the instance is outside the fleet
	leading       atomic.Bool
	lastHeartbeat atomic.Int64 // when the heartbeat was last written, in unix nanoseconds
	database      lastError    // of the last reading of the database
	committed     lastError    // of the last report to it
	waits         lastError    // for a lock that somebody outside the fleet holds; nil: for none
	writes        writes
	told          atomic.Bool // the log has that no block is stored
	lastLoss      lastError   // why the last tenure, or the last attempt to join, ended; nil once it has joined

	noSession, noDatabase, noNode fleet.Watchdog
	slots, factory, past          fleet.Watchdog
}

// verdict is the one judgement of the database, which page, /readyz, gauges and, by the reports, all
// other screens have: it takes what is written, answers what is read, and refuses no write of this instance.
func (c *condition) verdict() error {
	return database.Explain(cmp.Or(c.waits.get(), c.committed.get(), c.database.get(), c.refusal()))
}

// writes is the outcome of the last write of each kind, in this tenure. Whether due writes are
// stored is the first measure of health: a database that answers but refuses writes is as bad as
// one that is gone.
type writes struct {
	slots, factory   lastError // commits of the two watches
	check, heartbeat lastError // the claimer's slot check; the instance's heartbeat
}

func (w *writes) reset() {
	for _, kind := range []*lastError{&w.slots, &w.factory, &w.check, &w.heartbeat} {
		kind.set(nil)
	}
}

// refusal returns why the database refuses this instance's writes, or its joining; nil: it accepts them.
func (c *condition) refusal() error {
	if c.tenure.Load() == nil {
		if loss := c.lastLoss.get(); errors.As(loss, new(*pgconn.PgError)) {
			return loss
		}

		return nil // the loss of a connection has another field
	}

	factory := c.writes.factory.get()
	if !c.leading.Load() {
		factory = nil
	}

	return cmp.Or(c.writes.slots.get(), factory, c.writes.check.get(), c.writes.heartbeat.get())
}

// lastError is the outcome of the last attempt.
type lastError struct{ err atomic.Pointer[error] }

func (l *lastError) set(err error) { l.err.Store(&err) }

func (l *lastError) get() error {
	if err := l.err.Load(); err != nil {
		return *err
	}

	return nil
}

// Instance is what this instance knows about itself, without asking the database or a node.
func (r *Relayer) Instance() fleet.Self {
	now, c := time.Now(), &r.condition
	i, t := r.instance()
	r.noteProgress(&i, t, now)
	i.SessionSince = c.noSession.Standing(now, 0, i.Session != nil)
	i.DatabaseSince = c.noDatabase.Standing(now, 0, i.Database != nil)
	i.NodeSince = c.noNode.Standing(now, 0, i.Node != nil)

	return i
}

func (r *Relayer) instance() (fleet.Self, *tenure) {
	view, c := r.source.View(), &r.condition
	i := fleet.Self{
		ID: r.cfg.InstanceID, Build: r.build, Started: r.started, Partition: r.cfg.Partition, Leader: c.leading.Load(),
		Database: c.verdict(), Node: r.source.Health(),
		Head: int64(view.Head), Target: int64(view.Target), Final: int64(view.Final), HeadTime: view.HeadTime,
		TargetTime: view.TargetTime, BlockTime: r.source.BlockTime(), Trust: string(r.source.Trust()),
		LastHeartbeat: time.Unix(0, c.lastHeartbeat.Load()),
	}
	if f := r.metrics.publish.LastFailure(); f != nil {
		i.PublishError, i.PublishErrorAt = f.Err, f.At
	}

	for _, e := range r.source.Endpoints() {
		i.Endpoints = append(i.Endpoints, fleet.Endpoint{Name: e.Name, Up: e.Up, Head: int64(e.Head),
			Latency: fleet.Age(e.Latency), LastError: e.LastError, LastErrorAt: e.Failed.UTC()})
	}

	t := c.tenure.Load()
	if t == nil {
		i.Session = database.Explain(cmp.Or(c.lastLoss.get(), errNoTenure))
		return i, nil
	}

	i.Joined = true
	if !t.session.Valid() {
		i.Session = errNoSession
	}

	held, _ := t.claimer.Holding()
	i.Partition, i.Slots = held.Partition, len(held.Slots)
	for _, s := range held.Slots {
		if !held.Partition.Prefers(s) {
			i.Adopted++
		}
	}

	s, p := t.slots.Status(), t.publisher.Stats()
	i.Cursor, i.CursorTime, i.Escrows = s.Next, s.Time, s.Escrows
	i.InFlight, i.BlockedKeys = p.InFlight, p.BlockedKeys
	if i.Node == nil {
		i.Node = t.unread(r.cfg.ResignAfter)
	}

	if i.Leader {
		i.FactoryCursor = r.factory.Next()
	}

	return i, t
}

// unread returns why the next blocks of the slots cannot be read, once this has lasted for a while.
func (t *tenure) unread(patience time.Duration) error {
	s := t.slots.Status()
	if s.Unread == nil || time.Since(s.Since) < patience {
		return nil
	}

	return fmt.Errorf("blocks cannot be read since %s: %w", s.Since.UTC().Format(time.TimeOnly), s.Unread)
}

// noteProgress notes how long no block has been stored while there are blocks to store, and why none
// is: the refusal of the database, or after a minute whatever is known.
func (r *Relayer) noteProgress(i *fleet.Self, t *tenure, now time.Time) {
	c := &r.condition
	note := func(dog *fleet.Watchdog, what string, next int64, works bool, stuck *watch.StuckError) {
		since := dog.Standing(now, next, works && i.Target > 0 && next <= i.Target)
		if !since.IsZero() && (i.StandingSince.IsZero() || since.Before(i.StandingSince)) {
			i.StandingSince = since
		}

		switch {
		case stuck != nil:
			i.Stuck = stuck
		case i.Stuck == nil && !since.IsZero() && now.Sub(since) >= fleet.LimitStanding.Behind:
			i.Stuck = fmt.Errorf("the watch of the %s has stored no block since %s UTC, though blocks %d to %d are there", what,
				since.UTC().Format(time.TimeOnly), next, i.Target)
			if why := errors.Join(i.Database, i.Node); why != nil {
				i.Stuck = fmt.Errorf("%w: %w", i.Stuck, why)
			}
		}
	}
	if t == nil { // its slots are the others'
		note(&c.slots, "slots", 0, false, nil)
		note(&c.factory, "factory", 0, false, nil)
		note(&c.past, "past of a factory", 0, false, nil)

		return
	}

	note(&c.slots, "slots", i.Cursor, i.Slots > 0, t.slots.Stuck())
	note(&c.factory, "factory", i.FactoryCursor, i.Leader, r.factory.Stuck())
	past, left := r.followed.Past()
	note(&c.past, "past of a factory", past, i.Leader && left, r.past.Stuck())
}
