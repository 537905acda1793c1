package endpoint

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

const (
	// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
	callsPerBatch = 50
	// A batch of no more than smallBatch is seldom larger than what a limit of the rate lets through at
	// once: that is believed when it was refused smallTries times, with pauses in which a bucket would
	// have filled.
	smallBatch, smallTries = 4, 3
)

// batches is how many requests a node is known to take at once. most is tried; it is
// halved, or lowered to what was answered, when a batch is refused for its size, and doubled again
// when that was long ago. works is the largest batch that was answered since: the failure of one
// that is no larger has another reason.
type batches struct {
	now func() time.Time

	mu      sync.Mutex
	most    int
	works   int
	doubted bool      // one that was no larger failed: should the next do, its size may be the reason
	tooMany int       // small batches refused for their rate, none answered between
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
	if size > 1 {
		b.tooMany = 0
	}
}

// work reports whether batches of such a size have been answered.
func (b *batches) work(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return size <= b.works && !b.doubted
}

// refused notes that of so many requests of a batch only some were answered.
func (b *batches) refused(size, answered int) {
	if answered == 0 {
		answered = size / 2
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(max(min(b.most, answered), 1))
	b.works, b.doubted = 0, false
}

// tooFast notes that a batch was refused for its rate: one that is larger than what the node lets
// through at once would be refused for ever.
func (b *batches) tooFast(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	least := smallBatch
	if size > 1 && size <= smallBatch {
		if b.tooMany++; b.tooMany == smallTries {
			least, b.tooMany = 1, 0
		}
	}

	if size > least {
		b.set(min(b.most, max(size/2, least)))
	}
}

// doubt has the next batch that fails be tried in parts, though batches of its size have been answered:
// maybe by another machine.
func (b *batches) doubt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doubted = true
}

// excuse notes that a batch of such a size failed for another reason: one of its requests alone
// failed as well.
func (b *batches) excuse(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.works, b.doubted = max(b.works, size), false
}

// mayBeRefused reports whether the failure of a batch as a whole can be one of its size: the first
// request of it, sent alone, decides.
func (b *batches) mayBeRefused(calls []*rpc.Call, err error) bool {
	switch kind := rpc.Classify(err); {
	case len(calls) == 1 || kind == rpc.RateLimited || kind == rpc.Behind || kind == rpc.TimedOut:
		return false
	case kind == rpc.BatchRefused:
		return true
	case errors.Is(err, rpc.ErrTooLarge):
		return !slices.ContainsFunc(calls, isLogs) // else it is the range
	}

	return !b.work(len(calls))
}

// open are the calls of a batch that the node may have refused for being a batch. Of one that is
// answered in part, what is refused may be what was too much.
func (b *batches) open(calls []*rpc.Call, err error) []*rpc.Call {
	if err != nil && !errors.Is(err, rpc.ErrUnanswered) {
		if b.mayBeRefused(calls, err) {
			return calls
		}

		return nil
	}

	var open, failed []*rpc.Call
	logs := slices.ContainsFunc(calls, isLogs)
	for _, c := range calls {
		switch kind := rpc.Classify(c.Err); {
		case kind == rpc.BatchRefused:
			open = append(open, c)
		case kind == rpc.Failed, kind == rpc.Unsupported, kind == rpc.RangeTooLarge && !logs:
			failed = append(failed, c)
		}
	}

	switch {
	case len(open) > 0:
		return open
	case !b.work(len(calls)):
		return failed
	case len(failed) == len(calls):
		b.doubt()
	}

	return nil
}

func isLogs(c *rpc.Call) bool { return c.Method == rpc.GetLogs }
