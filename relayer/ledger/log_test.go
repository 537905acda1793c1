package ledger_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// atBlock4 is a world with a deployment that is sent, and approvals in blocks 2 and 3 that are not.
func atBlock4(t *testing.T) *world {
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.Publish()
	w.discover(0)
	w.process(0, approved(1, 2, 0, 12))
	w.discover(0)
	w.process(0, approved(1, 3, 0, 13))

	return w
}

// rows are those of the outbox, in order.
func (w *world) rows() []string {
	return w.Column(`select event_type || ':' || block_number || ' ' || kind from outbox order by seq`)
}

// log is what a publisher reads of the log.
func (w *world) log() (found []string) {
	box, right := w.box()
	sent, err := box.Sent(w.t.Context(), right)
	require.NoError(w.t, err)
	page, err := box.Log(w.t.Context(), right, sent, -1, 1000)
	require.NoError(w.t, err)
	for i := range page.Events {
		found = append(found, page.Events[i].Event.Name+":"+strconv.FormatUint(page.Events[i].Event.BlockNumber, 10))
	}

	return found
}

func (w *world) box() (*outbox.Box, outbox.Right) {
	return &outbox.Box{DB: w.DB, ChainID: chain, Owner: me}, outbox.Right{Epoch: w.epoch, Generation: w.slots.Generation}
}

// The new events of an escrow that has rows in the outbox come behind these, and those of others are of the log.
func TestEventsOfAnEscrowThatHasRowsComeBehindThem(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	w.replay(1)
	r := w.process(0, approved(1, 4, 0, 14), deployed(2, 4, 1, 15)) // the commit that serves the request
	require.Equal(t, []string{"EscrowDeployed:4"}, ids(r.Log))
	require.Equal(t, []string{"EscrowDeployed:1", "Approved:2", "Approved:3", "Approved:4"}, ids(r.Pending))
	r = w.process(0, approved(1, 5, 0, 16))
	require.Empty(t, r.Log)
	require.Equal(t, []string{"Approved:5"}, ids(r.Pending))
	require.Equal(t, []string{"Approved:2", "Approved:3", "EscrowDeployed:4"}, w.log())
	require.Equal(t, []string{"EscrowDeployed:1 2", "Approved:2 2", "Approved:3 2", "Approved:4 0", "Approved:5 0"},
		w.rows())
	w.Publish()
	require.Equal(t, []string{"Approved:6"}, ids(w.process(0, approved(1, 6, 0, 17)).Log))
	require.Empty(t, w.rows())
}

// A commit that has waited for a transaction which gives rows to a key's events sees these rows.
func TestACommitSeesTheRowsThatItHasWaitedFor(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	box, right := w.box()
	release := w.holdAfter("trigger hold after insert on outbox")
	moved, committed := make(chan error, 1), make(chan ledger.Result, 1)
	go func() {
		moved <- box.Move(t.Context(), right, []outbox.Lane{{Escrow: escrow(1), Slot: partition.Slot(escrow(1))}},
			[]contract.Place{outbox.Last(1)})
	}()
	w.awaitBlocked(1)
	go func() { committed <- w.process(0, approved(1, 4, 0, 14)) }()
	w.awaitBlocked(2)
	release()
	require.NoError(t, <-moved)
	require.Equal(t, []string{"Approved:4"}, ids((<-committed).Pending))
	require.Empty(t, w.log())
	require.Equal(t, []string{"Approved:2 0", "Approved:3 0", "Approved:4 0"}, w.rows())
}

// What was read later than its slot has rows: escrows that become late, and those that are caught up.
func TestWhatIsReadLateHasRows(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	r, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots.To(5, blockHash(0, 4)),
		Events: []contract.Event{deployed(2, 4, 0, 14), deployed(3, 4, 1, 15), approved(1, 4, 2, 16)},
		Late:   []common.Address{escrow(2)}})
	require.NoError(t, err)
	require.Equal(t, []string{"EscrowDeployed:4", "Approved:4"}, ids(r.Log))
	require.Equal(t, []string{"EscrowDeployed:4"}, ids(r.Pending))
	w.reload()
	w.Publish()
	r, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots,
		Events:   []contract.Event{approved(2, 3, 7, 10), approved(2, 4, 7, 17)},
		Progress: []registry.Progress{{Address: escrow(2), Monitored: 4, CaughtUp: true}}})
	require.NoError(t, err)
	require.Empty(t, r.Log)
	require.Equal(t, []string{"Approved:3", "Approved:4"}, ids(r.Pending))
	require.Empty(t, w.log())
}

// A claim lowers the cursor, and a reading finds what the first one had missed: where some of an escrow is in a place
// that counts as sent, all of it has rows, and else it is of the log. A slot of which nothing was ever read has a
// place before the first block.
func TestWhatAFirstReadingHasMissed(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	at2 := ledger.Position{Next: 2, Hash: blockHash(0, 1)}
	w.Exec(`update slot_ownership set sent_block = case when slot = $1 then 2 else -1 end, sent_index = 5`,
		partition.Slot(escrow(1)))
	w.SetCursor(me, at2.Next, at2.Hash.Hex())
	w.reload()
	r := w.process(0, approved(1, 2, 0, 12), approved(1, 2, 5, 20), approved(1, 2, 6, 21), deployed(2, 2, 1, 22))
	require.Equal(t, []string{"EscrowDeployed:2"}, ids(r.Log))
	require.Equal(t, []string{"Approved:2", "Approved:2"}, ids(r.Pending))
	require.EqualValues(t, 5, r.Pending[0].Event.LogIndex)
	require.Equal(t, 1, r.Duplicates)
	require.Equal(t, []string{"EscrowDeployed:2", "Approved:3"}, w.log())
}

// What a rollback removes of the log, and is not known to be sent, goes ahead of the rows that are there; the log
// begins again at the fork. What comes back keeps its row, and is told of once.
func TestARollbackGivesRowsToWhatMayNotBeSent(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	w.replay(1)
	w.serve()
	w.process(0, deployed(2, 4, 0, 14), approved(2, 4, 1, 15))
	w.discover(0)
	w.Exec(`update slot_ownership set sent_block = 2`)
	_, err := w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(t, err)
	w.reload()
	rows := []string{"Approved:3 0", "EscrowDeployed:4 0", "Approved:4 0", "EscrowDeployed:1 2", "Approved:2 2",
		"Approved:3 2"}
	require.Equal(t, rows, w.rows())
	require.Equal(t, []string{"1 2147483647"},
		w.Column(`select distinct sent_block || ' ' || sent_index from slot_ownership`))
	require.Equal(t, []string{"2"}, w.Column(`select count(*)::text from slot_ownership where doubt is not null`))
	r := w.process(1, at(approved(1, 2, 0, 12), 1))
	require.Equal(t, 1, r.Revived)
	r = w.process(1, at(approved(1, 3, 0, 13), 1), at(approved(1, 3, 1, 18), 1))
	require.Equal(t, []int{1, 1}, []int{r.Revived, r.New})
	require.Empty(t, r.Log)
	require.Empty(t, w.log(), "what has come back needs no other message")
	require.Equal(t, append(rows, "Approved:3 0"), w.rows())
	w.process(1, at(deployed(2, 4, 0, 14), 1), at(approved(2, 4, 1, 15), 1))
	require.Empty(t, w.log())
	require.Len(t, w.rows(), 7)
	w.Publish()
	require.Equal(t, []string{"Approved:5"}, ids(w.process(1, at(approved(1, 5, 0, 19), 1)).Log))
}

// A wrong event that is removed gets its row if it is not known to be sent, and is then retracted.
func TestAWrongEventIsSentAndRetracted(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	w.replay(1)
	w.serve()
	w.Exec(`update slot_ownership set sent_block = 2`)
	w.discover(0)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 3, nil, []contract.Event{approved(1, 2, 0, 12), approved(1, 3, 0, 13)})
	require.NoError(t, err)
	w.reload()
	rows := []string{"Approved:3 0", "EscrowDeployed:1 2", "Approved:2 2", "Approved:3 2"}
	require.Equal(t, rows, w.rows())
	require.Equal(t, []string{"2"}, w.Column(`select distinct sent_block::text from slot_ownership`))
	require.Zero(t, w.serve().Retracted)
	w.Exec(`delete from outbox where block_number <> 3`)
	require.Equal(t, 1, w.serve().Retracted, "of what is sent")
	w.Publish()
	require.Equal(t, 1, w.serve().Retracted)
	require.True(t, slices.Equal([]string{"Approved:3 1"}, w.rows()))
}

// What the first reading has missed of an escrow keeps its order, where it comes in one commit: what has a row comes
// after the log.
func TestMissedInOrder(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	at2 := ledger.Position{Next: 2, Hash: blockHash(0, 1)}
	w.Exec(`update slot_ownership set sent_block = 2, sent_index = 5`)
	w.SetCursor(me, at2.Next, at2.Hash.Hex())
	w.reload()
	r := w.process(0, approved(1, 2, 5, 20), approved(1, 2, 6, 21))
	indexes := []uint{}
	for _, p := range append(r.Log, r.Pending...) { // of an escrow the log comes first
		indexes = append(indexes, p.Event.LogIndex)
	}

	require.Equal(t, []uint{5, 6}, indexes)
}

// A binary of before the log that still runs stores events of which the log would tell once more.
func TestEarlierBinaryStoresNothing(t *testing.T) {
	t.Parallel()
	w := atBlock4(t)
	e := approved(1, 9, 0, 99)
	_, err := w.DB.Exec(t.Context(), `
		insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, block_hash, tx_hash,
			escrow, args)
		select $1, $2, 1000, $3, 1, id, $4, true, $5, $6, $7, $8 from event_types where name = $9`, chain, e.BlockNumber, e.LogIndex,
		partition.Slot(e.Escrow), e.BlockHash[:], e.TxHash[:], e.Escrow[:], string(e.Args), e.Name)
	require.ErrorContains(t, err, "apart")
}

// Whoever emits events decides how long their arguments are: a page of the log, and of the outbox, ends before it
// fills memory, and the next one goes on behind it.
func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	const events, long = 40, 1 << 20
	w := atBlock4(t)
	for n := range int64(events) {
		w.discover(0)
		w.process(0, approved(1, 4+n, 0, 20+n))
	}

	want := len(w.log())
	require.Greater(t, want, events)
	w.Exec(`update events set args = jsonb_build_object('text', repeat('x', $1))::text`, long)
	box, right := w.box()
	sent, err := box.Sent(t.Context(), right)
	require.NoError(t, err)
	var found []uint64
	from, pages := int64(-1), 0
	for more := true; more; pages++ {
		page, err := box.Log(t.Context(), right, sent, from, 1000)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Events), 17)
		for i := range page.Events {
			found = append(found, page.Events[i].Event.BlockNumber)
		}

		from, more = page.To, page.More
	}

	require.GreaterOrEqual(t, pages, 3)
	require.Len(t, found, want)
	require.IsIncreasing(t, found)

	w.replay(1)
	w.process(0)
	rows, last := 0, int64(0)
	for more := true; more; {
		page, _, err := box.Page(t.Context(), right, allSlots(), last, 1000, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), 17)
		rows, last, more = rows+len(page), page[len(page)-1].Seq, outbox.Full(page)
	}

	require.Len(t, w.rows(), rows)
}
