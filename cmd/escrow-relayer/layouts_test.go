package main

import (
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// A rolling change brings a factory with events that the fleet does not know, with no flag set, and a leader of the
// older ABI reads the factory first. The instances that know less give way to the one that knows more; alone they go
// on. In the end nothing is lost.
func TestABIGrowsWhileTheFleetRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.HTTP(), w.Chain.Accounts()[len(w.Chain.Accounts())-1])
	require.NoError(t, err)
	t.Cleanup(wallet.Close)
	send := func(call testchain.Call) common.Address {
		receipts, err := wallet.Transact(t.Context(), w.Chain, 0, call)
		require.NoError(t, err)
		if logs := receipts[0].Logs; len(logs) > 0 && len(logs[0].Topics) == 3 {
			return common.BytesToAddress(logs[0].Topics[2][:]) // of Opened
		}

		return receipts[0].ContractAddress
	}
	factory := send(testchain.Call{Data: common.FromHex(contracts.DealsMetaData.Bin), Gas: 2_000_000})
	start, err := w.Head(t.Context())
	require.NoError(t, err)
	deals, deal := contracts.NewDeals(), contracts.NewDeal()
	var opened []common.Address
	open := func() {
		a := send(testchain.Call{To: &factory, Data: deals.PackOpen(w.Chain.Accounts()[2].Address), Value: big.NewInt(7)})
		opened = append(opened, a)
		send(testchain.Call{To: &a, Data: deal.PackSettle()})
		w.blocks(1)
	}

	grown := map[string]string{
		"FACTORY_ADDRESS": fmt.Sprintf("%s@%d,%s@%d", w.Contracts.Factory, w.Contracts.Block, factory, start),
		"FACTORY_ABI":     joined(t, "factory.json", contracts.DealsMetaData.ABI),
		"ESCROW_ABI":      joined(t, "escrow.json", contracts.DealMetaData.ABI),
		"EVENT_ALIASES": "Opened(deal)=EscrowDeployed,Settled=EscrowReleased,Cancelled=EscrowRefunded," +
			"Expired=EscrowRefunded",
	}
	w.startTwo(nil)
	open()
	require.NoError(t, pgx.BeginFunc(t.Context(), w.DB, func(tx pgx.Tx) error {
		return registry.AddFactories(t.Context(), tx, w.Chain.ChainID().Int64(),
			[]registry.Factory{{Address: factory, Start: int64(start)}})
	}))
	for range 3 {
		open()
	}

	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.run("r2", 1, 2, grown) // beside both
	w.ready("r2")
	open()
	w.until("the one that knows more leads, and has all slots", func(f *fleet.Fleet) bool {
		return slotsOf("r2", 2520)(f) && f.Leader.Instance == "r2"
	})
	open()
	w.fleet["r2"].Kill()
	w.until("alone they go on", func(f *fleet.Fleet) bool {
		return f.Leader.Instance != "r2" && f.Leader.Valid && f.Slots.Unserved == 0
	})
	open()
	w.stop("r0")
	w.stop("r1")
	w.run("r0", 0, 2, grown)
	w.run("r1", 1, 2, grown)
	w.ready("r0", "r1")
	open()
	// What an owner of the older ABI has passed is the second reading's, which reads final blocks: this chain has some
	// every 32 blocks.
	require.NoError(t, w.Chain.Mine(t.Context(), 64))
	of := func(a common.Address) (all []string) {
		seen := map[string]bool{}
		for _, m := range w.Received.Messages() {
			id, escrow := m.Attributes[message.AttrEventID], m.Attributes[message.AttrEscrow]
			if strings.EqualFold(a.Hex(), escrow) && !seen[id] {
				seen[id] = true
				all = append(all, m.Attributes[message.AttrEventType])
			}
		}

		return all
	}
	for i, a := range opened {
		require.Eventually(t, func() bool { return len(of(a)) >= 2 }, 2*time.Minute, 50*time.Millisecond, "deal %d", i)
		require.Equal(t, []string{"EscrowDeployed", "EscrowReleased"}, of(a))
	}

	w.clean(grown, w.Contracts.Block)
	require.Zero(t, w.count(`select count(*) from findings where settled_at is null`))
}

// joined is one of the built-in ABIs with the events of another.
func joined(t *testing.T, builtIn, other string) string {
	ours, err := os.ReadFile("../../relayer/contract/" + builtIn)
	require.NoError(t, err)

	return strings.TrimSuffix(strings.TrimSpace(string(ours)), "]") + "," +
		strings.TrimPrefix(strings.TrimSpace(other), "[")
}
