package testchain

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/stretchr/testify/require"
)

// A chain of minutes is reorganised below its final block, too: geth's freezer must not find one.
func TestTheFreezerFindsNothing(t *testing.T) {
	t.Parallel()
	s := NewSim(t, Options{})
	require.NoError(t, s.Mine(t.Context(), 33))
	require.EqualValues(t, 32, s.eth.BlockChain().CurrentFinalBlock().Number.Uint64())
	require.Zero(t, rawdb.ReadFinalizedBlockHash(s.eth.ChainDb()))
	require.NoError(t, s.Reorg(t.Context(), 3, Keep))
	require.NoError(t, s.AdvanceTime(t.Context(), time.Hour))
	require.Zero(t, rawdb.ReadFinalizedBlockHash(s.eth.ChainDb()))
}
