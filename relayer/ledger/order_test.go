package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

func arbiterChanged(block, tx int64, to string) contract.Event {
	return event("ArbiterChanged", 1, block, 1, tx, `{"oldArbiter":"0x00","newArbiter":"`+to+`"}`)
}

// What the verifier finds comes after what is stored already, and yet counts in its place.
func TestRepairFoldsInTheOrderOfTheChain(t *testing.T) {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0)
	w.discover(0)
	w.process(0, arbiterChanged(3, 13, "0xB2"))
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 3, []contract.Event{arbiterChanged(2, 12, "0xB1"), approved(1, 2, 2, 12)})
	require.NoError(t, err)
	require.Equal(t, []string{"0xb2"}, w.column(`select arbiter from escrow_records`))
	require.Equal(t, []string{"ArbiterChanged"}, w.column(`select last_event_type from escrow_records`))
	_, approvals := w.record(1)
	require.Equal(t, 1, approvals)
}

// After a reorganisation one commit may bring back what was known and add what is new, the new one last.
func TestRevivedAndNewEventsFoldInTheOrderOfTheChain(t *testing.T) {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0, arbiterChanged(2, 13, "0xB3"))
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	w.reload()
	w.discover(1)
	later := at(arbiterChanged(2, 15, "0xB4"), 1)
	later.LogIndex = 2
	r := w.process(1, at(arbiterChanged(2, 13, "0xB3"), 1), later)
	require.Equal(t, []int{1, 1}, []int{r.New, r.Revived})
	require.Equal(t, []string{"0xb4"}, w.column(`select arbiter from escrow_records`))
}
