package retention_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// Events that are requested stay until they are published. One that retention has removed before its
// request is served is not replayed, and no row is without its event.
func TestRetentionAndReplay(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Alone("r0", 1, "0xfac")
	const escrow = "0x00000000000000000000000000000000000000e5"
	for i, kind := range []string{"EscrowDeployed", "EscrowReleased"} {
		f.Stores(testfleet.Event{ID: kind, Type: kind, Escrow: escrow, Block: 5, Index: int32(i), Stored: 2 * time.Hour})
	}

	f.Exec(`update slot_ownership set sent_block = 20`)
	f.Verify(20)
	led := ledger.New(ledger.Config{DB: f.DB, ChainID: chain, InstanceID: "r0",
		EventNames: []string{"EscrowDeployed", "EscrowReleased"}, Publishes: func(string) bool { return true }})
	replay := func() {
		n, err := led.Replay(t.Context(), ledger.Selection{From: 1, WholeEscrows: true}, nil)
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	remove := func() int64 {
		r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: time.Hour})
		require.NoError(t, err)

		return r.Events
	}
	serve := func() {
		at := ledger.Position{Next: 1}
		_, err := led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: at, To: at})
		require.NoError(t, err)
	}
	replay()
	require.Zero(t, remove(), "requested")
	serve()
	require.Len(t, f.Column(`select seq::text from outbox`), 2)
	require.Zero(t, remove(), "on the way")
	f.Publish()
	replay()
	f.Exec(`delete from events`) // as retention does that has looked before the request came
	serve()
	require.Empty(t, f.Column(`select seq::text from outbox`))
	require.Empty(t, f.Column(`select id::text from requests`))
}
