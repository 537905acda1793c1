package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Final blocks come every 6.4 minutes on Ethereum, and have stayed away for hours: a cursor that has all
// that is final is not stuck, one that has less than others is.
func TestCursorThatWaitsForFinality(t *testing.T) {
	for finality, stuck := range map[string]bool{"finalized": false, "safe": false, "confirmations 12": true} {
		f := fleet.Fleet{Known: true, Chain: fleet.Chain{NodeHead: 5000, FactoryCursor: 101}}
		for _, id := range []string{"a", "b"} {
			f.Instances = append(f.Instances, fleet.Instance{ID: id, Alive: true, Slots: 1260, Cursor: 101,
				CursorAge: fleet.Age(3 * time.Hour),
				Settings:  partition.Settings{Stream: map[string]string{"FINALITY": finality}}})
		}

		limits := fleet.Limits{StuckCursor: fleet.LimitStuckCursor}
		require.Equal(t, stuck, len(f.Judge(limits)) > 0, finality)
		f.Instances[1].Cursor, f.Instances[1].CursorAge = 200, fleet.Age(time.Minute)
		problems := f.Judge(limits)
		require.Equal(t, []string{fleet.StuckCursor}, kinds(problems), finality)
		require.Contains(t, problems[0].Text, ": a")
	}
}
