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

// A page fetches its rows and no others, however many wait, and whatever Postgres believes of the table: it was never
// analyzed, was analyzed while it was empty, or is analyzed now.
func TestPagesReadNoMore(t *testing.T) {
	t.Parallel()
	const chain, rows, each, limit = 1, 20_000, 20, 200 // 20 rows of each of 1,000 escrows
	escrows, slots := make([][]byte, rows), make([]int16, rows)
	for n := range int64(rows) {
		escrow := common.BigToAddress(big.NewInt(n/each + 1))
		escrows[n], slots[n] = escrow[:], partition.Slot(escrow)
	}

	f := testfleet.New(t, chain)
	f.Join("me", 1)
	f.OwnAll("me", 1)
	db, fetched := testpg.Counted(t, f.URL)
	box := outbox.Box{DB: db, ChainID: chain, Owner: "me"}
	mine := make([]int16, partition.Slots)
	for s := range mine {
		mine[s] = int16(s)
	}

	read := func(statistics string) {
		before := fetched("outbox")
		page, _, err := box.Page(t.Context(), outbox.Right{Epoch: 1}, mine, 0, limit, nil)
		require.NoError(t, err)
		require.Len(t, page, limit)
		page, _, err = box.Page(t.Context(), outbox.Right{Epoch: 1}, mine, page[limit-1].Seq, limit,
			[]outbox.Lane{{Escrow: common.BytesToAddress(escrows[limit])}})
		require.NoError(t, err)
		require.Len(t, page, limit)
		require.NotEqual(t, escrows[limit], page[0].Event.Escrow[:], "of a lane that is left out")
		require.LessOrEqual(t, fetched("outbox")-before, 2*limit+each, statistics)
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
