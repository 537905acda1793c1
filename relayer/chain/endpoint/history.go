package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// sampled is how many headers are looked at for a block that has logs, as its bloom filter says.
const sampled = 32

// errNoOldLogs means that a node has the headers of old blocks, and answers that there are no logs.
var errNoOldLogs = fmt.Errorf("%w: it has the headers of old blocks and not their logs", rpc.ErrBehind)

// sample lists the blocks from..to, at most sampled of them.
func sample(from, to uint64) []uint64 {
	numbers := make([]uint64, 0, sampled)
	for number := from; number < from+sampled && number <= to; number++ {
		numbers = append(numbers, number)
	}

	return numbers
}

// showsLogs tests that a node has the logs of old blocks: those of the first block, from one on, with a bloom filter
// that allows some, if that is one of the next. head is its newest block. It returns that block; 0: there is
// none.
func (n *Node) showsLogs(ctx context.Context, from, head uint64) (block uint64, err error) {
	list, err := n.Headers(ctx, sample(from, head))
	i := slices.IndexFunc(list, func(h rpc.Header) bool { return Telling(&h.Bloom) })
	if i < 0 {
		return 0, err
	}

	none := func(*types.Log) bool { return false }
	a, err := n.readBlock(ctx, list[i], query{filter: &Filter{}, keep: none})
	if err == nil && a.all == 0 {
		err = fmt.Errorf("%w: block %d has some, as its bloom filter says", errNoOldLogs, list[i].Number)
	}

	return list[i].Number, err
}

// indexed makes sure of an answer that a range has no logs: the index of a node may begin later than its headers,
// and [] is its answer then. It is asked once for logs that are as old.
func (n *Node) indexed(ctx context.Context, from uint64) error {
	for from < n.logged.Load() {
		_, err := n.showsLogs(ctx, from, n.Claim().Head.Number)
		switch {
		case err == nil || unwilling(err): // or it cannot be told
			n.logged.Store(from)
		case errors.Is(err, ErrNoHistory): // found out by another reading meanwhile
			return err
		case !errors.Is(err, errNoOldLogs):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n.oldLogs.note(from):
			return fmt.Errorf("%w: %w", ErrNoHistory, err)
		}
	}

	return nil
}
