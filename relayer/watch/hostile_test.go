package watch_test

import (
	"context"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// One endpoint of three, the first, invents a release of a real escrow: the bits of its log are in the block's
// bloom filter, under the block's true hash, and the log is in what it answers for the range and for the
// block. The watches publish what the chain has and nothing else, the liar is named, and what was stored of
// its inventions before is retracted.
func TestInventedRelease(t *testing.T) {
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			liar, err := faults.NewNode(w.sim.HTTP(), w.sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			first := liar.HTTP()
			if scheme == "ws" {
				first = liar.WS()
			}

			w.src = openSource(t, first, w.sim.WS(), w.sim.HTTP())

			w.create(2)
			w.mine(1 + confirmations)
			w.run(watch.FilterTopics, true)
			truth := w.expect(w.head() - confirmations)

			w.approve(1, truth.Escrows[0])
			w.mine(1)
			lie := liar.Inject(faults.Fault{Mode: faults.Bits, Logs: []types.Log{w.invent(truth.Escrows[1])}})
			w.approve(1, truth.Escrows[1])
			w.mine(1 + confirmations)
			w.expect(w.head() - confirmations)
			require.Empty(t, w.invented())

			w.mine(200) // what was read is final
			require.Eventually(t, func() bool { return w.src.View().Final > w.head()-200 }, time.Minute, 5*time.Millisecond)
			w.store(w.invent(truth.Escrows[1]))
			require.Len(t, w.invented(), 1)
			v := verify.New(verify.Config{Source: w.src, Filters: watch.NewFilters(w.abi, w.d.Factory, watch.FilterTopics, 1000,
				4000).Again(), Ledger: w.led, ABI: w.abi, Factory: w.d.Factory, Every: time.Millisecond,
				Log:     slog.New(slog.NewTextHandler(t.Output(), nil)),
				Metrics: verify.NewMetrics(prometheus.NewRegistry())})
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- v.Run(ctx, 1) }()
			t.Cleanup(func() { stop(); require.NoError(t, <-done) })
			require.Eventually(t, func() bool { return len(w.invented()) == 0 }, time.Minute, 5*time.Millisecond)
			require.Positive(t, lie.Hits())
			require.Eventually(t, func() bool { return len(w.src.Faults()) > 0 }, time.Minute, 5*time.Millisecond)
			require.Equal(t, endpoint.Lie, w.src.Faults()[0].Kind)
			w.mine(1) // the owner of the slot queues the retraction with its next commit
			require.Eventually(t, func() bool { return len(w.out.retracted()) > 0 }, time.Minute, 5*time.Millisecond)
			require.Len(t, w.out.retracted(), 1)
			require.True(t, strings.HasSuffix(w.out.retracted()[0], ":4000"), w.out.retracted()[0])
			w.expect(w.head() - confirmations)
		})
	}
}

// inventedIndex is the log index of the release that never happened.
const inventedIndex = 4000

// invented are the stored events that never happened.
func (w *world) invented() []string {
	return w.Column(`select block_number::text from events where log_index = 4000`)
}

// store stores an event that never happened beside one of its block.
func (w *world) store(l types.Log) {
	w.Exec(`insert into events select (jsonb_populate_record(e, jsonb_build_object('log_index', $1::int))).*
		from events e where block_number <= $2 order by block_number desc limit 1`, inventedIndex, int64(l.BlockNumber))
}

// invent returns a release of an escrow, in the newest block, that never happened.
func (w *world) invent(escrow common.Address) types.Log {
	c, err := ethclient.DialContext(w.t.Context(), w.sim.HTTP())
	require.NoError(w.t, err)
	defer c.Close()
	head, err := c.HeaderByNumber(w.t.Context(), nil)
	require.NoError(w.t, err)
	data := append(common.BigToHash(big.NewInt(1e18)).Bytes(), common.BigToHash(big.NewInt(1_700_000_000)).Bytes()...)

	return types.Log{
		Address: escrow, Data: data, BlockNumber: head.Number.Uint64(), BlockHash: head.Hash(), BlockTimestamp: head.Time,
		TxHash: common.Hash{0xba, 0xd0}, Index: inventedIndex,
		Topics: []common.Hash{crypto.Keccak256Hash([]byte("EscrowReleased(address,uint256,uint256)")), {12: 0xba, 31: 0xd}},
	}
}
