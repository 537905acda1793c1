package relayer

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

var (
	errNoTenure  = errors.New("not part of the fleet: joining")
	errNoSession = errors.New("the database session is lost")
)

// Instance is what this instance knows of itself. It asks neither the database nor a node.
func (r *Relayer) Instance() web.Instance {
	i, now := r.look(), time.Now()
	i.SessionSince, i.DatabaseSince, i.NodeSince = r.noSession.of(i.Session, now), r.noDatabase.of(i.Database, now),
		r.noNode.of(i.Node, now)

	return i
}

// since is from when on something has not been well, as far as anybody has asked. The page asks every two seconds.
type since struct{ at atomic.Int64 } // unix nanoseconds; 0: it is well

func (s *since) of(err error, now time.Time) time.Time {
	if err == nil {
		s.at.Store(0)
		return time.Time{}
	}

	s.at.CompareAndSwap(0, now.UnixNano())

	return moment(s.at.Load())
}

func (r *Relayer) look() web.Instance {
	view := r.source.View()
	i := web.Instance{
		ID: r.cfg.InstanceID, Build: r.build, Started: r.started, Partition: r.cfg.Partition, Leader: r.leading.Load(),
		Node: r.source.Health(), Head: int64(view.Head), Target: int64(view.Target), Final: int64(view.Final),
		HeadTime: view.HeadTime,
	}
	if err := r.dbError.Load(); err != nil {
		i.Database = *err
	}

	if f := r.sending.LastFailure(); f != nil {
		i.PublishError, i.PublishErrorAt = f.Err, f.At
	}

	hosts := r.cfg.Endpoints()
	for n, e := range r.source.Endpoints() {
		i.Endpoints = append(i.Endpoints, web.Endpoint{Name: e.Name, Host: hosts[n], Up: e.Up, Head: int64(e.Head),
			Latency: e.Latency, LastError: e.LastError})
	}

	t := r.current.Load()
	switch {
	case t == nil:
		i.Session = errNoTenure
		if err := r.lastLoss.Load(); err != nil {
			i.Session = *err
		}

		return i
	case !t.session.Valid():
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
	if i.Leader {
		i.FactoryCursor = r.factory.Next()
	}

	return i
}

// beaten is when the heartbeat was last written.
func (r *Relayer) beaten() time.Time { return time.Unix(0, r.lastBeat.Load()) }

// databaseSaid keeps the outcome of the last reading of the database.
func (r *Relayer) databaseSaid(err error) {
	if err == nil {
		r.dbError.Store(nil)
		return
	}

	r.dbError.Store(&err)
}
