//go:build long

package relayer_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// A free endpoint's rate is told in many ways, and a first start gets through all of them.
func TestFirstStartAtARate(t *testing.T) {
	p := writeHistory(t)
	const each = 5 // items per second
	t.Run("of", func(t *testing.T) {
		try := func(name string, ws bool, f faults.Fault) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f.N = each
				c := firstStart{ws: ws, endpoints: [][]faults.Fault{{f}}}
				require.Less(t, c.run(t, p), historyBlocks, "items: it went round in circles")
			})
		}
		try("429", false, faults.Fault{Mode: faults.Rate})
		try("429, retry after 1 s", false, faults.Fault{Mode: faults.Rate, Delay: time.Second})
		try("ws, a refusal for each of a batch", true, faults.Fault{Mode: faults.Rate})
		for _, status := range []int{http.StatusOK, http.StatusInternalServerError, http.StatusServiceUnavailable} {
			try(fmt.Sprintf("a page under %d", status), false, faults.Fault{Mode: faults.Rate, Status: status})
		}

		for _, words := range []string{
			"Too Many Requests", "limit exceeded", "daily request count exceeded, request rate limited",
			"Your app has exceeded its compute units per second capacity", "project ID request rate exceeded",
			"rate limit exceeded, retry in 1s", "capacity exceeded", "zu viele Anfragen",
		} {
			try("http: "+words, false, faults.Fault{Mode: faults.RateEach, Words: words})
			try("ws: "+words, true, faults.Fault{Mode: faults.RateEach, Words: words})
		}
	})
}
