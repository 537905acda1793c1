package ledger_test

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// announceOlder commits a block that announces an escrow which is older, and its owner's catch-up with what it emitted
// before.
func (w *world) announceOlder(fork byte, before contract.Event) (announced, caughtUp ledger.Result) {
	e := at(deployed(1, w.slots.Next, 0, 13), fork)
	to := w.slots.To(w.slots.Next+1, blockHash(fork, w.slots.Next))
	announced, err := w.led.CommitSlots(w.t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: w.slots, To: to,
		Events: []contract.Event{e}, Late: []common.Address{e.Escrow}})
	require.NoError(w.t, err)
	w.slots = to
	caughtUp, err = w.led.CommitSlots(w.t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: to, To: to,
		Events:   []contract.Event{before},
		Progress: []registry.Progress{{Address: e.Escrow, Monitored: to.Next - 1, CaughtUp: true}}})
	require.NoError(w.t, err)

	return announced, caughtUp
}

// What an escrow emitted before its deployment counts with it: a rollback of the deployment takes it all back, and it
// all returns with it.
func TestARollbackOfADeploymentTakesWhatItsEscrowEmittedBefore(t *testing.T) {
	t.Parallel()
	for _, returns := range []bool{false, true} {
		w := setup(t)
		w.discover(0)
		w.process(0)
		w.discover(0)
		w.process(0)
		w.discover(0)
		w.announceOlder(0, approved(1, 1, 0, 11))
		w.Publish()
		w.Verify(2)
		_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 3, Hash: blockHash(0, 2)})
		require.NoError(t, err)
		require.Equal(t, []string{"0"}, w.Column(`select verified_block::text from leadership`), "it is read again")
		w.reload()
		w.discover(1)
		if returns {
			announced, caughtUp := w.announceOlder(1, approved(1, 1, 0, 11))
			require.Equal(t, []int{1, 1}, []int{announced.Revived, caughtUp.Revived})
		} else {
			w.process(1)
		}

		w.discover(1)
		w.process(1)
		w.discover(1)
		w.process(1)
		if returns {
			require.Empty(t, w.outbox())
			require.Equal(t, []string{"Approved:canonical", "EscrowDeployed:canonical"}, w.states())
		} else {
			require.ElementsMatch(t, []string{"Approved:1", "EscrowDeployed:1"}, w.outbox())
			require.Equal(t, []string{"Approved:retracted", "EscrowDeployed:retracted"}, w.states())
			require.Empty(t, w.Column(`select address from escrow_registry`))
		}
	}
}

// An escrow may have ended before its deployment: RETENTION leaves it until no reorganisation takes that back.
func TestRetentionLeavesADeploymentThatMayBeRolledBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for range 2 {
		w.discover(0)
		w.process(0)
	}
	w.discover(0)
	w.announceOlder(0, released(1, 1, 0, 11))
	w.Publish()
	w.Verify(3)
	w.retain()
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 3, Hash: blockHash(0, 2)})
	require.NoError(t, err)
	w.reload()
	for range 2 {
		w.discover(1)
		w.process(1)
	}
	require.ElementsMatch(t, []string{"EscrowReleased:1", "EscrowDeployed:1"}, w.outbox())
}
