package fleet_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

const chain = 31337

func TestMain(m *testing.M) {
	// It starts when the package is loaded, which the Cloud SQL connector imports.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// world is a fleet that a test has written, led since an hour ago in blocks 10 to 1000.
type world struct {
	*testfleet.Fleet
	t *testing.T
}

func setup(t *testing.T) *world {
	t.Helper()
	t.Parallel()

	return &world{testfleet.New(t, chain), t}
}

// chainRow makes the leadership row, and all slots, which have been free for some time.
func (w *world) chainRow(leader string, beat, free time.Duration) {
	w.t.Helper()
	w.Leads(testfleet.Leader{ID: leader, Beat: beat, Since: time.Hour, Start: 10, Next: 1000, Verified: 900,
		Factory: "0xfac"})
	w.FreeSlots(500, free)
}

// live starts an instance that owns what its partition prefers; the head of its node is block 1010.
func (w *world) live(id string, number, total int, next int64) *testfleet.Session {
	w.t.Helper()
	return w.Starts(instance(id, number, total, next))
}

// lost is live without the session.
func (w *world) lost(id string, number, total int, next int64) {
	w.t.Helper()
	w.Registers(instance(id, number, total, next))
}

func instance(id string, number, total int, next int64) testfleet.Instance {
	return testfleet.Instance{ID: id, Number: number, Total: total, Head: 1010, Next: next, Escrows: 3, Version: "v1"}
}
