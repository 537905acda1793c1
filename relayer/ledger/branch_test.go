package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// Each of these was found by the model of discovery and reorganisation (partition/model/reorg.pml),
// which has a negative check for it.

// An owner behind the leader reads a deployment; a reorganisation above its cursor gives it another identity; then
// the owner commits. Its cursor did not move, so only the generation tells.
func TestAdmissionFromBeforeARollbackIsVoid(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]ledger.Position{
		"under an unmoved cursor":       {Next: 2, Hash: blockHash(0, 1)},
		"with a block of the old chain": {Next: 3, Hash: blockHash(0, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.process(0)
			w.discover(0)
			w.discover(0, deployed(1, 2, 0, 10)) // the leader is one block ahead
			r, err := w.led.Rollback(t.Context(), w.fact, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
			require.NoError(t, err)
			require.True(t, r.Done)
			before := w.slots
			w.reload()
			require.Equal(t, before.Next, w.slots.Next, "the owner's cursor was below the fork")
			moved := at(deployed(1, 2, 7, 10), 1)
			w.discover(1, moved)

			_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{
				Epoch: 1, From: before, To: to, Events: []contract.Event{deployed(1, 2, 0, 10)},
			})
			require.ErrorIs(t, err, ledger.ErrMoved)
			w.process(1)
			require.Equal(t, []string{moved.ID()}, w.Column(`select event_id from outbox_messages`))
			// The first deployment was never announced, and another took its place: there is nothing to take back.
			w.discover(1)
			w.process(1)
			require.Equal(t, []string{"canonical"}, w.Column(`select state from processed_events order by state`))
			require.Equal(t, []string{moved.ID()}, w.Column(`select event_id from outbox_messages`))
		})
	}
}

// After a rollback an owner may pass the blocks again without the deployment: then the leader makes the escrow
// late, and its events may reappear until it is caught up.
func TestNothingIsRetractedBeforeItCouldReappear(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.process(0)
	w.discover(0, deployed(1, 2, 0, 10))
	w.process(0, approved(1, 2, 1, 11))
	w.Publish()
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	w.reload()
	require.Zero(t, w.process(1).Retracted, "the leader is away")
	w.discover(1, at(deployed(1, 2, 0, 10), 1))
	late := w.late()
	require.Len(t, late, 1)
	r, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots,
		To: ledger.Position{Next: 4, Hash: blockHash(1, 3)}})
	require.NoError(t, err)
	require.Zero(t, r.Retracted, "the escrow is not caught up yet")
	w.reload()
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{
		Epoch: 1, From: w.slots, To: w.slots, Events: append(w.deployments(late...), at(approved(1, 2, 1, 11), 1)),
		Progress: []registry.Progress{{Address: escrow(1), Monitored: 3, CaughtUp: true}},
	})
	require.NoError(t, err)
	w.discover(1)
	w.process(1)
	require.Empty(t, w.outbox(), "published before, on the chain again: neither retracted nor repeated")
}

func id(e contract.Event) string { return e.ID() }

// Two transactions come in the other order on the new branch: what waits of them is sent all the same,
// and both are published anew, in the order that the chain has now.
func TestWhatComesBackInAnotherOrderIsPublishedAnew(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 10))
	w.process(0)
	w.Publish()
	w.discover(0)
	w.process(0, approved(1, 2, 0, 11))
	w.discover(0)
	w.process(0, approved(1, 3, 0, 12))
	require.Equal(t, []string{id(approved(1, 2, 0, 11)), id(approved(1, 3, 0, 12))},
		w.Column(`select event_id from outbox_messages`+inOrder))
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	w.reload()
	w.process(1, at(approved(1, 2, 0, 12), 1))
	w.process(1, at(approved(1, 3, 0, 11), 1))
	require.Equal(t, []string{id(approved(1, 2, 0, 11)), id(approved(1, 3, 0, 12)), id(approved(1, 2, 0, 12)) + ":1",
		id(approved(1, 3, 0, 11)) + ":1"}, w.Column(`select event_id from outbox_messages`+inOrder))
	w.Publish()
	w.discover(1)
	w.discover(1)
	require.Equal(t, 2, w.process(1).Retracted)
}

// An instance that was ahead, on a branch that is gone, is dead, and its slots go on from a lower
// cursor which is canonical: nobody stands on the old branch any more. Whoever processes another
// block of that height finds out.
func TestCommitMeetsABlockOfAnotherBranch(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 10))
	w.process(0)
	low := w.slots
	w.process(0, approved(1, 2, 0, 11))
	w.process(0)
	w.Publish()
	// as a claim does
	w.SetCursor(me, low.Next, low.Hash.Hex())
	w.reload()

	commit := func(next int64, checked ledger.Block) error {
		_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots,
			To: ledger.Position{Next: next, Hash: blockHash(1, next-1)}, Checked: checked})
		return err
	}
	met := func(err error) ledger.Block {
		other := new(ledger.BranchError)
		require.ErrorAs(t, err, &other)
		return other.Block
	}
	require.Equal(t, ledger.Block{Number: 2, Hash: blockHash(0, 2)}, met(commit(3, ledger.Block{})),
		"in the place of the last block")
	inside := met(commit(9, ledger.Block{}))
	require.Equal(t, ledger.Block{Number: 3, Hash: blockHash(0, 3)}, inside, "the highest inside the range")
	r, err := w.led.Rollback(t.Context(), ledger.Position{Next: inside.Number + 1, Hash: inside.Hash}, low)
	require.NoError(t, err)
	require.True(t, r.Done, "it is remembered, though no cursor stands behind it")
	require.Equal(t, 1, r.Orphaned)
	w.reload()
	require.NoError(t, commit(3, ledger.Block{}))
	w.reload()
	w.discover(1)
	w.discover(1)
	w.process(1)
	require.Equal(t, []string{"Approved:1"}, w.outbox(), "published, and not on the chain")

	// A block inside the range that is canonical is no obstacle once it was compared.
	same := ledger.Block{Number: 3, Hash: blockHash(1, 3)}
	w.SetCursor(me, low.Next, low.Hash.Hex())
	w.reload()
	require.Equal(t, same, met(commit(9, ledger.Block{})))
	require.NoError(t, commit(9, same))
}

// Whoever claims slots with a lower cursor goes back to it. What its own slots had stored above it
// is orphaned until that height is passed again, not until the height from which the claim went on.
func TestRetractionWaitsForTheHighestBlockEver(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 10))
	w.process(0)
	w.process(0)
	w.process(0, approved(1, 3, 0, 11))
	w.Publish()
	low := w.slots.To(2, blockHash(0, 1))
	// as a claim does
	w.SetCursor(me, low.Next, low.Hash.Hex())
	w.reload()
	w.process(0)
	r, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	require.Equal(t, 1, r.Orphaned)
	w.reload()
	for range 3 {
		w.discover(1)
	}

	require.Zero(t, w.process(1).Retracted, "block 3 has not been read again")
	r2 := w.process(1, at(approved(1, 3, 0, 11), 1))
	require.Equal(t, 1, r2.Revived)
	require.Zero(t, r2.Retracted)
	require.Empty(t, w.outbox())
}

// A commit that was put together from several readings remembers the last block of each, and none
// of them is in the way of another instance that ends its ranges elsewhere.
func TestBlocksInsideARangeAreRememberedAndCompared(t *testing.T) {
	t.Parallel()
	w := setup(t)
	commit := func(inside ...ledger.Block) error {
		_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots,
			To:     w.slots.To(5, blockHash(0, 4)),
			Inside: inside})

		return err
	}
	back := func() { // as a claim with a lower cursor does
		w.SetCursor(me, w.slots.Next, "")
	}
	mine := func(branch byte, n int64) ledger.Block { return ledger.Block{Number: n, Hash: blockHash(branch, n)} }
	require.NoError(t, commit(mine(0, 1), mine(0, 2), mine(0, 3)))
	require.Equal(t, []string{"1", "2", "3", "4"}, w.Column(`select number::text from chain_blocks order by number`))

	back()
	require.NoError(t, commit(mine(0, 3)), "the highest inside is the same; it vouches for the others")
	back()
	other := new(ledger.BranchError)
	require.ErrorAs(t, commit(mine(0, 2), mine(1, 3)), &other)
	require.Equal(t, mine(0, 3), other.Block)
	back()
	require.ErrorAs(t, commit(mine(1, 2)), &other, "nobody has compared block 3")
	require.Equal(t, mine(0, 3), other.Block)
}
