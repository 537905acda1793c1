package endpoint

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
const callsPerBatch = 50

// batches is how many requests a node takes at once. The failure of a batch that is no larger than one that was
// answered has another reason, once.
type batches struct{ *limit }

func newBatches(now func() time.Time) batches {
	return batches{newLimit(callsAtOnce, callsPerBatch, callsPerBatch, now)}
}

// work reports whether batches of such a size have been answered, and none has failed since for an unknown reason.
func (b batches) work(size int) bool { return b.proven(float64(size)) }

// doubt notes that a batch of such a size failed, maybe at another machine: should the next do, it may be its size.
func (b batches) doubt(size int) { b.spares(float64(size)) }

// tooLarge notes that of so many requests of a batch only some were answered.
func (b batches) tooLarge(size, answered int) {
	b.refused(float64(size), float64(cmp.Or(answered, size/2)))
}

// takes notes that batches of such a size are taken: one was answered, or failed for another reason, since one of its
// requests alone failed as well.
func (b batches) takes(size int) { b.answered(float64(size), 0) }

// mayBeRefused reports whether the failure of a batch as a whole can be one of its size: the first
// request of it, sent alone, decides.
func (b batches) mayBeRefused(calls []*rpc.Call, err error) bool {
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
func (b batches) open(calls []*rpc.Call, err error) []*rpc.Call {
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
		b.doubt(len(calls))
	}

	return nil
}

func isLogs(c *rpc.Call) bool { return c.Method == rpc.GetLogs }
