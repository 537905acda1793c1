package testpubsub

import (
	"container/list"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/proto"
)

// subscription delivers as the service documents it. A delivered message is leased to its client, until the
// client acknowledges or refuses it, the deadline passes, or the client's stream ends. Then it comes again, with
// all that was delivered after it of its key, acknowledged or not. While a client holds messages of a key, more
// of that key go to nobody else. The server's lock guards all of it.
type subscription struct {
	server  *Server
	proto   *pubsubpb.Subscription
	keys    map[string]*queue // by ordering key; without ordering, by message
	waiting *list.List        // of *queue with something to deliver, the one that was served least recently first
	leases  map[string]*item  // by acknowledgement id
	nextID  int               // of leases
	changed chan struct{}     // closed and replaced when there may be something to deliver
}

// queue holds the messages of a key, from the oldest that is not acknowledged on.
type queue struct {
	key   string
	items []*item
	next  int           // items before it are leased or acknowledged, the others wait
	place *list.Element // in waiting; nil: nothing waits
	owner *owner        // who holds leases of it; nil: nobody
	held  int           // leases
	pause time.Time     // nothing is delivered before: the retry policy
}

// item is a message of a subscription.
type item struct {
	message  *pubsubpb.PubsubMessage
	queue    *queue
	failures int    // refusals, and deadlines that passed
	ackID    string // empty: not leased
	deadline time.Time
	acked    bool
}

// owner is a stream, or one pull.
type owner struct {
	ackTimeout  time.Duration
	maxMessages int64 // that are leased to it; zero: any number
	maxBytes    int64
	messages    int64
	bytes       int64
}

// Bounds of one answer. It is sent when the bytes are reached, with one more message at most.
const (
	maxDelivered      = 100
	maxDeliveredBytes = 5_000_000
)

// Defaults of the service.
const (
	defaultDeadlineSeconds = 10
	defaultAttempts        = 5
)

func newSubscription(s *Server, p *pubsubpb.Subscription) *subscription {
	return &subscription{server: s, proto: p, keys: map[string]*queue{}, waiting: list.New(), leases: map[string]*item{},
		changed: make(chan struct{})}
}

func (s *subscription) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *subscription) add(m *pubsubpb.PubsubMessage) {
	key := m.OrderingKey
	if key == "" || !s.proto.EnableMessageOrdering {
		key = "\x00" + m.MessageId
	}

	q := s.keys[key]
	if q == nil {
		q = &queue{key: key}
		s.keys[key] = q
	}

	q.items = append(q.items, &item{message: m, queue: q})
	s.place(q)
	s.wake()
}

// place puts a queue among those that wait, or takes it from them.
func (s *subscription) place(q *queue) {
	switch waits := q.next < len(q.items); {
	case waits && q.place == nil:
		q.place = s.waiting.PushBack(q)
	case !waits && q.place != nil:
		s.waiting.Remove(q.place)
		q.place = nil
	}
}

// take leases up to n messages to an owner, those of a key in order. Where it has none to give, it says when a lease or
// a pause ends next; zero: none is.
func (s *subscription) take(o *owner, n int, now time.Time) (out []*pubsubpb.ReceivedMessage, next time.Time) {
	next = s.expire(now)
	size := 0
	more := func() bool { return len(out) < n && size < maxDeliveredBytes && !o.full() }
	for at, left := s.waiting.Front(), s.waiting.Len(); left > 0 && more(); left-- {
		q := at.Value.(*queue)
		at = at.Next()
		if q.owner != nil && q.owner != o || q.pause.After(now) {
			continue
		}

		s.waiting.MoveToBack(q.place)
		for q.next < len(q.items) && more() {
			i := q.items[q.next]
			q.next++
			size += len(i.message.Data)
			out = append(out, s.lease(i, o, now))
		}

		s.place(q)
	}

	return out, next
}

func (o *owner) full() bool {
	return o.maxMessages > 0 && o.messages >= o.maxMessages || o.maxBytes > 0 && o.bytes >= o.maxBytes
}

func (s *subscription) lease(i *item, o *owner, now time.Time) *pubsubpb.ReceivedMessage {
	s.nextID++
	i.ackID, i.deadline = strconv.Itoa(s.nextID), now.Add(o.ackTimeout)
	i.queue.owner = o
	i.queue.held++
	s.leases[i.ackID] = i
	o.messages++
	o.bytes += int64(len(i.message.Data))
	received := &pubsubpb.ReceivedMessage{AckId: i.ackID, Message: i.message}
	if s.proto.DeadLetterPolicy != nil {
		received.DeliveryAttempt = int32(i.failures) + 1
	}

	return received
}

// end ends a lease, and with the last one of a key the hold on it.
func (s *subscription) end(i *item) {
	if i.ackID == "" {
		return
	}

	q := i.queue
	q.owner.messages--
	q.owner.bytes -= int64(len(i.message.Data))
	delete(s.leases, i.ackID)
	i.ackID = ""
	if q.held--; q.held == 0 {
		q.owner = nil
	}
}

// acknowledge takes note. An id whose lease has ended is late, and changes nothing.
func (s *subscription) acknowledge(ids []string) {
	for _, id := range ids {
		if i := s.leases[id]; i != nil {
			s.end(i)
			i.acked = true
			s.trim(i.queue)
		}
	}

	s.wake()
}

// trim forgets the messages that are acknowledged and have none before them that is not.
func (s *subscription) trim(q *queue) {
	for len(q.items) > 0 && q.items[0].acked {
		q.items[0] = nil
		q.items = q.items[1:]
		q.next--
	}

	if len(q.items) == 0 {
		delete(s.keys, q.key)
	}
}

// extend sets new deadlines; zero refuses the message.
func (s *subscription) extend(ids []string, by time.Duration, now time.Time) {
	for _, id := range ids {
		i := s.leases[id]
		switch {
		case i == nil:
		case by == 0:
			s.fail(i, now)
		default:
			i.deadline = now.Add(by)
		}
	}
}

// expire ends the leases whose deadline has passed. It returns when the next lease or pause ends; zero: none is.
func (s *subscription) expire(now time.Time) (next time.Time) {
	notLater := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, q := range s.keys {
		passed := func(i *item) bool { return i.ackID != "" && !now.Before(i.deadline) }
		if at := slices.IndexFunc(q.items[:q.next], passed); at >= 0 {
			s.fail(q.items[at], now)
		}

		for _, i := range q.items[:q.next] {
			if i.ackID != "" {
				notLater(i.deadline)
			}
		}

		if q.pause.After(now) {
			notLater(q.pause)
		}
	}

	return next
}

// leave ends the leases of a stream that has ended. The service counts refusals and deadlines, not this.
func (s *subscription) leave(o *owner) {
	for _, q := range s.keys {
		if q.owner == o {
			s.rewind(q, slices.IndexFunc(q.items, func(i *item) bool { return i.ackID != "" }))
		}
	}

	s.wake()
}

// rewind makes a message, and all that was delivered after it of its key, come again.
func (s *subscription) rewind(q *queue, from int) {
	for _, i := range q.items[from:q.next] {
		s.end(i)
		i.acked = false
	}

	q.next = from
	s.place(q)
}

// fail counts a failed delivery. The message comes again, or goes to the dead-letter topic.
func (s *subscription) fail(i *item, now time.Time) {
	q := i.queue
	at := slices.Index(q.items, i)
	i.failures++
	s.rewind(q, at)
	if r := s.proto.RetryPolicy; r != nil {
		q.pause = now.Add(backoff(r, i.failures))
	}

	if p := s.proto.DeadLetterPolicy; p != nil && i.failures >= int(p.MaxDeliveryAttempts) && s.server.bury(s, i) {
		q.items = slices.Delete(q.items, at, at+1)
		q.pause = time.Time{}
		s.place(q)
		s.trim(q)
	}

	s.wake()
}

// backoff doubles with each failure.
func backoff(r *pubsubpb.RetryPolicy, failures int) time.Duration {
	return min(r.MaximumBackoff.AsDuration(), r.MinimumBackoff.AsDuration()<<min(failures-1, 16))
}

// bury publishes a message to the dead-letter topic, with the attributes that the service adds, and reports
// whether that was possible: without the topic, the subscription keeps the message.
func (s *Server) bury(from *subscription, i *item) bool {
	t := s.topics[from.proto.DeadLetterPolicy.DeadLetterTopic]
	if t == nil {
		return false
	}

	letter := proto.CloneOf(i.message)
	if letter.Attributes == nil {
		letter.Attributes = map[string]string{}
	}

	const source = "CloudPubSubDeadLetterSource"
	name := strings.Split(from.proto.Name, "/") // projects/P/subscriptions/S
	letter.Attributes[source+"DeliveryCount"] = strconv.Itoa(i.failures)
	letter.Attributes[source+"SubscriptionProject"], letter.Attributes[source+"Subscription"] = name[1], name[3]
	letter.Attributes[source+"TopicPublishTime"] = i.message.PublishTime.AsTime().Format(time.RFC3339Nano)
	s.keep(t, []*pubsubpb.PubsubMessage{letter})

	return true
}
