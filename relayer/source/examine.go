package source

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Examination is what questions told about one endpoint. Of what was not asked, since something before went wrong, the fields are zero.
type Examination struct {
	Name, URL string // rpc0, …; scheme and host
	Err       error  // the endpoint cannot be used, and why: it does not answer, or serves another chain
	ChainID   uint64
	Head      uint64
	HeadTime  time.Time
	Latency   time.Duration // median of a small request

	Code            bool    // there is a contract at the factory's address
	Safe, Finalized *uint64 // nil: it does not know the tag
	Batch           bool    // takes batches
	Subscribes      error   // newHeads over WebSocket; nil over HTTP too
	WebSocket       bool

	Range        uint64 // blocks that one request for logs may ask for; at most what was asked for, the configured limit
	RangeErr     error  // what it said to more; nil: nothing was refused
	RangeLimited bool   // it was for the range; else for some other reason, as that it lacks old blocks
	Oldest       uint64 // block from which on it serves headers and logs; the first that is needed, if it has that
	OldestErr    error  // what it said to the first that is needed; nil: it has it
	OldestLogs   bool   // it is the logs that are missing there
}

// Bounds of what an examination costs an endpoint.
const (
	latencySamples = 9
	rangeProbes    = 16
	archiveProbes  = 34 // a chain of 2^34 blocks, halved
)

// Examine asks every endpoint what it is and what it can do, at most some 70 requests each, one after the other. start is the first block that is needed. It is for
// a Source that does not run.
func (s *Source) Examine(ctx context.Context, factory common.Address, start uint64) []Examination {
	defer s.rest()
	list := make([]Examination, len(s.endpoints))
	var wg sync.WaitGroup
	for i, e := range s.endpoints {
		wg.Go(func() {
			x := &list[i]
			x.Name, x.URL, x.WebSocket = e.name, e.shown, e.ws != nil
			x.Err = e.examine(ctx, x, factory, start)
		})
	}
	wg.Wait()
	return list
}

// once sends calls without regard to what the endpoint did before, and without its affecting what comes after.
func (e *endpoint) once(ctx context.Context, calls ...*call) error {
	if err := e.limiter.WaitN(ctx, min(len(calls), max(e.limiter.Burst(), 1))); err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, e.s.cfg.Timeout, fmt.Errorf("%w: %s waited %s for %s (RPC timeout)", errSlow, e.name, e.s.cfg.Timeout, calls[0].method))
	defer cancel()
	_, _, err := e.conn.exchange(limited, calls)
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	for _, c := range calls {
		c.err = e.s.secrets.Error(c.err)
	}
	return e.s.secrets.Error(err)
}

// one asks and decodes.
func (e *endpoint) one(ctx context.Context, q *call, to any) error {
	if err := e.once(ctx, q); err != nil {
		return err
	}
	return q.decode(to)
}

func (e *endpoint) examine(ctx context.Context, x *Examination, factory common.Address, start uint64) error {
	var id hexutil.Uint64
	if err := e.one(ctx, &call{method: chainIDMethod, params: "[]"}, &id); err != nil {
		return err
	}
	x.ChainID = uint64(id)
	if x.ChainID != e.s.cfg.ChainID {
		return fmt.Errorf("%w: it serves chain %d, CHAIN_ID is %d", ErrWrongChain, x.ChainID, e.s.cfg.ChainID)
	}
	var took []time.Duration
	var head Header
	for range latencySamples {
		asked := e.s.now()
		if err := e.one(ctx, byTag("latest"), &head); err != nil {
			return err
		}
		took = append(took, e.s.now().Sub(asked))
	}
	slices.Sort(took)
	x.Latency, x.Head, x.HeadTime = took[len(took)/2], head.Number, time.Unix(int64(head.Time), 0)
	var code hexutil.Bytes
	if err := e.one(ctx, &call{method: codeMethod, params: `["` + factory.Hex() + `","latest"]`}, &code); err != nil {
		return err
	}
	x.Code = len(code) > 0
	for tag, to := range map[string]**uint64{"safe": &x.Safe, "finalized": &x.Finalized} {
		var h Header
		if err := e.one(ctx, byTag(tag), &h); err == nil {
			*to = &h.Number
		}
	}
	two := []*call{byNumber(head.Number), {method: chainIDMethod, params: "[]"}}
	x.Batch = e.once(ctx, two...) == nil && two[0].err == nil && two[1].err == nil
	if e.ws != nil {
		var subscription string
		x.Subscribes = e.one(ctx, &call{method: subscribeMethod, params: `["newHeads"]`}, &subscription)
	}
	e.probeRange(ctx, x)
	e.probeHistory(ctx, x, start)
	return ctx.Err()
}

// asksFor asks for the logs of a range that nobody emitted, so that only the range can be too large.
func (e *endpoint) asksFor(ctx context.Context, from, to uint64) error {
	nothing := common.Hash{0xe5, 0xc0}
	q := &call{method: logsMethod, params: `[{"fromBlock":"` + quantity(from) + `","toBlock":"` + quantity(to) + `","topics":[["` + nothing.Hex() + `"]]}]`}
	if err := e.once(ctx, q); err != nil {
		return err
	}
	return q.err
}

// probeRange finds the largest range that is answered, up to the configured one, at the head, where every node has the blocks.
func (e *endpoint) probeRange(ctx context.Context, x *Examination) {
	most := min(e.s.cfg.MaxRange, x.Head+1)
	asks := func(n uint64) error { return e.asksFor(ctx, x.Head+1-n, x.Head) }
	err := asks(most)
	if err == nil {
		x.Range = most
		return
	}
	x.RangeErr, x.RangeLimited = err, classify(err) == tooLarge
	low, high := uint64(0), most // low is answered, high is not
	for range rangeProbes {
		if high-low <= max(1, low/64) || ctx.Err() != nil { // limits are round numbers; a little less does as well
			break
		}
		if n := low + (high-low)/2; asks(n) == nil {
			low = n
		} else {
			high = n
		}
	}
	x.Range = low
}

// probeHistory finds the oldest block from the first needed on whose header and logs are served.
func (e *endpoint) probeHistory(ctx context.Context, x *Examination, start uint64) {
	x.Oldest = min(start, x.Head)
	has := func(n uint64) (logs bool, err error) {
		var h Header
		if err := e.one(ctx, byNumber(n), &h); err != nil {
			return false, err
		}
		return true, e.asksFor(ctx, n, n)
	}
	if x.OldestLogs, x.OldestErr = has(x.Oldest); x.OldestErr == nil {
		x.OldestLogs = false
		return
	}
	low, high := x.Oldest, x.Head // low is missing, high is there
	for range archiveProbes {
		if high-low <= 1 || ctx.Err() != nil {
			break
		}
		if n := low + (high-low)/2; missing(has(n)) {
			low = n
		} else {
			high = n
		}
	}
	x.Oldest = high
}

func missing(_ bool, err error) bool { return err != nil }
