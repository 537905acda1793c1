package ledger_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// What a person must hear of is in the database with the act itself, whatever becomes of the process that found it.
func TestFindingsAreRemembered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.process(0)
	w.discover(0, deployed(1, 2, 0, 10))
	w.process(0, approved(1, 2, 1, 11))
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), 1, v, v.From-1, nil, nil,
		ledger.Finding{Kind: ledger.ExtraEvent, Block: 7, Events: 3})
	require.NoError(t, err)
	require.Equal(t, []string{"deep_reorg 1 2", "extra_event 7 3"},
		w.Column(`select kind || ' ' || block_number || ' ' || events from findings order by id`))

	// Rolled back already: found once.
	_, err = w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, w.Column(`select count(*)::text from findings`))

	v, err = w.led.Verifiable(t.Context())
	require.NoError(t, err)
	missed := approved(1, 1, 5, 12)
	_, err = w.led.Repair(t.Context(), 1, v, 1, []contract.Event{missed}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"missing_event 1 1"},
		w.Column(`select kind || ' ' || block_number || ' ' || events from findings order by id desc limit 1`))
	_, err = w.led.Repair(t.Context(), 99, v, 2, []contract.Event{missed}, nil)
	require.ErrorIs(t, err, ledger.ErrMoved)
	require.Equal(t, []string{"3"}, w.Column(`select count(*)::text from findings`), "what was not done was not found")
}

// Others look once at a block, however many of its events are wrong: the fleet commits nothing meanwhile.
func TestABlockOfWrongEventsIsWithdrawnOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var withdrawn []int64
	w.led = ledger.New(ledger.Config{DB: w.DB, ChainID: chain, InstanceID: me, EventNames: names, Publishes: publishes,
		Reopen: func(_ context.Context, _ pgx.Tx, _, from, _ int64) error {
			withdrawn = append(withdrawn, from)
			return nil
		}})
	w.process(0, deployed(1, 1, 0, 11))
	wrong := []contract.Event{approved(1, 2, 1, 21), approved(1, 2, 2, 22), approved(1, 2, 3, 23)}
	w.process(0, wrong...)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, v.From-1, nil, wrong)
	require.NoError(t, err)
	require.Equal(t, []int64{2}, withdrawn)
}
