package watch_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// An escrow that was created, and has emitted events, before the factory announces it: its EscrowDeployed
// is published first, and then all of its events in their order, whether the slot watch reads block by
// block, by ranges, or has passed the deployment before the leader finds it.
func TestAnEscrowThatIsOlderThanItsDeployment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode   watch.FilterMode
		when   string
		others bool // the ABI has no EscrowCreated, as those of others
	}{
		"live, by topics":                  {watch.FilterTopics, "live", false},
		"live, by addresses":               {watch.FilterAddresses, "live", false},
		"backfill by topics":               {watch.FilterTopics, "backfill", false},
		"backfill by addresses":            {watch.FilterAddresses, "backfill", false},
		"found late":                       {watch.FilterTopics, "late", false},
		"live, of others":                  {watch.FilterTopics, "live", true},
		"backfill by addresses, of others": {watch.FilterAddresses, "backfill", true},
		"backfill by topics, of others":    {watch.FilterTopics, "backfill", true},
		"found late, of others":            {watch.FilterTopics, "late", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			if c.others {
				w.withoutCreated()
			}

			w.create(2)
			w.mine(1)
			older, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), w.d.Factory)
			require.NoError(t, err)
			w.d.Factory = w.d.Noise // which announces any contract
			w.Exec(`update factories set address = $1`, w.d.Noise.Bytes())
			w.approve(1, older.Escrows...)
			w.mine(1)
			stop := func() {}
			if c.when == "late" {
				w.chain = overlooking{w.src, w.d.Factory}
			}

			if c.when != "backfill" {
				stop = w.run(c.mode, c.when == "live")
			}

			w.mine(40)
			if c.when != "backfill" {
				w.passed()
			}

			for _, escrow := range older.Escrows {
				w.send(3, testchain.Call{To: &w.d.Noise, Data: contracts.NewNoise().PackDeployed(escrow)})
				w.mine(1)
			}

			w.approve(2, older.Escrows[0])
			w.mine(1 + confirmations)
			if c.when == "late" {
				w.passed()
				stop()
				w.chain = nil
			}

			if c.when != "live" {
				w.run(c.mode, true)
			}

			truth := w.expect(w.head() - confirmations)
			require.Len(t, truth.IDs(older.Escrows[0]), 5, "created, approved, deployed, approved, released")
			require.Len(t, truth.IDs(older.Escrows[1]), 3)
			require.Equal(t, []string{"8"}, w.Column(`select ($1 + count(*))::text from processed_events`,
				len(older.Escrows)*map[bool]int{true: 1}[c.others]))
			require.Empty(t, w.Column(`select kind from findings`))
		})
	}
}

// passed waits until the slot watch has passed the newest block that it may process.
func (w *world) passed() {
	require.Eventually(w.t, func() bool {
		at, err := w.led.SlotPosition(w.t.Context(), 1)
		require.NoError(w.t, err)
		return at.Next > int64(w.head()-confirmations)
	}, patience, 5*time.Millisecond)
}

// withoutCreated has the watches know no EscrowCreated.
func (w *world) withoutCreated() {
	raw, err := os.ReadFile("../contract/escrow.json")
	require.NoError(w.t, err)
	var all []map[string]any
	require.NoError(w.t, json.Unmarshal(raw, &all))
	raw, err = json.Marshal(slices.DeleteFunc(all, func(e map[string]any) bool { return e["name"] == contract.Created }))
	require.NoError(w.t, err)
	w.abi, err = contract.New("", string(raw))
	require.NoError(w.t, err)
}
