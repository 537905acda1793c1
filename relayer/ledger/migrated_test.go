package ledger_test

import (
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// A database of before the log: what waits in the outbox is published from there, once and first, and what was
// published is not published again; new events of escrows that wait come behind.
func TestADatabaseOfBeforeTheLog(t *testing.T) {
	t.Parallel()
	db := testpg.Open(t, testpg.Bare(t))
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	files, err := fs.Glob(migrations.FS, "*.sql")
	require.NoError(t, err)
	apply := func(those func(name string) bool) {
		for _, name := range files {
			if those(name) {
				text, err := fs.ReadFile(migrations.FS, name)
				require.NoError(t, err)
				up, _, _ := strings.Cut(string(text), "-- +goose Down")
				exec(up)
			}
		}
	}
	apply(func(name string) bool { return name < "00010" })
	_, err = registry.Prepare(t.Context(), db, chain, []registry.Factory{{Address: common.HexToAddress("0xfac"),
		Start: 1}})
	require.NoError(t, err)
	exec(`update leadership set instance_id = $1, epoch = 1`, me)
	exec(`insert into cursors (chain_id, instance_id, next_block) values ($1, $2, 8), ($1, 'other', 4)`, chain, me)
	exec(`insert into slot_ownership (chain_id, slot, owner, next_block, doubt_seq)
		select $1, s, $2, 1, case when s = 7 then 1 else 0 end from generate_series(0, 2519) s`, chain, me)
	box := outbox.Box{DB: db, ChainID: chain, Owner: me}
	led := ledger.New(ledger.Config{DB: db, ChainID: chain, InstanceID: me, EventNames: names, Publishes: publishes})
	for _, e := range []contract.Event{deployed(1, 1, 0, 11), deployed(2, 1, 1, 12), approved(1, 2, 0, 13),
		approved(1, 5, 0, 14),
		approved(1, 6, 0, 15)} {
		exec(`insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, block_hash, tx_hash, escrow, args)
			select $1, $2, 1000, $3, 1, id, $4, true, $5, $6, $7, $8 from event_types where name = $9`, chain, e.BlockNumber, e.LogIndex,
			partition.Slot(e.Escrow), e.BlockHash[:], e.TxHash[:], e.Escrow[:], string(e.Args), e.Name)
		if e.BlockNumber > 4 { // the others were published
			exec(`insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type) values ($1, $2, $3, $4, $5, $6)`,
				chain, e.BlockNumber, e.LogIndex, partition.Slot(e.Escrow), e.Escrow[:], e.Name)
		}
	}

	apply(func(name string) bool { return name >= "00010" })
	at := ledger.Position{Next: 8}
	right := outbox.Right{Epoch: 1}
	waits := func() (log, rows []string) {
		sent, err := box.Sent(t.Context(), right)
		require.NoError(t, err)
		page, err := box.Log(t.Context(), right, sent, -1, 100)
		require.NoError(t, err)
		found, _, err := box.Page(t.Context(), right, allSlots(), 0, 100, nil)
		require.NoError(t, err)
		return ids(pendings(page.Events)), ids(pendings(found))
	}
	log, rows := waits()
	require.Empty(t, log)
	require.Equal(t, []string{"Approved:5", "Approved:6"}, rows)
	r, err := led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: at, To: at.To(10, blockHash(0, 9)),
		Events: []contract.Event{approved(1, 8, 0, 18), approved(2, 9, 0, 19)}})
	require.NoError(t, err)
	require.Equal(t, []string{"Approved:9"}, ids(r.Log))
	log, rows = waits()
	require.Equal(t, []string{"Approved:9"}, log)
	require.Equal(t, []string{"Approved:5", "Approved:6", "Approved:8"}, rows)

	rolled, err := led.Rollback(t.Context(), at.To(10, blockHash(0, 9)), ledger.Position{Next: 6})
	require.NoError(t, err)
	require.Equal(t, 3, rolled.Orphaned)
	right.Generation = 1
	log, rows = waits()
	require.Empty(t, log)
	require.Equal(t, []string{"Approved:9", "Approved:5", "Approved:6", "Approved:8"}, rows)
	all, _, err := box.Page(t.Context(), right, allSlots(), 0, 100, nil)
	require.NoError(t, err)
	var sent []outbox.Sent
	for i := range all {
		sent = append(sent, all[i].Sent())
	}

	require.NoError(t, box.Delete(t.Context(), sent, time.Minute))
	at, err = led.SlotPosition(t.Context(), 1)
	require.NoError(t, err)
	r, err = led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: at, To: at.To(7, blockHash(1, 6)),
		Events: []contract.Event{approved(1, 6, 1, 20)}})
	require.NoError(t, err)
	require.Equal(t, []string{"Approved:6"}, ids(r.Log))
	var doubted int
	require.NoError(t, db.QueryRow(t.Context(), `select slot from slot_ownership where doubt is not null and slot = 7`).Scan(&doubted))
}

func pendings(found []outbox.Found) (pending []outbox.Pending) {
	for i := range found {
		pending = append(pending, found[i].Pending)
	}

	return pending
}
