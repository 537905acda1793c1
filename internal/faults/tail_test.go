package faults

import (
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/stretchr/testify/require"
)

// A chain of its own is valid in all that hashes prove: each block's header hashes to its name and leads to the one
// before, down to the chain's, and its roots are those of its receipts and transactions.
func TestOwnChain(t *testing.T) {
	sim, n := chain(t)
	truth, err := ethclient.DialContext(t.Context(), sim.HTTP())
	require.NoError(t, err)
	defer truth.Close()
	liar, err := ethclient.DialContext(t.Context(), n.HTTP())
	require.NoError(t, err)
	defer liar.Close()
	top := head(t, n)
	for _, ahead := range []int{-2, 0, 7} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			invented := types.Log{Address: common.Address{0xee}, Topics: []common.Hash{{0xa}}, Data: []byte("invented")}
			own := n.Inject(Fault{Mode: Own, N: top - 5, Ahead: ahead, Logs: []types.Log{invented}})
			defer own.Remove()
			newest, err := liar.BlockByNumber(t.Context(), nil)
			require.NoError(t, err)
			require.EqualValues(t, int(top)+ahead, newest.NumberU64())
			for b := newest; b.NumberU64() >= top-5; {
				require.Equal(t, types.DeriveSha(b.Transactions(), trie.NewStackTrie(nil)), b.TxHash())
				receipts, err := liar.TransactionReceipt(t.Context(), b.Transactions()[0].Hash())
				require.NoError(t, err)
				require.Equal(t, types.DeriveSha(types.Receipts{receipts}, trie.NewStackTrie(nil)), b.ReceiptHash())
				require.Equal(t, b.Hash(), receipts.BlockHash)
				before := b
				b, err = liar.BlockByHash(t.Context(), b.ParentHash())
				require.NoError(t, err)
				require.Equal(t, before.ParentHash(), b.Hash())
			}

			actual, err := truth.HeaderByNumber(t.Context(), newest.Number().SetUint64(top-6))
			require.NoError(t, err)
			there, err := liar.HeaderByNumber(t.Context(), actual.Number)
			require.NoError(t, err)
			require.Equal(t, actual.Hash(), there.Hash())
			logs := allLogs(t, n, top+20).logs(t)
			require.Equal(t, invented.Data, logs[len(logs)-1].Data)
			require.EqualValues(t, int(top)+ahead, logs[len(logs)-1].BlockNumber)
		})
	}
}
