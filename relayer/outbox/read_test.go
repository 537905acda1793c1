package outbox_test

import (
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// A reading of some keys fetches their rows and no others, however many wait, and whatever Postgres
// believes of the table: it was never analyzed, was analyzed while it was empty, or is analyzed now.
func TestLanesReadNoMore(t *testing.T) {
	t.Parallel()
	const chain, rows, each, wanted, limit = 1, 20_000, 20, 200, 2 // 20 rows of each of 1,000 escrows
	escrows, slots := make([][]byte, rows), make([]int16, rows)
	for n := range int64(rows) {
		escrow := common.BigToAddress(big.NewInt(n/each + 1))
		escrows[n], slots[n] = escrow[:], partition.Slot(escrow)
	}

	for _, bySlot := range []bool{false, true} {
		f := testfleet.New(t, chain)
		f.OwnAll("me", 1)
		db, fetched := testpg.Counted(t, f.URL)
		box := outbox.Box{DB: db, ChainID: chain, Owner: "me", BySlot: bySlot}
		mine := make([]int16, partition.Slots)
		for s := range mine {
			mine[s] = int16(s)
		}

		var wants []outbox.Want
		for n := 0; len(wants) < wanted; n += each {
			lane := outbox.Lane{Slot: slots[n]}
			if !bySlot {
				lane.Escrow = common.BytesToAddress(escrows[n])
			}

			wants = append(wants, outbox.Want{Lane: lane, Limit: limit})
		}

		read := func(statistics string) {
			before := fetched("outbox")
			lanes, err := box.Lanes(t.Context(), mine, wants)
			require.NoError(t, err)
			require.Len(t, lanes, wanted)
			for i, found := range lanes {
				require.Len(t, found, limit)
				for _, r := range found {
					require.Equal(t, wants[i].Lane, box.LaneOf(&r.Pending))
				}
			}

			require.LessOrEqual(t, fetched("outbox")-before, wanted*limit, "key slot: %t, %s", bySlot, statistics)
		}
		fill := func() {
			f.Exec(`insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type)
				select $1, 1, 0, t.slot, t.escrow, 'Approved' from unnest($2::bytea[], $3::smallint[]) as t(escrow, slot)`,
				chain, escrows, slots)
		}
		fill()
		read("never analyzed")
		f.Exec(`delete from outbox`)
		f.Exec(`vacuum analyze outbox`)
		fill()
		read("analyzed while it was empty")
		f.Exec(`analyze outbox`)
		read("analyzed")
		for range 10 { // also with the plan that a prepared statement gets later
			read("analyzed, prepared")
		}
	}
}
