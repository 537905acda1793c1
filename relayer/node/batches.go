package node

import (
	"errors"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

const (
	// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
	callsPerBatch = 50
	// smallBatch is what no limit of a rate forbids: no burst is smaller, and the logs of a range stay
	// with their header.
	smallBatch = 4
)

// batches is how many requests a node takes at once, as far as it is known. most is tried; it is
// halved, or lowered to what was answered, when a batch is refused for its size, and doubled again
// when that was long ago. works is the largest batch that was answered since: the failure of one
// that is no larger has another reason.
type batches struct {
	now func() time.Time

	mu      sync.Mutex
	most    int
	works   int
	changed time.Time // when most was
}

func newBatches(now func() time.Time) *batches { return &batches{now: now, most: callsPerBatch} }

// size is how many requests to send at once.
func (b *batches) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most < callsPerBatch && !lately(b.changed, b.now()) {
		b.set(min(2*b.most, callsPerBatch))
	}

	return b.most
}

// set changes the size. Held: mu.
func (b *batches) set(most int) {
	b.most, b.changed = most, b.now()
}

// answered notes that each request of a batch was.
func (b *batches) answered(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.works = max(b.works, size)
}

// work says whether batches of such a size have been answered.
func (b *batches) work(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return size <= b.works
}

// refused takes in that of so many requests of a batch only some were answered.
func (b *batches) refused(size, answered int) {
	if answered == 0 {
		answered = size / 2
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(max(min(b.most, answered), 1))
	b.works = 0
}

// tooFast takes in that a batch was refused for its rate: one that is larger than what the node lets
// through at once would be refused for ever.
func (b *batches) tooFast(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > smallBatch {
		b.set(min(b.most, max(size/2, smallBatch)))
	}
}

// forget has the next batch that fails be tried in parts.
func (b *batches) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.works = 0
}

// mayBeRefused says whether the failure of a batch as a whole can be one of its size: the first
// request of it, sent alone, decides.
func (b *batches) mayBeRefused(size int, err error) bool {
	switch rpc.Classify(err) {
	case rpc.RateLimited, rpc.Behind, rpc.TimedOut:
		return false
	}

	return size > 1 && !b.work(size) && !errors.Is(err, rpc.ErrTooLarge)
}

// open are the calls of a batch that the node may have refused for being a batch.
func (b *batches) open(calls []*rpc.Call, err error) []*rpc.Call {
	if err != nil && !errors.Is(err, rpc.ErrUnanswered) {
		if rpc.Classify(err) == rpc.BatchRefused || b.mayBeRefused(len(calls), err) {
			return calls
		}

		return nil
	}

	var open []*rpc.Call
	failures := 0
	for _, c := range calls {
		switch rpc.Classify(c.Err) {
		case rpc.BatchRefused:
			open = append(open, c)
			failures++
		case rpc.Failed, rpc.Unsupported:
			failures++
		}
	}

	if len(open) == 0 && failures == len(calls) && !b.work(len(calls)) {
		return calls
	}

	return open
}
