package ledger_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// replay requests that an escrow is published once more.
func (w *world) replay(who int) {
	w.t.Helper()
	n, err := w.led.Replay(w.t.Context(), ledger.Selection{Escrow: escrow(who)}, nil)
	require.NoError(w.t, err)
	require.Positive(w.t, n)
}

// The second reading has stored a deployment that the owner of its slot has not announced yet: a replay of it
// comes behind that, and a rollback before leaves nothing that consumers have heard of.
func TestReplayOfADeploymentThatIsNotAnnounced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.missed(deployed(1, 1, 0, 11))
	w.replay(1)
	require.Empty(t, w.late(), "it waits for what is requested")
	w.serve()
	require.Len(t, w.late(), 1)
	require.Equal(t, []string{"0b:0 EscrowDeployed of 1 event", "0b:0 EscrowDeployed of 1 replay"}, w.messages())
	w.Publish()
	_, err := w.led.Rollback(t.Context(), w.fact, ledger.Position{Next: 1})
	require.NoError(t, err)
	w.reload()
	w.discover(1, at(deployed(2, 1, 0, 11), 1)) // the same place deploys another escrow
	w.process(1)
	w.discover(1)
	w.process(1)
	require.ElementsMatch(t, []string{"0b:0 EscrowDeployed of 1 retraction", "0b:0:1 EscrowDeployed of 2 event"},
		w.messages())
}

// missed has the second reading of block 1 find an event that the first lacked.
func (w *world) missed(e contract.Event) {
	w.discover(0)
	w.process(0)
	v, err := w.led.Verifiable(w.t.Context())
	require.NoError(w.t, err)
	_, err = w.led.Repair(w.t.Context(), w.epoch, v, 1, []contract.Event{e}, nil)
	require.NoError(w.t, err)
}

func TestRollbackOfADeploymentThatIsNotAnnounced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.missed(deployed(1, 1, 0, 11))
	w.replay(1)
	_, err := w.led.Rollback(t.Context(), w.fact, ledger.Position{Next: 1})
	require.NoError(t, err)
	w.reload()
	w.discover(1, at(deployed(2, 1, 0, 11), 1))
	w.process(1)
	w.discover(1)
	require.False(t, w.process(1).Open, "the request has gone with its event")
	require.Equal(t, []string{"0b:0 EscrowDeployed of 2 event"}, w.messages())
}

// An event that was published under no configuration before counts as told once it is replayed: a
// reorganisation retracts it.
func TestAReplayTellsOfAnEvent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 3, 11))
	w.process(0, event("EscrowCreated", 1, 1, 2, 11, `{}`))
	all := ledger.New(ledger.Config{DB: w.DB, ChainID: chain, InstanceID: me, EventNames: names,
		Publishes: func(string) bool { return true }})
	_, err := all.Replay(t.Context(), ledger.Selection{Escrow: escrow(1)}, nil)
	require.NoError(t, err)
	w.serve()
	w.Publish()
	_, err = w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"EscrowCreated:orphaned", "EscrowDeployed:orphaned"}, w.states())
}

// An owner serves the requests of its slots, so many per commit, and leaves those of others.
func TestAnOwnerServesTheRequestsOfItsSlots(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var events []contract.Event
	for i := range 2100 {
		events = append(events, approved(1+i%2, 1, uint(i), int64(100+i)))
	}

	w.discover(0)
	w.process(0, events...)
	w.Publish()
	w.replay(1)
	w.replay(2)
	w.Exec(`update slot_ownership set owner = 'r1' where slot = $1`, partition.Slot(escrow(2)))
	require.Len(t, w.serve().Pending, 1050)
	w.Exec(`update slot_ownership set owner = $1`, me)
	w.replay(1)
	first := w.serve()
	require.True(t, first.More)
	require.Equal(t, escrow(2), first.Pending[0].Event.Escrow)
	second := w.serve()
	require.False(t, second.More)
	require.Len(t, append(first.Pending, second.Pending...), 2100)
	last := int64(0)
	for _, p := range append(first.Pending, second.Pending...) {
		require.Greater(t, p.Seq, last)
		last = p.Seq
	}

	require.False(t, w.serve().Open)
	require.Equal(t, []string{"3150"}, w.Column(fmt.Sprintf(`select count(*)::text from outbox where kind = 2 and chain_id = %d`, chain)))
}

// More is requested than one commit serves: what an escrow emits meanwhile comes behind all that is requested of it.
func TestNewEventsComeBehindAllThatIsRequested(t *testing.T) {
	t.Parallel()
	w := setup(t)
	events := []contract.Event{approved(2, 1, 0, 99)}
	for i := range 2100 {
		events = append(events, approved(1, 1, uint(1+i), int64(100+i)))
	}

	w.discover(0, deployed(2, 1, 2102, 12), deployed(3, 1, 2103, 13))
	w.process(0, events...)
	w.Publish()
	w.replay(1)
	w.replay(2)
	w.discover(0)
	r := w.process(0, approved(1, 2, 0, 21), approved(2, 2, 1, 22), approved(3, 2, 2, 23))
	require.Equal(t, []string{"Approved:2"}, ids(r.Log), "of escrow 3")
	require.Len(t, r.Pending, 2048)
	w.Publish() // no row tells that something of escrow 1 waits
	w.discover(0)
	r = w.process(0, approved(1, 3, 0, 31), approved(2, 3, 1, 32))
	require.Empty(t, r.Log)
	require.Equal(t, []string{"Approved:2", "Approved:2"}, ids(r.Pending[54:56]))
	for r.Open {
		r = w.serve()
	}

	require.Equal(t, []string{"EscrowDeployed 1 replay", "Approved 1 replay", "Approved 2 event", "Approved 3 event"},
		w.Column(`select event_type || ' ' || block_number || ' ' || kind from outbox_messages where escrow like '%2'`+inOrder))
	require.Equal(t, []string{"2 event", "3 event"}, w.Column(`
		select block_number || ' ' || kind from outbox_messages where escrow like '%1' and block_number > 1`+inOrder))
}

// What the verifier has found missing is told of once, whatever the owner stores at the same time.
func TestARepairedEventIsToldOfOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	low := w.slots
	w.discover(0)
	w.process(0)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	missed := approved(1, 2, 1, 12)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 2, []contract.Event{missed}, nil)
	require.NoError(t, err)
	w.SetCursor(me, low.Next, low.Hash.Hex()) // a claim: it reads the block again, and now it has the event
	w.reload()
	r := w.process(0, missed)
	require.Equal(t, 1, r.Duplicates)
	require.Equal(t, []string{"EscrowDeployed:0", "Approved:0"}, w.outbox())
}
