package publish

import (
	"container/heap"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// lanes decides what is sent next, and from where the outbox is read again: it holds every ordering
// key with messages to send. It is pure: the caller passes in events and times.
//
// A lane is in byID until it is gone. It is in its topic's queue if it is ready, in retries if it
// is blocked, and in its topic's blocked from a failure until it succeeds or is gone.
type lanes struct {
	limits  *limits
	window  *window
	jitter  func() float64
	topics  [outbox.Topics]topic
	byID    map[outbox.Lane]*lane
	retries retries
}

// topic is the state that the lanes of a topic share. Its name is empty if it is unconfigured. Its
// ready lanes are in queue, those that have failed since their last success in blocked, and
// underWay counts those that are sending. While skipped is set, rows of new lanes are left in the
// outbox. It belongs to the goroutine of the loop.
type topic struct {
	name     string
	queue    []*lane // may send, in the order in which they became ready
	underWay int     // requests
	blocked  map[*lane]struct{}
	skipped  int64      // the lowest seq of rows that no lane has, and that are to be read again; 0: none
	code     codes.Code // of the last failure that was logged; OK after a recovery
	freed    time.Time  // when blocked lanes were last released because one of them succeeded
}

func newLanes(l *limits, w *window, jitter func() float64, names [outbox.Topics]string) lanes {
	s := lanes{limits: l, window: w, jitter: jitter, byID: map[outbox.Lane]*lane{}}
	for i, name := range names {
		s.topics[i] = topic{name: name, blocked: map[*lane]struct{}{}}
	}

	return s
}

// add puts a row into its lane, or leaves it in the outbox behind earlier rows of its lane that are
// there.
func (s *lanes) add(id outbox.Lane, r row) {
	n, t := s.byID[id], &s.topics[id.Topic]
	switch {
	case n == nil && r.logged():
		if n = s.create(id); t.skipped > 0 {
			n.left = 1 // rows of it may be among those, or may have left memory since
		}
	case n == nil && (t.skipped > 0 || len(t.blocked) >= s.limits.maxBlocked):
		// Once a row is skipped, all are until it has been read again: the next may be of the same lane.
		t.skip(r.Seq)
		return
	case n == nil:
		n = s.create(id)
	case !r.logged() && (n.failures > 0 || n.left > 0):
		n.leave(r.Seq)
		return
	}

	s.enqueue(n, r)
	s.proceed(n)
}

// skip leaves rows of lanes that are not there in the outbox, from a seq on.
func (t *topic) skip(seq int64) {
	if t.skipped == 0 || seq < t.skipped {
		t.skipped = seq
	}
}

func (s *lanes) create(id outbox.Lane) *lane {
	n := &lane{id: id, retryPos: -1}
	s.byID[id] = n

	return n
}

func (s *lanes) makeReady(n *lane) {
	n.become(ready)
	t := &s.topics[n.id.Topic]
	t.queue = append(t.queue, n)
}

func (s *lanes) enqueue(n *lane, r row) {
	n.queue = append(n.queue, r)
	s.window.load(&r)
}

// proceed decides what comes next for an idle lane. One with rows in the outbox only is made anew when these are read.
func (s *lanes) proceed(n *lane) {
	switch {
	case n.stage != idle:
		return
	case len(n.queue) > 0:
		s.makeReady(n)
		return
	case n.left > 0:
		s.topics[n.id.Topic].skip(n.left)
	}

	s.forget(n)
}

// forget drops a lane. Its rows in the outbox are read again later.
func (s *lanes) forget(n *lane) {
	if n.stage == gone {
		return
	}

	s.drop(n)
	n.become(gone)
	delete(s.byID, n.id)
	delete(s.topics[n.id.Topic].blocked, n)
	s.retries.remove(n)
}

// drop forgets what a lane has to send: the next owner of its slot reads it. If the lane had no rows
// in the outbox, it is free, and the caller makes sure that the outbox is read again.
func (s *lanes) drop(n *lane) {
	left := n.left > 0
	s.take(n, func(r *row) bool {
		switch {
		case r.logged():
			s.window.log.abandon(n.id.Slot, &r.Event)
		case left:
			n.leave(r.Seq)
			fallthrough
		default:
			delete(s.window.ids, r.ID)
		}

		return true
	})
}

// leaveBehind leaves rows of the outbox there, but for the message that comes next.
func (s *lanes) leaveBehind(n *lane) {
	first := n.queue[0].ID
	s.take(n, func(r *row) bool {
		if r.logged() || r.ID == first {
			return false
		}

		n.leave(r.Seq)
		delete(s.window.ids, r.ID)

		return true
	})
}

// take takes messages out of the queue of a lane.
func (s *lanes) take(n *lane, those func(*row) bool) {
	n.queue = slices.DeleteFunc(n.queue, func(r row) bool {
		taken := those(&r)
		if taken {
			s.window.bytes -= r.size()
		}

		return taken
	})
}

// next takes the rows of the next request from the next lane; nil: there are none to
// send, or the limit of requests in flight is reached.
func (s *lanes) next(now time.Time) *request {
	for i := range s.topics {
		t := &s.topics[i]
		for len(t.queue) > 0 && t.underWay < s.limits.requests {
			n := t.queue[0]
			t.queue[0] = nil
			t.queue = t.queue[1:]
			if n.stage != ready {
				continue
			}

			n.become(sending)
			t.underWay++
			n.request = &request{lane: n, rows: n.batch(s.limits.batchRows, s.limits.batchBytes), started: now}

			return n.request
		}
	}

	return nil
}

// underWay is the number of requests in flight.
func (s *lanes) underWay() (n int) {
	for i := range s.topics {
		n += s.topics[i].underWay
	}

	return n
}

// acknowledged handles a successful request. Its rows stay in the window until they are deleted.
func (s *lanes) acknowledged(f *request, now time.Time) {
	n := s.returned(f)
	n.become(idle)
	if n.failures > 0 {
		s.recovered(n, now)
	}
}

// failed handles a failed request: it blocks its lane, which keeps its events of the log, and of the outbox the row
// that is tried again. Where too many lanes are blocked it keeps no row. It reports whether the topic's last failure
// had another code.
func (s *lanes) failed(f *request, c codes.Code, now time.Time) (changed bool) {
	n := s.returned(f)
	t := &s.topics[n.id.Topic]
	changed, t.code = t.code != c, c
	n.queue = slices.Concat(f.rows, n.queue)
	for i := range f.rows {
		s.window.bytes += f.rows[i].size()
	}

	s.leaveBehind(n)
	n.become(blocked)
	if n.failures == 0 {
		n.since = now
	}

	t.blocked[n] = struct{}{}
	n.retryAt = now.Add(backoff(s.limits.firstDelay, s.limits.lastDelay, n.failures, s.jitter()))
	n.failures++
	n.code = c
	heap.Push(&s.retries, n)
	if len(t.blocked) > s.limits.maxBlocked && len(n.queue) == 1 && !n.queue[0].logged() {
		t.skip(n.queue[0].Seq)
		s.forget(n)
	}

	return changed
}

func (s *lanes) returned(f *request) *lane {
	f.lane.request = nil
	s.topics[f.lane.id.Topic].underWay--
	s.window.unload(f.rows)

	return f.lane
}

// recovered handles the first success of a lane after failures. Others of its topic that failed for
// the same reason are retried at once.
func (s *lanes) recovered(n *lane, now time.Time) {
	t := &s.topics[n.id.Topic]
	n.failures = 0
	delete(t.blocked, n)
	if now.Sub(t.freed) < s.limits.firstDelay {
		return
	}

	t.freed = now
	for other := range t.blocked {
		if other.code == n.code && other.stage == blocked {
			other.retryAt = now
		}
	}

	heap.Init(&s.retries)
}

// retry has blocked lanes tried after their delay.
func (s *lanes) retry(now time.Time) {
	for len(s.retries) > 0 && !s.retries[0].retryAt.After(now) {
		s.makeReady(heap.Pop(&s.retries).(*lane))
	}
}

// retryAt is when the next blocked lane is tried; zero: there is none.
func (s *lanes) retryAt() time.Time {
	if len(s.retries) == 0 {
		return time.Time{}
	}

	return s.retries[0].retryAt
}

// takeSkipped returns the lowest seq of what was skipped of topics that have room for more lanes; 0: none.
func (s *lanes) takeSkipped() (seq int64) {
	for i := range s.topics {
		t := &s.topics[i]
		if t.skipped > 0 && len(t.blocked) < s.limits.maxBlocked {
			if seq == 0 || t.skipped < seq {
				seq = t.skipped
			}

			t.skipped = 0
		}
	}

	return seq
}

// saturated reports whether a topic has so many blocked lanes that rows are skipped.
func (s *lanes) saturated() bool {
	for i := range s.topics {
		if s.topics[i].skipped > 0 {
			return true
		}
	}

	return false
}

// quiesce forgets the lanes of the slots that must be quiet; those with a request in flight when it
// ends.
func (s *lanes) quiesce(quiet func(slot int16) bool) {
	for _, n := range s.byID {
		if quiet(n.id.Slot) {
			if s.drop(n); n.stage != sending {
				s.forget(n)
			}
		}
	}
}

// cancel cancels the requests of slots.
func (s *lanes) cancel(slots []int16) {
	if len(slots) == 0 {
		return // saves the walk over all lanes
	}

	of := make(map[int16]bool, len(slots))
	for _, slot := range slots {
		of[slot] = true
	}

	for _, n := range s.byID {
		if n.stage == sending && of[n.id.Slot] {
			n.request.cancel()
		}
	}
}

// movable takes lanes that fail with events of the log, while others have succeeded.
func (s *lanes) movable(success time.Time) (moved []*lane) {
	events := 0
	for i := range s.topics {
		for n := range s.topics[i].blocked {
			if n.stage == blocked && n.failures >= moveAfter && n.since.Before(success) && events < movesAtOnce &&
				slices.ContainsFunc(n.queue, func(r row) bool { return r.logged() }) {
				n.become(moving)
				s.retries.remove(n)
				moved = append(moved, n)
				events += len(n.queue)
			}
		}
	}

	return moved
}

// moving lists the lanes whose move has not ended.
func (s *lanes) moving() (list []*lane) {
	for i := range s.topics {
		for n := range s.topics[i].blocked {
			if n.stage == moving {
				list = append(list, n)
			}
		}
	}

	return list
}

// moved handles the end of a move: all events of the log that the lanes have got rows, ahead of others.
func (s *lanes) moved(list []*lane) {
	for _, n := range list {
		if n.stage == moving {
			s.take(n, func(r *row) bool {
				if r.logged() {
					s.window.log.remove(n.id.Slot, &r.Event)
				}

				delete(s.window.ids, r.ID)

				return true
			})
			s.topics[n.id.Topic].skip(1)
			s.forget(n)
		}
	}
}

// blocked is the number of blocked lanes.
func (s *lanes) blocked() (n int) {
	for i := range s.topics {
		n += len(s.topics[i].blocked)
	}

	return n
}

// without lists the lanes of a topic whose rows behind a seq are left in the outbox.
func (s *lanes) without(t outbox.Topic, last int64) []outbox.Lane {
	ids := make([]outbox.Lane, 0, len(s.topics[t].blocked))
	for n := range s.topics[t].blocked {
		n.leave(last + 1)
		ids = append(ids, n.id)
	}

	return ids
}
