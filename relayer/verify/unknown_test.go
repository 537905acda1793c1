package verify

import (
	"fmt"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// emitter is a contract that emits what it is called with: a log with the first two words as topics and the rest as
// data.
const emitter = "6015600c60003960156000f3" + "60403603806040600037602035600035826000a200"

// What followed contracts do and the ABI does not know is a finding and a problem: a log of an escrow under one of our
// topics that does not decode, and contracts of a factory that no known event announces, in each range anew. A contract
// that nobody follows may emit what it likes. Once the ABI has gained a layout, what it still does not know is found
// again.
func TestWhatTheABIDoesNotKnowIsFound(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sim := testchain.NewSim(t, testchain.Options{Seed: 5})
	wallet, err := testchain.OpenWallet(ctx, sim.Client(), sim.Accounts()[0])
	require.NoError(t, err)
	send := func(call testchain.Call) (common.Address, int64) {
		call.Gas = 3_000_000
		receipts, err := wallet.Transact(ctx, sim, 0, call)
		require.NoError(t, err)

		return receipts[0].ContractAddress, receipts[0].BlockNumber.Int64()
	}
	escrow, _ := send(testchain.Call{Data: common.FromHex(emitter)})
	stranger, _ := send(testchain.Call{Data: common.FromHex(emitter)})
	factory, start := send(testchain.Call{Data: common.FromHex(contracts.DealsMetaData.Bin)})
	open := testchain.Call{To: &factory, Value: big.NewInt(7),
		Data: contracts.NewDeals().PackOpen(sim.Accounts()[2].Address)}
	abi, err := contract.New("", "")
	require.NoError(t, err)
	released := abi.EscrowTopics()[len(abi.EscrowTopics())-1]
	short := append(released.Bytes(), make([]byte, 64)...) // one word of data where the event has two
	send(testchain.Call{To: &stranger, Data: short})
	_, odd := send(testchain.Call{To: &escrow, Data: short})
	_, first := send(open)
	require.NoError(t, sim.Mine(ctx, 7))
	send(open)
	_, last := send(open)
	require.NoError(t, sim.Mine(ctx, 3))

	c, head, logs := allLogs(t, sim)
	f := testfleet.New(t, chainID)
	f.Alone("r0", start, registry.Text(factory))
	f.SetCursor("r0", int64(head)+1, "")
	f.Exec(`insert into escrows (chain_id, address, slot, discovered_block_number, log_index, factory, tx_hash)
		values ($1, $2, 1, $3, 0, 1, '\x00')`, int64(chainID), escrow[:], start)
	led := ledger.New(ledger.Config{DB: f.DB, ChainID: chainID, InstanceID: "r0", EventNames: abi.EventNames()})
	followed := registry.NewFollowed(registry.Factory{Address: factory})
	v := New(Config{Source: &twoNodes{chain: c, logs: logs, head: head}, Ledger: led, ABI: abi, Factories: followed,
		Filters: watch.NewFilters(abi, followed, watch.FilterTopics, 1000).Again(), Every: time.Second,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	verify := func() []string {
		f.Exec(`update leadership set next_block = $1`, int64(head)+1)
		f.Verify(start - 1)
		f.Exec(`delete from late_escrows`)
		v.waited = mostWaits
		require.NoError(t, v.once(t.Context(), 1))

		return f.Column(`select kind || ' ' || block_number || ' ' || events from findings where settled_at is null
			order by block_number`)
	}
	want := []string{fmt.Sprintf("undecodable_event %d 1", odd), fmt.Sprintf("unannounced_contract %d 1", first),
		fmt.Sprintf("unannounced_contract %d 2", last)}
	require.Equal(t, want, verify())
	require.Equal(t, NotAnnounced, v.Counts(factory))
	state, err := fleet.Read(ctx, f.DB, chainID)
	require.NoError(t, err)
	var texts []string
	for _, p := range state.Problems {
		if p.Kind == fleet.UnknownEvents {
			texts = append(texts, p.Text)
		}
	}

	require.Len(t, texts, 2)
	require.Contains(t, texts[0], "3 blocks in which a factory created")
	require.Contains(t, texts[0], factory.Hex())
	require.Contains(t, texts[1], "1 logs of followed contracts")
	require.Contains(t, texts[1], "contract "+escrow.Hex())
	require.Contains(t, texts[1], released.Hex())

	_, err = registry.ReadWith(ctx, f.DB, chainID, 1, registry.Layouts{Others: []string{"0x01:1"}})
	require.NoError(t, err)
	require.Empty(t, f.Column(`select kind from findings where settled_at is null`))
	require.Equal(t, want, verify(), "the ABI has gained another event")
}
