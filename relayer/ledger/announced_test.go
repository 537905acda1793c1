package ledger_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// readAgain has a second reading of the blocks up to one find that some events are not on the chain, and that the chain
// has others.
func (w *world) readAgain(verified int64, wrong, there []contract.Event) {
	v, err := w.led.Verifiable(w.t.Context())
	require.NoError(w.t, err)
	stored, err := w.led.Stored(w.t.Context(), v.From, verified)
	require.NoError(w.t, err)
	missing := slices.DeleteFunc(there, func(e contract.Event) bool {
		return slices.ContainsFunc(stored, func(s contract.Event) bool { return s.ID() == e.ID() })
	})
	_, err = w.led.Repair(w.t.Context(), w.epoch, v, verified, missing, wrong)
	require.NoError(w.t, err)
	w.reload()
}

// registered are the escrows, each with its deployment and state.
func (w *world) registered() []string {
	return w.Column(`select discovered_block_number || ' ' || status from escrow_registry order by address`)
}

// A node invents a second announcement of an escrow: once it is taken back, the escrow is followed as before.
func TestAnInventedSecondAnnouncementTakesNoEscrowAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	invented := deployed(1, 2, 3, 99)
	w.process(0, deployed(1, 1, 0, 11))
	w.process(0, invented)
	w.discover(0)
	w.discover(0)
	w.Publish()
	w.readAgain(2, []contract.Event{invented}, nil)
	require.Equal(t, []string{"1 active"}, w.registered())
	require.Empty(t, w.late())
	require.Equal(t, []string{"2"}, w.Column(`select verified_block::text from leadership`))
}

// A node invents the announcement of an escrow that the chain announces later, as the address of a factory's next
// escrow is no secret. Once it is taken back the real one counts: it is published, and the escrow is followed from it
// on.
func TestAnInventedFirstAnnouncementHidesNoEscrow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	invented, genuine := deployed(1, 1, 0, 99), deployed(1, 2, 3, 11)
	w.process(0, invented)
	w.process(0, genuine, approved(1, 2, 4, 12))
	w.process(0, released(1, 3, 0, 13))
	for range 3 {
		w.discover(0)
	}

	w.Publish()
	w.readAgain(3, []contract.Event{invented}, nil)
	require.Equal(t, []string{"1"}, w.Column(`select verified_block::text from leadership`), "the rest is read again")
	w.readAgain(3, nil, []contract.Event{genuine})
	require.Equal(t, []string{"2 active"}, w.registered())
	require.Empty(t, w.late(), "it waits for its EscrowDeployed")
	w.serve()
	require.Equal(t, []string{"EscrowDeployed:0", "EscrowDeployed:1", "Approved:1", "EscrowReleased:1"}, w.outbox())
	late := w.late()
	require.Len(t, late, 1)
	require.EqualValues(t, 2, late[0].Next(), "what was taken back with the invention is read again, behind it")
}

// The same of the leader: the owner of the slot does not see what is invented.
func TestWhatTheLeaderInventsHidesNoEscrow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.process(0)
	w.discover(0, deployed(1, 1, 0, 99))
	_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots,
		Progress: []registry.Progress{{Address: escrow(1), Monitored: 1}}}) // it has looked for it
	require.NoError(t, err)
	genuine := deployed(1, 2, 3, 11)
	w.process(0, genuine)
	w.discover(0)
	w.process(0)
	w.discover(0)
	require.Empty(t, w.log())
	before := w.slots
	w.readAgain(1, nil, nil)
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: before, To: before.To(5, blockHash(0, 4))})
	require.ErrorIs(t, err, ledger.ErrMoved, "what it has selected is void")
	w.readAgain(3, nil, []contract.Event{genuine})
	require.Equal(t, []string{"2 active"}, w.registered())
	w.serve()
	require.Equal(t, []string{"EscrowDeployed:0"}, w.outbox())
	require.Len(t, w.late(), 1)
}

// A node invents an event under the id of one that the chain has in another block, above or below. Taking that id back
// takes it back of both: the chain's event is published under another one.
func TestAnInventedIDTakesNoEventAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ invented, genuine contract.Event }{
		"above":           {approved(1, 1, 6, 77), approved(1, 2, 6, 77)},
		"below":           {approved(1, 2, 6, 77), approved(1, 1, 6, 77)},
		"of a deployment": {approved(1, 1, 6, 77), deployed(2, 2, 6, 77)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			blocks := map[uint64][]contract.Event{1: {deployed(1, 1, 0, 11)}}
			for _, e := range []contract.Event{c.invented, c.genuine} {
				blocks[e.BlockNumber] = append(blocks[e.BlockNumber], e)
			}

			w.process(0, blocks[1]...)
			w.process(0, blocks[2]...)
			w.discover(0)
			w.discover(0)
			w.Publish()
			w.readAgain(2, []contract.Event{c.invented}, nil)
			before := strconv.FormatUint(c.genuine.BlockNumber-1, 10)
			require.Equal(t, []string{before}, w.Column(`select verified_block::text from leadership`),
				"the rest is read again")
			w.readAgain(2, nil, append(blocks[1][:1], c.genuine))
			w.serve()
			what := c.genuine.Name + " of " + c.genuine.Escrow.Hex()[41:]
			require.ElementsMatch(t, []string{"4d:6:1 " + what + " event", "4d:6 Approved of 1 retraction",
				"4d:6 " + what + " retraction"}, w.messages())
			require.Equal(t, []string{strconv.FormatUint(c.genuine.BlockNumber, 10)},
				w.Column(`select block_number::text from processed_events where state = 'canonical' and log_index = 6`))
		})
	}
}

// A node invents that a factory has deployed a stranger, whose contract emits what escrows do. With the invention, all
// that was told of it is taken back.
func TestOfAnInventedEscrowNothingStays(t *testing.T) {
	t.Parallel()
	w := setup(t)
	invented := deployed(1, 2, 3, 99)
	w.process(0)
	w.process(0, invented, approved(1, 1, 4, 12), approved(1, 2, 4, 13))
	w.process(0, released(1, 3, 0, 14))
	for range 3 {
		w.discover(0)
	}

	w.Publish()
	w.readAgain(2, []contract.Event{invented}, nil)
	w.serve()
	require.ElementsMatch(t, []string{"EscrowDeployed:1", "Approved:1", "Approved:1", "EscrowReleased:1"}, w.outbox())
	require.Empty(t, w.Column(`select event_type from processed_events where state = 'canonical'`))
	require.Equal(t, []string{"2"}, w.Column(`select verified_block::text from leadership`))
}
