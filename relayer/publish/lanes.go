package publish

import (
	"container/heap"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// lanes decides what is sent next, and which rows of which lane are read: it holds every ordering
// key with rows to send. It is pure: the caller passes in events and
// times.
//
// A lane is in byID until it is gone. It is in its topic's queue if it is ready, in retries if it
// is blocked, in wanted if it is wanted (lanes that have left that stage are skipped there), and in
// its topic's blocked from a failure until it succeeds or is gone.
type lanes struct {
	limits  *limits
	window  *window
	jitter  func() float64
	topics  [outbox.Topics]topic
	byID    map[outbox.Lane]*lane
	retries retries
	wanted  []*lane
}

// topic is the state that the lanes of a topic share. Its name is empty if it is unconfigured. Its
// ready lanes are in queue, those that have failed since their last success in blocked, and
// underWay counts those that are sending. skipped is set only while blocked is full, or has been
// since it was last half empty. It belongs to the goroutine of the loop.
type topic struct {
	name     string
	queue    []*lane // may send, in the order in which they became ready
	underWay int     // requests
	blocked  map[*lane]struct{}
	skipped  int64      // lowest seq skipped because too many lanes are blocked; 0: none
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
	n := s.byID[id]
	if n == nil {
		// Once a row is skipped, all are until it has been read again: the next may be of the same
		// lane.
		if t := &s.topics[id.Topic]; t.skipped > 0 || len(t.blocked) >= s.limits.maxBlocked {
			if t.skipped == 0 || r.Seq < t.skipped {
				t.skipped = r.Seq
			}

			return
		}

		n = &lane{id: id, retryPos: -1}
		s.byID[id] = n
	}

	if n.stuck() || len(n.queue) >= s.limits.laneRows {
		n.leave(r.Seq)
		return
	}

	s.enqueue(n, r)
	s.proceed(n)
}

func (s *lanes) enqueue(n *lane, r row) {
	n.queue = append(n.queue, r)
	s.window.load(&r)
}

// proceed decides what comes next for an idle lane.
func (s *lanes) proceed(n *lane) {
	switch {
	case n.stage != idle:
	case len(n.queue) > 0:
		n.become(ready)
		t := &s.topics[n.id.Topic]
		t.queue = append(t.queue, n)
	case n.left > 0:
		s.want(n)
	default:
		s.forget(n)
	}
}

// want requests that a lane is read by key.
func (s *lanes) want(n *lane) {
	n.become(wanted)
	s.wanted = append(s.wanted, n)
}

// forget drops a lane. Its rows in the outbox are read again later.
func (s *lanes) forget(n *lane) {
	s.drop(n)
	n.become(gone)
	delete(s.byID, n.id)
	delete(s.topics[n.id.Topic].blocked, n)
	s.retries.remove(n)
}

// drop forgets the unsent rows of a lane; they stay in the outbox. If the lane had none there, it
// is free, and the caller makes sure that the outbox is read again.
func (s *lanes) drop(n *lane) {
	if n.left > 0 && len(n.queue) > 0 {
		n.leave(n.queue[0].Seq)
	}

	s.window.unload(n.queue)
	s.window.leave(n.queue)
	n.queue = nil
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

// failed handles a failed request: it blocks its lane, and the lane's rows leave memory. It reports whether
// the topic's last failure had another code.
func (s *lanes) failed(f *request, c codes.Code, now time.Time) (changed bool) {
	n := s.returned(f)
	s.window.leave(f.rows)
	s.drop(n)
	n.leave(f.rows[0].Seq)
	n.become(blocked)
	t := &s.topics[n.id.Topic]
	t.blocked[n] = struct{}{}

	n.retryAt = now.Add(backoff(s.limits.firstDelay, s.limits.lastDelay, n.failures, s.jitter()))
	n.failures++
	n.code = c
	heap.Push(&s.retries, n)
	changed, t.code = t.code != c, c

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

// retry has blocked lanes read after their delay.
func (s *lanes) retry(now time.Time) {
	for len(s.retries) > 0 && !s.retries[0].retryAt.After(now) {
		s.want(heap.Pop(&s.retries).(*lane))
	}
}

// retryAt is when the next blocked lane is tried; zero: there is none.
func (s *lanes) retryAt() time.Time {
	if len(s.retries) == 0 {
		return time.Time{}
	}

	return s.retries[0].retryAt
}

// takeSkipped returns the lowest skipped seq of topics that have recovered enough to read it now;
// 0: none.
func (s *lanes) takeSkipped() (seq int64) {
	for i := range s.topics {
		t := &s.topics[i]
		if t.skipped > 0 && len(t.blocked) <= s.limits.maxBlocked/2 {
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

// choose takes at most so many lanes that wait to be read, while there is room for their rows,
// which they share. The oldest row is enough to try a blocked lane.
func (s *lanes) choose(most int) (wants []want) {
	room := s.window.room()
	share := min(max(room/(len(s.wanted)+1), fewRows), s.limits.laneRows)
	for len(s.wanted) > 0 && len(wants) < most && room > 0 {
		n := s.wanted[0]
		s.wanted[0] = nil
		s.wanted = s.wanted[1:]
		if n.stage != wanted {
			continue
		}

		limit := min(share, room)
		if n.failures > 0 {
			limit = 1
		}

		room -= limit
		wants = append(wants, want{lane: n, from: n.left, limit: limit})
		n.become(reading)
		n.left = 0
	}

	return wants
}

// again requests that lanes are read once more after a reading that failed or is void.
func (s *lanes) again(wants []want) {
	for _, w := range wants {
		if w.lane.stage == reading {
			w.lane.leave(w.from)
			s.want(w.lane)
		}
	}
}

// read handles the rows that were read of a lane; sendable selects those to be sent.
func (s *lanes) read(w *want, rows []outbox.Found, sendable func(*outbox.Found) bool) {
	n := w.lane
	if n.stage != reading {
		return
	}

	if len(rows) == w.limit {
		n.leave(rows[len(rows)-1].Seq + 1)
	}

	for i := range rows {
		if f := &rows[i]; sendable(f) {
			s.enqueue(n, row{f.Pending, f.Doubtful})
		}
	}

	n.become(idle)
	s.proceed(n) // if the row that failed is gone, with the rows behind it
}

// blocked is the number of blocked lanes.
func (s *lanes) blocked() (n int) {
	for i := range s.topics {
		n += len(s.topics[i].blocked)
	}

	return n
}

// without lists the lanes of a topic that are read by key only.
func (s *lanes) without(t outbox.Topic) []outbox.Lane {
	ids := make([]outbox.Lane, 0, len(s.topics[t].blocked))
	for n := range s.topics[t].blocked {
		ids = append(ids, n.id)
	}

	return ids
}
