package testchain

import (
	"reflect"
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

// The freezer looks in the moment in which the final block is there: the chain is reorganised all the same.
func TestWhatTheFreezerHasFound(t *testing.T) {
	t.Parallel()
	s := NewSim(t, Options{})
	require.NoError(t, s.Mine(t.Context(), 40))
	db := s.eth.ChainDb()
	rawdb.WriteFinalizedBlockHash(db, s.eth.BlockChain().CurrentFinalBlock().Hash())
	freezer := reflect.ValueOf(db).Elem().FieldByName("Database").Interface() // of what geth's node gives
	require.NoError(t, freezer.(interface{ Freeze() error }).Freeze())
	frozen, err := db.Ancients()
	require.NoError(t, err)
	require.EqualValues(t, 33, frozen)
	require.NoError(t, s.Reorg(t.Context(), 20, Keep))
	require.NoError(t, s.Mine(t.Context(), 1))
	require.EqualValues(t, 42, s.head())
	for n := s.head(); n > 0; n-- {
		require.Equal(t, s.eth.BlockChain().GetBlockByNumber(n-1).Hash(), s.eth.BlockChain().GetBlockByNumber(n).ParentHash())
	}
}
