package retention_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// A replay chooses events, retention removes them, the replay's rows are committed: such a row
// would have no event, and stay for ever. Either waits for the other.
func TestReplayAndRetentionExcludeEachOther(t *testing.T) {
	for name, replayFirst := range map[string]bool{"the replay is first": true, "retention is first": false} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			const escrow = "0x00000000000000000000000000000000000000e5"
			for i, kind := range []string{"EscrowDeployed", "EscrowReleased"} {
				f.Stores(testfleet.Event{ID: kind, Type: kind, Escrow: escrow, Block: 5, Index: int32(i), Stored: 2 * time.Hour})
			}

			f.Verify(20)
			// The first one to come is kept waiting in the middle: by its own first write.
			for _, sql := range []string{
				`create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(77); return null; end $$`,
				`create trigger hold before insert on outbox for each statement execute function hold()`,
				`create trigger hold before delete on events for each statement execute function hold()`,
			} {
				f.Exec(sql)
			}

			holder, err := f.DB.Acquire(t.Context())
			require.NoError(t, err)
			defer holder.Release()
			_, err = holder.Exec(t.Context(), `select pg_advisory_lock(77)`)
			require.NoError(t, err)

			led := ledger.New(ledger.Config{DB: f.DB, ChainID: chain, InstanceID: "r0",
				EventNames: []string{"EscrowDeployed", "EscrowReleased"}, Publishes: func(string) bool { return true }})
			replay := func() error {
				_, err := led.Replay(t.Context(), ledger.Selection{From: 1, WholeEscrows: true}, nil)
				return err
			}
			remove := func() error {
				_, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: time.Hour})
				return err
			}
			first, second := remove, replay
			if replayFirst {
				first, second = replay, remove
			}

			done := make(chan error, 2)
			waiting := func(n string) {
				require.Eventually(t, func() bool {
					return f.Column(`select count(*)::text from pg_stat_activity
						where wait_event_type = 'Lock' and wait_event = 'advisory'`)[0] == n
				}, time.Minute, 5*time.Millisecond)
			}
			go func() { done <- first() }() // both end once the holder lets go
			waiting("1")
			go func() { done <- second() }()
			waiting("2")
			_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(77)`)
			require.NoError(t, err)
			require.NoError(t, <-done)
			require.NoError(t, <-done)
			require.Empty(t, f.Column(`select seq::text from outbox_messages where event_id is null`),
				"a row without its event")
			if replayFirst {
				require.Len(t, f.Column(`select seq::text from outbox`), 2)
			} else {
				require.Empty(t, f.Column(`select seq::text from outbox`))
			}
		})
	}
}
