package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Examination is what questions told about one endpoint. Of what was not asked, since something
// before went wrong, the fields are zero.
type Examination struct {
	Name     string // scheme and host
	Err      error  // the endpoint cannot be used, and why: it does not answer, or serves another chain
	ChainID  uint64
	Head     uint64
	HeadTime time.Time
	Latency  time.Duration // median of a small request

	Safe, Finalized *uint64 // nil: it does not know the tag
	Subscribes      error   // newHeads over WebSocket; nil over HTTP too
	WebSocket       bool

	Rate      float64 // requests per second that it lets through, where it limited them; 0: it did not
	Addressed error   // what it said to a filter without addresses; nil: it takes one

	Range      uint64 // blocks that one request for logs may ask for; at most what was asked for, the configured limit
	RangeErr   error  // what it said to more; nil: nothing was refused
	Oldest     uint64 // block from which on it serves headers and logs; the first that is needed, if it has that
	OldestErr  error  // what it said to the first that is needed; nil: it has it
	OldestLogs bool   // it is the logs that are missing there
	Logged     uint64 // the first block from Oldest on that has logs, as its bloom filter says; 0: none of the next 32 has

	Provable
}

// Bounds of what an examination costs an endpoint.
const (
	latencySamples = 9
	rangeProbes    = 16
	rateRetries    = 5
	archiveProbes  = 34 // a chain of 2^34 blocks, halved
)

// Examine asks the node what it is and what it can do, some 200 requests at most, one after the
// other. factory is one of those that are followed; start is the first block that is needed.
func (n *Node) Examine(ctx context.Context, factory common.Address, start uint64) Examination {
	x := Examination{Name: n.cfg.Name, WebSocket: n.WebSocket()}
	x.Err = n.examine(ctx, &x, factory, start)
	x.Rate = n.gate.learnt()

	return x
}

// once sends calls without regard to what the node did before, and waits where it limits its rate.
func (n *Node) once(ctx context.Context, calls ...*rpc.Call) error {
	var err error
	b := bounds{timeout: n.cfg.Timeout, limit: blockAnswer}
	for range rateRetries {
		refusal := err
		if err = n.attempt(ctx, b, calls); rpc.Classify(err) != rpc.RateLimited {
			if ctx.Err() != nil && refusal != nil {
				return refusal // its words say more than the end of the time
			}

			return err
		}

		if errors.Is(err, errPaused) && refusal != nil {
			err = refusal // the words why
		}

		if Wait(ctx, min(n.Pause(false), LongestWait)) != nil {
			return err // its words say more than the end of the time
		}
	}

	return err
}

// one asks and decodes.
func (n *Node) one(ctx context.Context, q *rpc.Call, to any) error {
	if err := n.once(ctx, q); err != nil {
		return err
	}

	return q.Decode(to)
}

func (n *Node) examine(ctx context.Context, x *Examination, factory common.Address, start uint64) error {
	var id rpc.Number
	if err := n.one(ctx, &rpc.Call{Method: rpc.ChainID, Params: "[]"}, &id); err != nil {
		return err
	}

	x.ChainID = uint64(id)
	if x.ChainID != n.cfg.ChainID {
		return fmt.Errorf("%w: it serves chain %d, CHAIN_ID is %d", ErrWrongChain, x.ChainID, n.cfg.ChainID)
	}

	var took []time.Duration
	var head rpc.Header
	for range latencySamples {
		asked := n.cfg.Now()
		if err := n.one(ctx, rpc.ByTag("latest"), &head); err != nil {
			return err
		}

		took = append(took, n.cfg.Now().Sub(asked))
	}

	if err := n.ShowsParent(ctx, head); err != nil {
		return err
	}

	slices.Sort(took)
	x.Latency, x.Head, x.HeadTime = took[len(took)/2], head.Number, time.Unix(int64(head.Time), 0)
	for tag, to := range map[string]**uint64{"safe": &x.Safe, "finalized": &x.Finalized} {
		var h rpc.Header
		if err := n.one(ctx, rpc.ByTag(tag), &h); err == nil {
			*to = &h.Number
		}
	}

	if n.WebSocket() {
		_, x.Subscribes = n.Subscribe(ctx)
	}

	var named []common.Address
	if err := n.asksFor(ctx, head.Number, head.Number); err != nil &&
		n.asksFor(ctx, head.Number, head.Number, factory) == nil { // whatever its words were
		x.Addressed, named = err, []common.Address{factory}
	}

	n.probeRange(ctx, x, named)
	n.probeHistory(ctx, x, start, named)
	n.probeProofs(ctx, &x.Provable, head)
	params := `["` + factory.Hex() + `","` + rpc.Quantity(min(start-min(start, 1), head.Number)) + `"]`
	x.StateErr = n.one(ctx, &rpc.Call{Method: rpc.GetNonce, Params: params}, new(hexutil.Uint64))

	return ctx.Err()
}

// asksFor asks for logs that do not exist, so that only the range can be too
// large; of a contract where a node may want one named.
func (n *Node) asksFor(ctx context.Context, from, to uint64, named ...common.Address) error {
	nothing := common.Hash{0xe5, 0xc0}
	address := ""
	if len(named) > 0 {
		address = `,"address":["` + named[0].Hex() + `"]`
	}

	q := &rpc.Call{Method: rpc.GetLogs, Params: `[{"fromBlock":"` + rpc.Quantity(from) + `","toBlock":"` +
		rpc.Quantity(to) + `","topics":[["` + nothing.Hex() + `"]]` + address + `}]`}
	if err := n.once(ctx, q); err != nil {
		return err
	}

	return q.Err
}

// probeRange finds the largest range that is answered, up to the configured one, at the head, where
// every node has the blocks.
func (n *Node) probeRange(ctx context.Context, x *Examination, named []common.Address) {
	most := min(n.cfg.MaxRange, x.Head+1)
	asks := func(blocks uint64) error { return n.asksFor(ctx, x.Head+1-blocks, x.Head, named...) }
	err := asks(most)
	if err == nil {
		x.Range = most
		return
	}

	x.RangeErr = err
	const near = 64 // limits are round numbers; one part in so many less does as well
	x.Range, _ = narrow(ctx, 0, most, near, rangeProbes, func(blocks uint64) bool { return asks(blocks) == nil })
}

// narrow halves the space between low, where a condition holds, and high, where it fails,
// until they are neighbours, or as close as one part in near of low (0: of nothing), or tries are over.
func narrow(ctx context.Context, low, high, near uint64, tries int, so func(uint64) bool) (uint64, uint64) {
	for range tries {
		if high-low <= 1 || near > 0 && high-low <= low/near || ctx.Err() != nil {
			break
		}

		if middle := low + (high-low)/2; so(middle) {
			low = middle
		} else {
			high = middle
		}
	}

	return low, high
}

// probeHistory finds the oldest block, from the first needed on, with header and logs served.
func (n *Node) probeHistory(ctx context.Context, x *Examination, start uint64, named []common.Address) {
	x.Oldest = min(start, x.Head)
	has := func(number uint64) (logs bool, err error) {
		var h rpc.Header
		if err := n.one(ctx, rpc.ByNumber(number), &h); err != nil {
			return false, err
		}

		if err := n.asksFor(ctx, number, number, named...); err != nil || named != nil {
			return true, err
		}

		block, err := n.showsLogs(ctx, number, x.Head)
		if errors.Is(err, errNoOldLogs) {
			return true, err
		}

		if err == nil {
			x.Logged = block
		}

		return true, nil
	}
	if x.OldestLogs, x.OldestErr = has(x.Oldest); x.OldestErr == nil {
		x.OldestLogs = false
		return
	}

	_, x.Oldest = narrow(ctx, x.Oldest, x.Head, 0, archiveProbes, func(number uint64) bool {
		_, err := has(number)
		return err != nil
	})
}
