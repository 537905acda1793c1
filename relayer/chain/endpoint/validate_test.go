package endpoint

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// A log that was asked for and is not in its block's bloom filter was invented. Among all logs of a
// block there may be some: Polygon has such blocks.
func TestLogsThatAreNotInTheBloomFilter(t *testing.T) {
	h := rpc.Header{Number: 7, Hash: common.Hash{7}, Time: 100}
	h.Bloom.Add(common.Address{1}.Bytes())
	h.Bloom.Add(common.Hash{1}.Bytes())
	log := func(n byte) types.Log {
		return types.Log{Address: common.Address{n}, Topics: []common.Hash{{n}}, BlockNumber: 7, BlockHash: h.Hash,
			TxHash: common.Hash{9}, Index: uint(n)}
	}
	whole := []types.Log{log(1), log(2)}
	require.NoError(t, validateBlock(whole, h, &Filter{}))
	require.EqualValues(t, 100, whole[1].BlockTimestamp)

	require.NoError(t, validateBlock([]types.Log{log(1)}, h, &Filter{Topics: []common.Hash{{1}}}))
	err := validateBlock([]types.Log{log(2)}, h, &Filter{Topics: []common.Hash{{2}}})
	require.ErrorIs(t, err, rpc.ErrInvalid)
	require.ErrorContains(t, err, "not in the block's bloom filter")
}
