package testpubsub

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is what happens to publish requests that it matches: first the delay, then the code. A
// request has one ordering key, and so a fault hits all of its messages.
type Fault struct {
	// Topic to hit, by its full name. Zero: any.
	Topic string
	// Key is the ordering key to hit. Zero: any.
	Key string
	// Match decides further, if not nil. It may be called concurrently.
	Match func(*pubsubpb.PubsubMessage) bool
	// Times is how many requests are hit. Zero: all until Remove.
	Times int
	// Delay before anything else happens. Remove ends it. Other requests do not wait.
	Delay time.Duration
	// Code is the answer. OK: as if nothing had happened. PermissionDenied makes the client pause the key; Unavailable,
	// DeadlineExceeded, ResourceExhausted and Internal are retried by the client itself.
	Code codes.Code
	// Stored makes the server store the messages before it answers with Code: the acknowledgement is lost.
	Stored bool
}

// Injected is a fault in force.
type Injected struct {
	Fault
	hits    atomic.Int64
	waiting atomic.Int64
	removed chan struct{}
	remove  func()
}

// Remove ends the fault. Requests that it is delaying go on at once, to the end that the fault has set for them.
func (i *Injected) Remove() { i.remove() }

// Hits is the number of requests that the fault has hit.
func (i *Injected) Hits() int { return int(i.hits.Load()) }

// Waiting is the number of requests that the fault delays now. One whose client has gone is among them
// until the server has heard of that.
func (i *Injected) Waiting() int { return int(i.waiting.Load()) }

// Inject puts a fault into force. Of several that match a request the oldest hits it.
func (s *Server) Inject(f Fault) *Injected {
	i := &Injected{Fault: f, removed: make(chan struct{})}
	i.remove = sync.OnceFunc(func() {
		s.faults.remove(i)
		close(i.removed)
	})
	s.faults.add(i)

	return i
}

// wait returns after the delay, early when the fault is removed, or with an error when the client has gone.
func (i *Injected) wait(ctx context.Context) error {
	if i == nil || i.Delay == 0 {
		return nil
	}

	i.waiting.Add(1)
	defer i.waiting.Add(-1)
	timer := time.NewTimer(i.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-i.removed:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}

	return nil
}

func (i *Injected) status() error { return status.Error(i.Code, "injected fault") }

type faults struct {
	mu   sync.Mutex
	list []*Injected
}

func (f *faults) add(i *Injected) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, i)
}

func (f *faults) remove(i *Injected) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(other *Injected) bool { return other == i })
}

// take returns the fault that hits this request, or nil.
func (f *faults) take(req *pubsubpb.PublishRequest) *Injected {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, i := range f.list {
		if i.Topic != "" && i.Topic != req.Topic || i.Key != "" && i.Key != req.Messages[0].OrderingKey ||
			i.Match != nil && !slices.ContainsFunc(req.Messages, i.Match) {
			continue
		}

		if hits := i.hits.Add(1); int(hits) == i.Times {
			f.list = slices.Delete(f.list, n, n+1)
		}

		return i
	}

	return nil
}
