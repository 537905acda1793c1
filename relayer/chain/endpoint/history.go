package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// sampled is how many headers are looked at together for a block that has logs, as its bloom filter says, and
// mostSampled how many in all: those of a first range.
const sampled, mostSampled = 32, firstSpan

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

// showsLogs tests that a node has the logs of blocks: those of the first of from..to with a bloom filter that allows
// some. It returns that block; 0: there is none, as far as was looked.
func (n *Node) showsLogs(ctx context.Context, from, to uint64) (block uint64, err error) {
	for end := from + mostSampled; from < end && from <= to; from += sampled {
		list, err := n.Headers(ctx, sample(from, to))
		i := slices.IndexFunc(list, func(h rpc.Header) bool { return Telling(&h.Bloom) })
		if i < 0 || list[i].Number != from+uint64(i) { // or one before it is missing
			if err != nil {
				return 0, err
			}

			continue
		}

		none := func(*types.Log) bool { return false }
		a, err := n.readBlock(ctx, list[i], query{filter: &Filter{}, keep: none})
		if err == nil && a.all == 0 {
			err = fmt.Errorf("%w: block %d has some, as its bloom filter says", errNoOldLogs, list[i].Number)
		}

		return list[i].Number, err
	}

	return 0, nil
}

// indexed makes sure of an answer that there are no logs in from..silent: the index of a node may begin later than its
// headers, and it leaves out what is older. It is asked once for logs that are as old.
func (n *Node) indexed(ctx context.Context, from, silent uint64) error {
	for !n.gives.oldLogs.given(from) {
		_, err := n.showsLogs(ctx, from, silent)
		switch {
		case err == nil || unwilling(err): // or it cannot be told
			n.gives.oldLogs.gave(from)
		case errors.Is(err, ErrNoHistory): // found out by another reading meanwhile
			return err
		case !errors.Is(err, rpc.ErrBehind): // it is told by the next range
			return nil
		case !errors.Is(err, errNoOldLogs):
			return err
		case n.gives.oldLogs.note(from):
			return fmt.Errorf("%w: %w", ErrNoHistory, err)
		}
	}

	return nil
}
