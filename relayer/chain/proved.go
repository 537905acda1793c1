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

	"github.com/ethereum/go-ethereum/common"
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

// Blocks of a range are proved in batches, of at most so many blocks, with about so many transactions. So many batches
// of a range are in flight, and several ranges are.
const provedAtOnce, provedTransactions, provedInFlight = 25, 1500, 2

// proveEvents puts what is proved of the blocks that have logs in the place of what one endpoint has said of
// them, where Config.Proof wants it.
func (s *Source) proveEvents(ctx context.Context, b Batch) (Batch, error) {
	if !s.laws.Headers.Holds() {
		return b, nil
	}

	from := uint64(0)
	if tip, _ := s.outlook.agreement.Tip(); s.cfg.Proof == ProveNear {
		from = tip.number - min(tip.number, s.outlook.atLeast(nearBlocks, nearTime))
	}

	claimed := ByBlock(b.Logs)
	maps.DeleteFunc(claimed, func(n uint64, _ []types.Log) bool { return n < from })
	var mu sync.Mutex
	proved := map[uint64][]types.Log{}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(provedInFlight)
	atOnce := min(max(provedTransactions/(b.Last.Transactions+1), 1), provedAtOnce)
	for some := range slices.Chunk(slices.Sorted(maps.Keys(claimed)), atOnce) {
		g.Go(func() error {
			logs, err := s.proveClaims(inner, &b, claimed, some)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(proved, logs)

			return err
		})
	}

	if err := g.Wait(); err != nil {
		return Batch{}, err
	}

	b.Logs = Replace(b.Logs, proved)

	return b, nil
}

// proveClaims returns the logs of some blocks of a range, for which an endpoint has claimed others or the same: proved
// together by what one endpoint gives of them, as long as blocks are not large, or else one by one.
func (s *Source) proveClaims(ctx context.Context, b *Batch, claimed map[uint64][]types.Log, numbers []uint64) (
	map[uint64][]types.Log, error) {
	hash := func(n uint64) common.Hash { return claimed[n][0].BlockHash }
	var cast vote
	var by *endpoint.Node
	var found map[common.Hash][]types.Log
	if s.flight.width() == endpoint.RangesInFlight {
		_ = s.ask(ctx, numbers[len(numbers)-1], nil, func(ctx context.Context, n *endpoint.Node) error {
			headers, logs, size := n.ReadProved(ctx, numbers, hash, b.Filter)
			by, found = n, logs
			if s.ring.add(headers...); len(headers) == len(numbers) {
				cast = vote{n, headers}
			}

			s.flight.landed(size/len(numbers), nil)

			return nil
		})
	}

	headers, _, err := s.canonical(ctx, cast, numbers...)
	if err != nil {
		return nil, err
	}

	proved := map[uint64][]types.Log{}
	for _, h := range headers {
		logs, isProved := found[h.Hash]
		if isProved { // and the block is the chain's
			if s.laws.Receipts.Kept(by.Name(), h.Number); len(logs) > 0 {
				s.laws.Bodies.Kept(by.Name(), h.Number)
			}
		} else {
			said, err := s.logsOf(ctx, h, query{filter: b.Filter})
			if err != nil {
				return nil, fmt.Errorf("prove block %d: %w", h.Number, err)
			}

			logs, isProved = said.logs, said.proved
		}

		if isProved {
			Refute(ctx, b.By, claimed[h.Number], h, logs)
		}

		proved[h.Number] = logs
	}

	return proved, nil
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
