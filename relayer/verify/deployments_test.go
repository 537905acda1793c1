package verify

import (
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
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// A nonce that has risen beside a deployment, by the word of one endpoint, keeps no later reading from finding by the
// nonce what no endpoint has a log of any more.
func TestOneWordSilencesNoCount(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 5})
	wallet, err := testchain.OpenWallet(ctx, sim.Client(), sim.Accounts()[1])
	require.NoError(t, err)
	const escrows = 3 // one in each block of one range
	create := testchain.Call{To: &d.Factory, Value: big.NewInt(7), Gas: 3_000_000,
		Data: contracts.NewEscrowFactory().PackCreateEscrow(sim.Accounts()[2].Address, new(big.Int), 1, common.Address{})}
	var at []uint64
	for range escrows {
		receipts, err := wallet.Transact(ctx, sim, 0, create)
		require.NoError(t, err)
		at = append(at, receipts[0].BlockNumber.Uint64())
	}

	require.LessOrEqual(t, at[escrows-1]-d.Block, uint64(4))
	require.NoError(t, sim.Mine(ctx, 10))
	c, head, logs := allLogs(t, sim)
	abi, err := contract.New("", "")
	require.NoError(t, err)
	f := testfleet.New(t, chainID)
	f.Alone("r0", int64(d.Block), registry.Text(d.Factory))
	f.SetCursor("r0", int64(head)+1, "")
	followed := registry.NewFollowed(registry.Factory{Address: d.Factory})
	nodes := &twoNodes{chain: c, logs: logs, head: head, inflated: at[0]}
	v := New(Config{Source: nodes, ABI: abi, Factories: followed, Every: time.Second,
		Ledger: ledger.New(ledger.Config{DB: f.DB, ChainID: chainID, InstanceID: "r0", EventNames: abi.EventNames(),
			Publishes: func(string) bool { return true }}),
		Filters: watch.NewFilters(abi, followed, watch.FilterTopics, 1000).Again(),
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	verify := func() []string {
		for _, table := range []string{"late_escrows", "outbox", "events", "escrows"} {
			f.Exec("delete from " + table)
		}

		f.Exec(`update leadership set next_block = $1`, int64(head)+1)
		f.Verify(int64(d.Block) - 1)
		v.waited = mostWaits
		require.NoError(t, v.once(t.Context(), 1))

		return f.Column(`select hex(address) from escrows`)
	}
	require.Len(t, verify(), escrows)
	require.Equal(t, OtherCreated, v.Counts(d.Factory))

	nodes.inflated, nodes.indexed = 0, at[escrows-1]
	require.Len(t, verify(), escrows)
}
