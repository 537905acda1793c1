package endpoint

import (
	"errors"
	"slices"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
const callsPerBatch = 50

// takesBatch reports whether batches of such a size have been answered, and none has failed since for no known reason.
func (n *Node) takesBatch(size int) bool { return size == 1 || n.batches.proven(float64(size)) }

// mayBeRefused reports whether the failure of a batch as a whole can be one of its size: the first
// request of it, sent alone, decides.
func (n *Node) mayBeRefused(calls []*rpc.Call, err error) bool {
	switch kind := rpc.Classify(err); {
	case len(calls) == 1 || kind == rpc.RateLimited || kind == rpc.Behind || kind == rpc.TimedOut:
		return false
	case kind == rpc.BatchRefused:
		return true
	case errors.Is(err, rpc.ErrTooLarge):
		return !slices.ContainsFunc(calls, isLogs) // else it is the range
	}

	return !n.takesBatch(len(calls))
}

// open are the calls of a batch that the node may have refused for being a batch. Of one that is
// answered in part, what is refused may be what was too much.
func (n *Node) open(calls []*rpc.Call, err error) []*rpc.Call {
	if err != nil && !errors.Is(err, rpc.ErrUnanswered) {
		if n.mayBeRefused(calls, err) {
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
	case !n.takesBatch(len(calls)):
		return failed
	case len(failed) == len(calls):
		n.batches.spares(float64(len(calls)))
	}

	return nil
}

func isLogs(c *rpc.Call) bool { return c.Method == rpc.GetLogs }
