package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

// An instance that does not check its slots, and was found dead for that, still writes its heartbeat. It
// stays dead, since then: else no instance ever adopts its slots where ADOPT_AFTER is above
// HEARTBEAT_INTERVAL.
func TestAHeartbeatDoesNotReviveAnInstance(t *testing.T) {
	t.Parallel()
	f := testfleet.New(t, 7)
	f.Prepare(1, "0xfac")
	f.Registers(testfleet.Instance{ID: "a", Total: 1})
	f.Exec(`update relayer_instances set seen_at = now() - interval '10 minutes', status = 'dead',
		dead_since = now() - interval '50 seconds'`)
	for _, stopping := range []bool{false, true} {
		require.NoError(t, election.Heartbeat(t.Context(), f.DB, 7, "a", election.Vitals{Stopping: stopping}))
		require.Equal(t, []string{"dead"}, f.Column(`select status from relayer_instances
			where dead_since < now() - interval '49 seconds' and last_heartbeat > now() - interval '9 minutes'`))
	}
}
