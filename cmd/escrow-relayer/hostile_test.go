package main

import (
	"math/big"
	"os"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// One endpoint of two invents a release: the bits of its log are in the block's bloom filter, under the
// block's true hash, and the log is in what it answers for the range and for the block. Nothing of it is
// published, by the watches or by the verifier, the liar is named, and what the chain has is published.
func TestInventedReleaseIsNotPublished(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			liar, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			urls := liar.HTTP() + "," + w.Chain.HTTP()
			if scheme == "ws" {
				urls = liar.WS() + "," + w.Chain.WS()
			}

			w.run("r0", 0, 1, map[string]string{"RPC_URLS": urls, "VERIFY_INTERVAL": "200ms"})
			w.ready("r0")
			w.blocks(4)
			w.audit(false)

			before := len(w.Received.Messages())
			w.blocks(1)
			lie := liar.Inject(faults.Fault{Mode: faults.Bits, Logs: []types.Log{w.inventRelease()}})
			w.blocks(3)
			w.audit(false)
			require.Greater(t, len(w.Received.Messages()), before)
			require.Positive(t, lie.Hits())
			// The second reading, too, tells the invention from the chain.
			head, err := w.Head(t.Context())
			require.NoError(t, err)
			require.NoError(t, w.Chain.Mine(t.Context(), 200)) // all of it is final
			require.Eventually(t, func() bool {
				return w.count(`select verified_block from leadership`) >= int(head)
			}, 90*time.Second, 20*time.Millisecond)
			require.Zero(t, w.count(`select count(*) from events where log_index = 4000`))
			require.Empty(t, w.Retracted.Messages())
			log, err := os.ReadFile(w.fleet["r0"].LogFile)
			require.NoError(t, err)
			require.Contains(t, string(log), "forged: ")
		})
	}
}

// inventRelease returns the release of a real escrow, in the newest block, that never happened.
func (w *world) inventRelease() types.Log {
	c, err := ethclient.DialContext(w.t.Context(), w.Chain.HTTP())
	require.NoError(w.t, err)
	defer c.Close()
	head, err := c.BlockByNumber(w.t.Context(), nil)
	require.NoError(w.t, err)
	truth, err := w.Truth(w.t.Context(), head.NumberU64())
	require.NoError(w.t, err)
	var open common.Address
	for _, e := range truth.Escrows {
		if len(truth.IDs(e, "EscrowReleased", "EscrowRefunded")) == 0 {
			open = e
		}
	}

	require.NotEqual(w.t, common.Address{}, open)
	number, err := abi.NewType("uint256", "", nil)
	require.NoError(w.t, err)
	data, err := abi.Arguments{{Type: number}, {Type: number}}.Pack(big.NewInt(1e18), big.NewInt(1_700_000_000))
	require.NoError(w.t, err)

	return types.Log{
		Address: open, Data: data, BlockNumber: head.NumberU64(), BlockHash: head.Hash(), BlockTimestamp: head.Time(),
		TxHash: common.Hash{0xba, 0xd0}, Index: 4000,
		Topics: []common.Hash{crypto.Keccak256Hash([]byte("EscrowReleased(address,uint256,uint256)")), {12: 0xba, 31: 0xd}},
	}
}
