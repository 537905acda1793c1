package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// orphaned is a deployment that was published and taken back, and that the next commit of the slots
// retracts. It returns that commit, and the one in which the second reading finds it again.
func (w *world) orphaned() (retract, revive func() (ledger.Result, error)) {
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.Publish()
	_, err := w.led.Rollback(w.t.Context(), w.slots, ledger.Position{Next: 1})
	require.NoError(w.t, err)
	w.reload()
	w.discover(1)
	slots := w.slots
	w.slots = slots.To(2, blockHash(1, 1))
	v, err := w.led.Verifiable(w.t.Context())
	require.NoError(w.t, err)
	retract = func() (ledger.Result, error) {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute) // it could wait for ever
		defer cancel()

		return w.led.CommitSlots(ctx, ledger.SlotCommit{Epoch: w.epoch, From: slots, To: w.slots})
	}
	revive = func() (ledger.Result, error) {
		return w.led.Repair(w.t.Context(), w.epoch, v, v.From-1, []contract.Event{at(deployed(1, 2, 0, 11), 1)}, nil)
	}

	return retract, revive
}

// The owner gives an orphan up at the moment at which the second reading finds it again: it is retracted and
// published anew.
func TestRetractedWhileItReappears(t *testing.T) {
	t.Parallel()
	w := setup(t)
	retract, revive := w.orphaned()
	release := w.holdAfter("trigger hold after update on orphaned_events")
	retracted, revived := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := retract()
		retracted <- err
	}()
	w.awaitBlocked(1)
	go func() {
		_, err := revive()
		revived <- err
	}()
	w.awaitBlocked(2)
	release()
	require.NoError(t, <-retracted)
	require.NoError(t, <-revived)
	w.process(1)
	require.Equal(t, []string{"0b:0 EscrowDeployed of 1 retraction", "0b:0:1 EscrowDeployed of 1 event"}, w.messages())
}

// The other way round it stays as it was published. The owner does not wait for the leader, which may
// be frozen.
func TestReappearsWhileItIsRetracted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	retract, revive := w.orphaned()
	release := w.holdAfter("trigger hold after delete on orphaned_events")
	revived := make(chan error, 1)
	go func() {
		_, err := revive()
		revived <- err
	}()
	w.awaitBlocked(1)
	r, err := retract()
	require.NoError(t, err)
	require.Zero(t, r.Retracted)
	release()
	require.NoError(t, <-revived)
	w.process(1)
	require.Empty(t, w.messages())
	require.Equal(t, []string{"EscrowDeployed:canonical"}, w.states())
}
