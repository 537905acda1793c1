package chain

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// What Config.Proof may be: which blocks are proved before they are given to a reader.
const (
	ProveNear  = "near"  // those above View.Final; and below it those that have events, up to an hour back
	ProveAll   = "all"   // the same of all blocks that have events
	ProveWhole = "whole" // all blocks, one by one: nothing is read by range
	ProveNone  = "none"  // what proves itself; nothing has to
)

// nearBlocks and nearTime are how far below the tip a range is news and no history: at least so many blocks, and
// those of so much time.
const nearBlocks, nearTime = ringSize, time.Hour

// leapBlocks and leapTime are what a reader that keeps up reads at once: rollups call so much final at a time.
const leapBlocks, leapTime = 256, 10 * time.Minute

// atLeast is so many blocks, or as many as the chain makes in so much time, whichever is more.
func (o *outlook) atLeast(blocks uint64, in time.Duration) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pace.atLeast(blocks, in)
}

// proveEvents puts what is proved of the blocks that have logs in the place of what one endpoint has said of
// them, where Config.Proof wants it.
func (r *reader) proveEvents(ctx context.Context, b Batch) (Batch, error) {
	if !r.laws.Headers.Holds() || endpoint.IsLater(ctx) {
		return b, nil
	}

	from := uint64(0)
	if tip, _ := r.outlook.agreement.Tip(); r.proof == ProveNear {
		from = tip.number - min(tip.number, r.outlook.atLeast(nearBlocks, nearTime))
	}

	claimed := ByBlock(b.Logs)
	maps.DeleteFunc(claimed, func(n uint64, _ []types.Log) bool { return n < from })
	if len(claimed) == 0 {
		return b, nil
	}

	headers, _, err := r.canonical(ctx, slices.Sorted(maps.Keys(claimed))...)
	if err != nil {
		return Batch{}, err
	}

	var mu sync.Mutex
	proved := map[uint64][]types.Log{}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(provedInFlight)
	for some := range slices.Chunk(headers, provedAtOnce) {
		g.Go(func() error {
			batch := r.batchProved(inner, some, b.Filter)
			for _, h := range some {
				logs, isProved := batch[h.Number]
				said := reading{logs: logs, proved: isProved}
				if !isProved {
					var err error
					if said, err = r.logsOf(inner, h, b.Filter, nil); err != nil {
						return fmt.Errorf("prove block %d: %w", h.Number, err)
					}
				}

				if said.proved {
					Refute(inner, b.By, claimed[h.Number], h, said.logs)
				}

				mu.Lock()
				proved[h.Number] = said.logs
				mu.Unlock()
			}

			return nil
		})
	}

	if err := g.Wait(); err != nil {
		return Batch{}, err
	}

	b.Logs = Replace(b.Logs, proved)

	return b, nil
}

// Of a range so many blocks are proved in one batch, and so many batches are in flight. Several ranges are in flight.
const provedAtOnce, provedInFlight = 8, 2

// batchProved returns the logs of blocks that a batch proves, by their numbers, from whichever endpoint is asked first.
// In a time of large blocks there is none.
func (r *reader) batchProved(ctx context.Context, headers []Header, f *Filter) (logs map[uint64][]types.Log) {
	headers = slices.DeleteFunc(slices.Clone(headers), func(h Header) bool { return !h.Proved || excluded(h, f) })
	if len(headers) < 2 || r.flight.width() < endpoint.RangesInFlight {
		return nil
	}

	_ = r.pool.ask(ctx, headers[len(headers)-1].Number, nil, func(ctx context.Context, n *endpoint.Node) error {
		var size int
		logs, size = n.ReadProved(ctx, headers, f)
		r.flight.landed(size/len(headers), nil)

		return nil
	})

	return logs
}

// Replace returns logs with those of some blocks replaced, in the chain's order.
func Replace(logs []types.Log, proved map[uint64][]types.Log) []types.Log {
	list := make([]types.Log, 0, len(logs))
	for i := range logs {
		if _, replaced := proved[logs[i].BlockNumber]; !replaced {
			list = append(list, logs[i])
		}
	}

	for _, some := range proved {
		list = append(list, some...)
	}

	slices.SortFunc(list, func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.Index, b.Index))
	})

	return list
}

// ByBlock are logs by the number of their block.
func ByBlock(logs []types.Log) map[uint64][]types.Log {
	blocks := map[uint64][]types.Log{}
	for i := range logs {
		blocks[logs[i].BlockNumber] = append(blocks[logs[i].BlockNumber], logs[i])
	}

	return blocks
}

// Refute sets an endpoint aside that said something else of a block than what is proved. That it left logs
// out may be an accident; what it invented is none.
func Refute(ctx context.Context, by *endpoint.Node, said []types.Log, h Header, proved []types.Log) {
	if by == nil || slices.EqualFunc(said, proved, SameLog) {
		return
	}

	if len(said) > 0 && said[0].BlockHash != h.Hash {
		by.Disagrees() // it is of a branch that the chain has left
		return
	}

	what := fmt.Sprintf("it gave %d logs of block %d, which are not the %d that the receipts of block %s prove", len(said),
		h.Number, len(proved), h.Hash)
	for _, l := range said {
		if !slices.ContainsFunc(proved, func(there types.Log) bool { return SameLog(there, l) }) {
			by.Blame(ctx, &endpoint.Forgery{What: what, Evidence: fmt.Sprintf("%+v", l)})
			return
		}
	}

	by.Blame(ctx, fmt.Errorf("%w: %s", rpc.ErrInvalid, what))
}

// SameLog reports whether two logs are the same in all that a block's hash vouches for.
func SameLog(a, b types.Log) bool {
	return a.BlockHash == b.BlockHash && a.Index == b.Index && a.TxHash == b.TxHash && a.Address == b.Address &&
		slices.Equal(a.Topics, b.Topics) && bytes.Equal(a.Data, b.Data)
}
