package endpoint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// validateLogs sorts logs and tests them against the question.
func validateLogs(logs []types.Log, from, to uint64, f *Filter) error {
	order := func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.Index, b.Index))
	}
	if !slices.IsSortedFunc(logs, order) { // parts of a filter, or a provider that asked several nodes itself
		slices.SortFunc(logs, order)
	}

	for i := range logs {
		l := &logs[i]
		var why string
		switch {
		case l.Removed:
			why = "was removed"
		case l.BlockNumber < from || l.BlockNumber > to:
			why = fmt.Sprintf("is not in blocks %d to %d", from, to)
		case !f.Matches(l):
			why = "does not match the filter"
		case l.BlockHash == (common.Hash{}) || l.TxHash == (common.Hash{}) && f.Addresses != nil:
			why = "is in no block yet" // by topics alone it may be a stranger's, and is looked at once it is ours
		case i > 0 && logs[i-1].BlockNumber == l.BlockNumber && logs[i-1].Index == l.Index:
			why = "comes twice"
		case i > 0 && logs[i-1].BlockNumber == l.BlockNumber && logs[i-1].BlockHash != l.BlockHash:
			return fmt.Errorf("%w: block %d has logs of two hashes", ErrDisagree, l.BlockNumber)
		default:
			continue
		}

		return fmt.Errorf("%w: log %d of block %d %s", rpc.ErrInvalid, l.Index, l.BlockNumber, why)
	}

	return nil
}

// validateBlock tests a block's logs against its header and the filter, and fills in their time. Of all
// logs of a block some may be in no bloom filter: those of Polygon's state sync are not
// (0xPolygon/bor#432, l2beat/l2beat#10113). Logs that were asked for have to be.
func validateBlock(logs []types.Log, h rpc.Header, f *Filter) error {
	for i := range logs {
		if l := &logs[i]; l.BlockHash != h.Hash {
			return fmt.Errorf("%w: log %d is of block %s instead of %s", rpc.ErrInvalid, l.Index, l.BlockHash, h.Hash)
		}
	}

	if err := validateLogs(logs, h.Number, h.Number, f); err != nil {
		return err
	}

	asked := f.Addresses != nil || len(f.Topics) > 0
	for i := range logs {
		l := &logs[i]
		// Chains without bloom filters give zeros.
		if asked && h.Bloom != (types.Bloom{}) && !inBloom(&h.Bloom, l) {
			return fmt.Errorf("%w: log %d of block %d is not in the block's bloom filter", rpc.ErrInvalid, l.Index, h.Number)
		}

		l.BlockTimestamp = h.Time
	}

	return nil
}

func inBloom(b *types.Bloom, l *types.Log) bool {
	return b.Test(l.Address.Bytes()) && !slices.ContainsFunc(l.Topics,
		func(t common.Hash) bool { return !b.Test(t.Bytes()) })
}

// SizeOf is about how many bytes logs take up in memory.
func SizeOf(logs []types.Log) int {
	size := 0
	for i := range logs {
		size += 400 + len(logs[i].Data)
	}

	return size
}
