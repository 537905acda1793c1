package ledger_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

func arbiterChanged(block, tx int64, to string) contract.Event {
	return event("ArbiterChanged", 1, block, 1, tx, `{"oldArbiter":"`+account(0)+`","newArbiter":"`+to+`"}`)
}

// What the verifier finds comes after what is stored already, and yet counts in its place.
func TestRepairFoldsInTheOrderOfTheChain(t *testing.T) {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.discover(0)
	w.process(0)
	w.discover(0)
	w.process(0, arbiterChanged(3, 13, account(0xb2)))
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 3,
		[]contract.Event{arbiterChanged(2, 12, account(0xb1)), approved(1, 2, 2, 12)}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{strings.ToLower(account(0xb2))}, w.column(`select arbiter from escrow_records`))
	require.Equal(t, []string{"ArbiterChanged"}, w.column(`select last_event_type from escrow_records`))
	_, approvals := w.record(1)
	require.Equal(t, 1, approvals)
}

// After a reorganisation one commit may bring back what was known and add what is new, in any order.
func TestRevivedAndNewEventsFoldInTheOrderOfTheChain(t *testing.T) {
	for name, c := range map[string]struct {
		fresh uint // log index of what is new
		last  string
	}{"new first": {0, "Approved"}, "new last": {2, "ArbiterChanged"}} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.discover(0, deployed(1, 1, 0, 11))
			w.process(0)
			w.discover(0)
			w.process(0, approved(1, 2, 1, 13))
			_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
			require.NoError(t, err)
			w.reload()
			events := []contract.Event{at(approved(1, 2, 1, 13), 1), at(arbiterChanged(2, 15, account(0xb4)), 1)}
			events[1].LogIndex = c.fresh
			if c.fresh == 0 {
				events[0], events[1] = events[1], events[0]
			}

			r := w.process(1, events...)
			require.Equal(t, []int{1, 1}, []int{r.New, r.Revived})
			require.Equal(t, []string{c.last}, w.column(`select last_event_type from escrow_records`))
			require.Equal(t, []string{strings.ToLower(account(0xb4))}, w.column(`select arbiter from escrow_records`))
		})
	}
}
