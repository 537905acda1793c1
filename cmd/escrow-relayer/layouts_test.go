package main

import (
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
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
	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.Client(), w.Chain.Accounts()[len(w.Chain.Accounts())-1])
	require.NoError(t, err)
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
	for i, a := range opened {
		w.tells(a, "EscrowDeployed", "EscrowReleased")
		t.Logf("deal %d is told", i)
	}

	w.clean(grown, w.Contracts.Block)
	require.Zero(t, w.count(`select count(*) from findings where settled_at is null`))
}

// story are the types of the events of an escrow that were published, in their order, each once.
func (w *world) story(a common.Address) (all []string) {
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

// tells waits for the whole story of an escrow.
func (w *world) tells(a common.Address, types ...string) {
	require.Eventually(w.t, func() bool { return len(w.story(a)) >= len(types) }, patience, 50*time.Millisecond)
	require.Equal(w.t, types, w.story(a))
}

// proxy runs the code of the contract at its EIP-1967 slot. Called with one word, it has that word in the slot: whoever
// wants to upgrades it.
func proxy() []byte {
	const slot = "7f360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc"
	code := common.FromHex("3660201460" + "41" + "57" + // one word: to the upgrade
		"365f5f375f5f365f" + slot + "545af43d5f5f3e60" + "3d" + "573d5ffd" + "5b3d5ff3" + "5b5f35" + slot + "5500")

	return append(common.FromHex(fmt.Sprintf("60%02x80600a5f395ff300", len(code))), code...)
}

// A stranger's factory behind a proxy is upgraded under traffic, and announces in another shape, which the ABI lacks:
// that pages. Once the ABI is completed, by a restart, nothing is lost.
func TestAProxiedFactoryIsUpgraded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.Client(), w.Chain.Accounts()[1])
	require.NoError(t, err)
	send := func(call testchain.Call) *types.Receipt {
		call.Gas = 3_000_000
		receipts, err := wallet.Transact(t.Context(), w.Chain, 0, call)
		require.NoError(t, err)

		return receipts[0]
	}
	deployed := send(testchain.Call{Data: proxy()})
	factory, payee := deployed.ContractAddress, w.Chain.Accounts()[2].Address
	upgrade := func(to common.Address) { send(testchain.Call{To: &factory, Data: common.LeftPadBytes(to[:], 32)}) }
	var made []common.Address
	create := func(call []byte) {
		logs := send(testchain.Call{To: &factory, Data: call, Value: big.NewInt(7)}).Logs
		made = append(made, common.BytesToAddress(logs[len(logs)-1].Topics[1][:])) // of EscrowDeployed, the last one
		send(testchain.Call{To: &made[len(made)-1], Data: contracts.NewEscrow().PackApprove()})
	}
	first := contracts.NewLegacyEscrowFactory().PackCreateEscrow(payee, new(big.Int), 1)
	second := contracts.NewEscrowFactory().PackCreateEscrow(payee, new(big.Int), 1, common.Address{})
	upgrade(w.Contracts.Legacy)
	env := map[string]string{"FACTORY_ADDRESS": factory.Hex(), "START_BLOCK": deployed.BlockNumber.String(),
		"FACTORY_ABI": contracts.LegacyEscrowFactoryMetaData.ABI}
	w.run("r0", 0, 1, env)
	w.ready("r0")
	create(first)
	upgrade(w.Contracts.Factory)
	for range 3 {
		create(second)
	}

	require.NoError(t, w.Chain.Mine(t.Context(), 64)) // what is final is read a second time
	w.tells(made[0], "EscrowDeployed", "Approved", "EscrowReleased")
	require.Eventually(t, func() bool {
		m, err := w.fleet["r0"].Metrics(t.Context())
		return err == nil && m.Sum("relayer_problem", "kind", "unknown_events") > 0
	}, patience, 100*time.Millisecond, "unknown_events looks at it")
	code, out := w.operator(env, "status")
	require.Equal(t, exitNo, code)
	require.Contains(t, out, "3 blocks in which a factory created a contract that no event of the ABI announces")
	require.Empty(t, w.story(made[1]))

	create(second)
	delete(env, "FACTORY_ABI") // the built-in one has both shapes
	w.stop("r0")
	create(second)
	w.run("r0", 0, 1, env)
	w.ready("r0")
	create(second)
	require.NoError(t, w.Chain.Mine(t.Context(), 64))
	for _, a := range made {
		w.tells(a, "EscrowDeployed", "Approved", "EscrowReleased")
	}

	w.clean(env, deployed.BlockNumber.Uint64())
	code, out = w.operator(env, "status")
	require.Zero(t, code, out)
}

// joined is one of the built-in ABIs with the events of another.
func joined(t *testing.T, builtIn, other string) string {
	ours, err := os.ReadFile("../../relayer/contract/" + builtIn)
	require.NoError(t, err)

	return strings.TrimSuffix(strings.TrimSpace(string(ours)), "]") + "," +
		strings.TrimPrefix(strings.TrimSpace(other), "[")
}
