package watch

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// A watch reads again within 10 s of the end of an outage, however long that was: a request that was
// sent before its end may take 5 s.
func TestRetriesAreNotFarApart(t *testing.T) {
	delays := retry()
	for range 1000 {
		require.Less(t, delays.NextBackOff(), 5*time.Second)
	}
}

// A reading that waited for an answer longer than the pause is tried again at once.
func TestWhatAReadingTookCounts(t *testing.T) {
	delays := retry()
	for range 10 {
		delays.NextBackOff()
	}

	began := time.Now()
	require.Positive(t, delay(delays, errors.New("refused"), began))
	require.LessOrEqual(t, delay(delays, chain.ErrBehind, began), behindPause)
	require.LessOrEqual(t, delay(delays, rpc.ErrSlow, began.Add(-5*time.Second)), time.Duration(0))
}
