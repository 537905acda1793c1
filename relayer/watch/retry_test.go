package watch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A watch reads again within 10 s of the end of an outage, however long that was: a request that was
// sent before its end may take 5 s.
func TestRetriesAreNotFarApart(t *testing.T) {
	delays := retry()
	for range 1000 {
		require.Less(t, delays.NextBackOff(), 5*time.Second)
	}
}
