package database

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// It starts when the package is loaded, which the Cloud SQL connector imports.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}
