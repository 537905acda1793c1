package send_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

func text(a common.Address) string { return fmt.Sprintf("0x%x", a[:]) }

// ledgerID is the instance that watches the chain.
const ledgerID = "ledger"

// holder has all slots, since testfleet.Alone.
type holder struct{}

func (holder) Settled() (partition.Holding, <-chan struct{}) {
	return partition.Holding{Epoch: 1, Slots: partition.Partition{Total: 1, Strategy: partition.Modulo}.Preferred()}, nil
}

// unpublished leaves all messages in the outbox.
type unpublished struct{}

func (unpublished) Offer(outbox.Commit)          {}
func (unpublished) Reload(outbox.Right, []int16) {}

// watch has the ledger follow the chain, as an instance does, until the end of the test or until it is stopped.
func (w *world) watch() (stop func()) {
	w.t.Helper()
	abi, err := contract.New("", "")
	require.NoError(w.t, err)
	chain := w.node.ChainID().Int64()
	cfg := watch.Config{Source: w.source, ABI: abi, Log: slog.New(slog.DiscardHandler),
		Filters: watch.NewFilters(abi, registry.NewFollowed(registry.Factory{Address: w.contracts.Factory}),
			watch.FilterTopics, 1000),
		Metrics: watch.NewMetrics(prometheus.NewRegistry(), abi.EventNames()), Ledger: w.ledger()}
	slots := watch.NewSlotWatch(watch.SlotConfig{Config: cfg, DB: w.db, Holder: holder{}, Publisher: unpublished{},
		ChainID: chain, Discovered: make(chan struct{})})
	factory := watch.NewFactoryWatch(watch.FactoryConfig{Config: cfg, BeatEvery: time.Second,
		ResignAfter: time.Hour, Health: w.source.Health})

	return w.run(func(ctx context.Context) error {
		var wg sync.WaitGroup
		wg.Go(func() { _ = slots.Run(ctx) })
		defer wg.Wait()

		return factory.Run(ctx, 1, func(context.Context) error { return nil })
	})
}

// ledger is that of the instance that watches the chain.
func (w *world) ledger() *ledger.Ledger {
	w.t.Helper()
	abi, err := contract.New("", "")
	require.NoError(w.t, err)

	return ledger.New(ledger.Config{DB: w.db, ChainID: w.node.ChainID().Int64(), InstanceID: ledgerID,
		EventNames: abi.EventNames(), Publishes: func(string) bool { return true }, Reopen: send.Reopen})
}

// verified has all events up to a block count as verified.
func (w *world) verified(block int) {
	w.exec(`update leadership set verified_block = $2 where chain_id = $1`, w.node.ChainID().Int64(), block)
}

// record adds events to an escrow that the chain does not have, which give it a state.
func record(t *testing.T, db *pgxpool.Pool, chain int64, escrow common.Address, status string,
	approvers ...common.Address) {
	t.Helper()
	add := func(index int, name, args string) {
		tag, err := db.Exec(t.Context(), `
			insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, apart, block_hash, tx_hash, escrow, args)
			select chain_id, block_number, block_time, 100000 + 100 * log_index + $3, writer, (select id from event_types where name = $4), slot, true,
			       false, block_hash, tx_hash, escrow, $5
			from events where chain_id = $1 and escrow = $2 order by block_number, log_index limit 1`,
			chain, escrow[:], index, name, args)
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())
	}
	for i, a := range approvers {
		add(i, "Approved", `{"approver":"`+text(a)+`"}`)
	}

	if name := map[string]string{"released": "EscrowReleased", "refunded": "EscrowRefunded"}[status]; name != "" {
		add(len(approvers), name, `{"amount":"1","timestamp":"1"}`)
	}
}
