package verify

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func TestMain(m *testing.M) {
	// Started by the init of a package that Pub/Sub's client imports.
	goleak.VerifyTestMain(m, append(testchain.IgnoreLeaks(),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))...)
}
